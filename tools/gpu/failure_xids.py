"""XIDs of a job that is made to fail: `python tools/gpu/failure_xids.py`, on two GPUs or more. Prints JSON lines; 1 where there was an XID.

Both ways to die, and each again with survivors that abort nothing: what their abort is for. XIDs of these are expected, and do not count.
An XID of the last GPU alone is of the rank that died, and not of a survivor. What each XID says, with its pid: `dmesg | grep Xid`.
"""

import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from tempfile import mkdtemp

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))

from gpu_acceptance.base.process import become_subreaper
from gpu_acceptance.inventory.counters import GpuCounters
from gpu_acceptance.inventory.nvml import library
from gpu_acceptance.measure import failure as job
from gpu_acceptance.measure.failure import WAYS

LATE_S = 2.0  # for an event that comes after the process has ended
ABORTS_NOTHING = """
import sys
from pathlib import Path
from gpu_acceptance.measure import failure_rank as rank
rank._abort = lambda: None
rank.main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
"""


def main() -> int:
    become_subreaper()
    folder = Path(mkdtemp())
    (folder / "aborts_nothing.py").write_text(ABORTS_NOTHING)
    os.environ["PYTHONPATH"] = str(folder)
    with library() as pynvml:
        uuids = [pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(index)) for index in range(pynvml.nvmlDeviceGetCount())]
        counters = [GpuCounters(pynvml, uuid) for uuid in uuids]
        found = {(way, rank): xids(way, rank, uuids, counters) for rank in (job._RANK, "aborts_nothing") for way in WAYS}
    return int(any(xids for (_, rank), xids in found.items() if rank != "aborts_nothing"))


def xids(way: str, rank: str, uuids: list[str], counters: list[GpuCounters]) -> bool:
    """Return whether an XID was seen, or why it is unknown: XIDs cannot be read here, or the job ended before."""
    job._RANK = rank
    with job.held_port() as port:
        ended = job.measure(way, job.Place(0, 1, len(uuids), "127.0.0.1", port), Path(mkdtemp()), devices=",".join(uuids))
    time.sleep(LATE_S)
    xids = [one.read(each_link=False).xids for one in counters]
    by_gpu = [[*one.xids, *([str(one.unread)] if one.unread else [])] for one in xids]
    print(json.dumps({"way": way, "rank": rank, "xids": by_gpu, **asdict(ended)}), flush=True)
    return any(by_gpu) or ended.end_s is None


if __name__ == "__main__":
    sys.exit(main())
