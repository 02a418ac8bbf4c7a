"""Many short validations, with the faults that the plan of the soak holds (tests/soak.py)."""

import ctypes
import json
import os
import signal
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

SUBJECT = Path(__file__).stem.removeprefix("test_")
PLAN = json.loads((Path(__file__).parents[1] / "plan.json").read_text())
FAULTS_IN_CALL = {
    "raises": lambda: [][0],
    "exits": lambda: os._exit(7),
    "segfaults": lambda: ctypes.string_at(0),
    "is killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "hangs": lambda: time.sleep(600),
    "is stopped": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "asserts": lambda: pytest.fail("this rank found something wrong"),
}
DEADLINE_S = 8


def short(number: int, fresh: bool, **_):
    return pytest.param(number, marks=[pytest.mark.worker(fresh=True)] if fresh else [])


@pytest.fixture
def fault(ranks, number):
    """The fault of this validation where this is its rank; else an empty text."""
    here = PLAN[number]["fault"] if ranks.rank == PLAN[number]["rank"] else ""
    if here == "fails in set-up":
        raise OSError("no such device")
    if here == "skips":
        pytest.skip("not in the mood")
    return here


@pytest.mark.deadline(DEADLINE_S)
@pytest.mark.parametrize("number", [short(number, **step) for number, step in enumerate(PLAN) if step["subject"] == SUBJECT])
def test_short(check, fault, ranks, number):
    if fault in FAULTS_IN_CALL:
        FAULTS_IN_CALL[fault]()
    total = torch.ones(1)
    dist.all_reduce(total)
    assert int(total) == ranks.world_size
    check(f"{SUBJECT}.value", 0.5 if fault == "misses" else 5.0, "GB/s")
