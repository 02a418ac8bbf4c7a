"""Counters round every validation on real GPUs: `python tools/gpu/counters.py OUT`. Prints what was wrong, and exits 1.

Of four validations one works at the power limit, and one has an XID beside it, on the last rank's GPU. Also how long a reading takes
while one process for each GPU reads: a line of JSON.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import mkdtemp

import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[2] / "src"))

from suite import Finished, make_suite, torchrun
from this_gpu import for_this_gpu

from gpu_acceptance.inventory.counters import GpuCounters
from gpu_acceptance.inventory.nvml import library

NUM_READINGS, READ_FOR_S = 50, 10


def main(out: Path) -> int:
    ranks = torch.cuda.device_count()
    children = [subprocess.Popen([sys.executable, __file__, "--read", str(index)], stdout=subprocess.PIPE) for index in range(ranks)]
    for child in children:
        print(child.communicate(timeout=120)[0].decode().strip())
    ended = torchrun(for_this_gpu(make_suite(Path(mkdtemp()) / "suite", "gpu_counters")), ranks=ranks)
    shutil.make_archive(str(out / "counters"), "gztar", ended.folder or ended.suite)
    wrong = list(differences(ended, ranks))
    print(ended.row("test_beside_it").message)
    print("\n".join(wrong) or "counters: as they should be")
    return 1 if wrong else 0


def differences(ended: Finished, ranks: int):
    """Return the deviations from the expected state."""
    outcomes = {"test_idles": "passed", "test_works": "passed", "test_beside_it": "failed", "test_idles_again": "passed"}
    if ended.outcomes() != outcomes:
        yield f"outcomes {ended.outcomes()}, not {outcomes}"
    message = ended.row("test_beside_it").message
    if "counters.xids = 1 count (XID 43, " not in message or f"on rank {ranks - 1} " not in message:
        yield f"test_beside_it: {message}"
    for name, is_busy in (("test_idles", False), ("test_works", True), ("test_idles_again", False)):
        for record in ended.row(name).attempts[0].ranks:
            values = {figure.metric: figure.value for figure in record.counters}
            if (values.get("counters.throttle.sw_power_cap", 0) > 1) != is_busy or values.get("counters.xids") != 0:
                yield f"{name}: counters of rank {record.rank}: {values}"


def read(index: int) -> None:
    """As a supervisor's thread does, for a while."""
    with library() as pynvml:
        uuid = pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(index))
        counters = GpuCounters(pynvml, uuid)
        took = []
        end = time.monotonic() + READ_FOR_S
        while time.monotonic() < end or len(took) < NUM_READINGS:
            start = time.perf_counter()
            counters.read(each_link=False)
            took.append(time.perf_counter() - start)
    print(json.dumps({"gpu": index, "readings": len(took), "median_ms": 1e3 * statistics.median(took), "max_ms": 1e3 * max(took)}))


if __name__ == "__main__":
    os.environ.update(NCCL_NVLS_ENABLE="0", TORCH_SYMM_MEM_DISABLE_MULTICAST="1", NVSHMEM_DISABLE_NVLS="1")
    if sys.argv[1] == "--read":
        read(int(sys.argv[2]))
    else:
        sys.exit(main(Path(sys.argv[1])))
