"""Validations that leave what cannot be put back: each is an error, and the next one passes in new workers."""

import math
import os
import threading
import time

import pytest

SOUND = time.perf_counter, math.sqrt


def burn():
    while True:
        pass


def narrow():
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


# By rank: two of each, since a rank that spoils three generations ends the run.
LEFT = {
    "clock": (0, lambda: setattr(time, "perf_counter", lambda: SOUND[0]() / 2)),
    "busy_thread": (1, lambda: threading.Thread(target=burn, daemon=True, name="burner").start()),
    "failing_set_up": (0, None),
    "affinity": (1, narrow),
}


def is_sound():
    burners = [thread for thread in threading.enumerate() if thread.name == "burner"]
    return (time.perf_counter, math.sqrt) == SOUND and not burners


@pytest.fixture
def set_up(request, ranks):
    if request.node.callspec.params["what"] == "leave-failing_set_up" and ranks.rank == LEFT["failing_set_up"][0]:
        math.sqrt = lambda number: number
        raise ValueError("set-up")


@pytest.mark.parametrize("what", [way for name in LEFT for way in (f"leave-{name}", f"find-{name}")])
def test_doubt(what, set_up, check, ranks):
    way, _, name = what.partition("-")
    rank, leave = LEFT[name]
    check("leaves_in_doubt.value", 5.0 if is_sound() else 0.0, "GB/s")
    if way == "leave" and ranks.rank == rank and leave:
        leave()
