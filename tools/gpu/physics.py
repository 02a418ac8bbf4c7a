"""Output of the reader of NCCL's log with a transport forced by the environment: torchrun --nproc-per-node gpu tools/gpu/physics.py.

Each rank starts itself once more with NCCL's log in a file, as a worker has it. One JSON line: the findings of all ranks, the facts and
latencies of rank 0, and the warnings of all.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

from gpu_acceptance.inventory import nccl_log, nccl_physics
from gpu_acceptance.measure import nccl
from gpu_acceptance.worker.worker import write_whole_lines

NUM_BYTES = 1 << 30
MARK = "PHYSICS_LOG"


def measured(device: torch.device) -> dict[str, object]:
    """Collective. Where NCCL refuses a collective, what it said."""
    rank, nodes = dist.get_rank(), [0] * dist.get_world_size()
    try:
        num_wrong, refused = {one: nccl.count_wrong(one, num_bytes=NUM_BYTES, device=device) for one in nccl_physics.COLLECTIVES}, ""
    except dist.DistBackendError as error:
        num_wrong, refused = {}, str(error).splitlines()[-1]
    log = nccl_log.read_own()
    answer: dict[str, object] = {
        "refused": refused,
        "wrong": num_wrong,
        "findings": [list(map(str, one)) for one in nccl_physics.findings(log, NUM_BYTES, nodes, rank)],
    }
    answer["facts"] = {metric: str(value) for metric, value, _ in nccl_physics.facts(log, NUM_BYTES, nodes, rank)}
    answer["warnings"] = nccl_log.unexpected_warnings(Path(os.environ[MARK]).read_text(errors="backslashreplace").splitlines())
    if not refused:
        times = {"device": device, "block_s": 0.1, "num_blocks": 7}
        for num_bytes in nccl.LATENCY_SIZES:
            for in_a_graph in (False, True):
                latency_us = nccl.measure_latency(num_bytes, in_a_graph=in_a_graph, **times)
                answer[f"latency_{nccl.size_name(num_bytes)}{'' if in_a_graph else '_eager'}_us"] = round(latency_us, 2)
    return answer


def main() -> None:
    """The second start: a rank with its log in a file; what it found goes into a file beside it."""
    write_whole_lines()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    try:
        answer = measured(device)
    except Exception as error:  # whatever it is, it is what this script is asked for
        answer = {"error": f"{type(error).__name__}: {error}"[:2_000]}
    Path(os.environ[MARK] + ".json").write_text(json.dumps(answer))
    os._exit(0)  # a group that NCCL refused something may hang at its end


def parent() -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        environment = {**os.environ, **nccl_log.ENVIRONMENT, **nccl.LATENCY_ENVIRONMENT, "NCCL_DEBUG_FILE": "", MARK: str(path)}
        with path.open("ab") as log:
            done = subprocess.run([sys.executable, __file__], env=environment, stdout=log, stderr=log, timeout=200, check=False)
        answer = Path(f"{path}.json")
        rank = int(os.environ["RANK"])
        line = json.loads(answer.read_text()) if answer.exists() else {"error": path.read_text(errors="backslashreplace")[-2_000:]}
        sys.stdout.write(json.dumps({"rank": rank, "forced": forced(), **line}) + "\n")
        if out := os.environ.get("OUT"):
            (Path(out) / f"nccl-{'-'.join(forced()).replace('=', '.').replace(':', '.') or 'plain'}-{rank}.log").write_bytes(
                path.read_bytes()
            )
        return done.returncode


def forced() -> list[str]:
    return sorted(f"{name}={os.environ[name]}" for name in ("NCCL_ALGO", "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE") if name in os.environ)


if __name__ == "__main__":
    if MARK in os.environ:
        main()
    else:
        sys.exit(parent())
