"""Jobs that are made to fail, with something else planted in their ranks than what they do: for tests of gpu_acceptance.measure.failure."""

import secrets
from pathlib import Path

from ports import free_port

from gpu_acceptance.measure import failure as job
from gpu_acceptance.measure.failure import Place

_PLANTED = """
import contextlib, ctypes, os, signal, socket, sys, time
from pathlib import Path

import torch.distributed as dist

from gpu_acceptance.measure import failure_rank as rank

{fault}

rank.main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
"""


def plant(fault, folder, monkeypatch):
    """All ranks of the jobs that this test starts run this first. The mark is this test's own: others may run beside it."""
    (folder / "planted_rank.py").write_text(_PLANTED.format(fault=fault))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setattr(job, "_RANK", "planted_rank")
    monkeypatch.setattr(job, "_MARK", f"GPU_ACCEPTANCE_JOB_{secrets.token_hex(4)}")


def marked():
    """Processes of any such job."""
    return job._marked(f"{job._MARK}=")


def place(num_ranks=2):
    (one,) = nodes(num_ranks)
    return one


def nodes(*num_ranks):
    """One place for each of these nodes, all on this machine."""
    port = free_port()
    return [Place(node, len(num_ranks), number, "127.0.0.1", port) for node, number in enumerate(num_ranks)]


def folder(parent: Path, node: int = 0) -> Path:
    """An empty one for what a job of this node writes."""
    made = parent / f"job-{node}"
    made.mkdir()
    return made
