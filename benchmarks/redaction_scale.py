"""Cost of redacting the run of a large cluster, with a journal and a log of each rank: CPU time of a process of its own, by size.

Seconds are those of this machine, and mean nothing elsewhere; that they grow as the run does, and no faster, does. Needs the root of the
checkout on PYTHONPATH.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from gpu_acceptance.base.model import encode
from gpu_acceptance.folder.files import write_results
from gpu_acceptance.record.job import RankIdentity
from gpu_acceptance.report.redaction import redact_run
from tests.report.large import large


def main(sizes: list[int]) -> None:
    for num_nodes in sizes:
        subprocess.run([sys.executable, __file__, "--step", str(num_nodes)], check=True)


def step(num_nodes: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder, "run")
        make(run_dir, num_nodes)
        num_bytes = sum(path.stat().st_size for path in run_dir.rglob("*") if path.is_file())
        begin_s = time.process_time()
        redact_run(run_dir, Path(folder, "out"), Path(folder, "names"))
        seconds = time.process_time() - begin_s
    print(f"{8 * num_nodes:,} GPUs: {num_bytes / 1e6:.1f} MB redacted in {seconds:.1f} s, {seconds / num_bytes * 1e9:.0f} ns for a byte")


def make(run_dir: Path, num_nodes: int) -> None:
    record = large(num_nodes)
    for name in ("journal", "logs"):
        (run_dir / name).mkdir(parents=True)
    write_results(run_dir, record)
    for identity in record.ranks:
        lines = [encode(identity), *(encode(row.attempts[-1].ranks[identity.rank]) for row in record.rows)]
        (run_dir / "journal" / f"rank-{identity.rank:05d}.jsonl").write_text("\n".join([*lines, ""]))
        (run_dir / "logs" / f"rank-{identity.rank:05d}.log").write_text(log_of(identity))


def log_of(identity: RankIdentity) -> str:
    """Names that stand in the record and names that do not: an address and a path of each rank."""
    assert identity.gpu
    address = f"10.3.{identity.rank // 250}.{identity.rank % 250 + 1}"
    lines = f"{identity.host} NCCL INFO {identity.gpu.label} {identity.gpu.uuid} at {address}", f"/scratch/job/rank-{identity.rank}/cache"
    return "\n".join(lines * 20)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nodes", type=int, nargs="*", default=[16, 32, 64, 128], help="of 8 GPUs each, at least 3 (16 32 64 128)")
    parser.add_argument("--step", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        step(options.step)
    else:
        main(options.nodes)
