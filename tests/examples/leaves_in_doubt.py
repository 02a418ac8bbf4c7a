"""Validations that leave what cannot be put back: each is an error, and the next one passes in new workers."""

import threading
import time

import pytest

CLOCK = time.perf_counter


def burn():
    while True:
        pass


LEFT = {  # by rank
    "clock": (0, lambda: setattr(time, "perf_counter", lambda: CLOCK() / 2)),
    "busy_thread": (1, lambda: threading.Thread(target=burn, daemon=True, name="burner").start()),
}


def is_sound():
    return time.perf_counter == CLOCK and "burner" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize("what", [way for name in LEFT for way in (f"leave-{name}", f"find-{name}")])
def test_doubt(what, check, ranks):
    way, _, name = what.partition("-")
    rank, leave = LEFT[name]
    check("leaves_in_doubt.value", 5.0 if is_sound() else 0.0, "GB/s")
    if way == "leave" and ranks.rank == rank:
        leave()
