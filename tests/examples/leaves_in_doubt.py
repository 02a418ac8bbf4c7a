"""Validations that leave what nobody can put back: each is an error, and the next one passes in new workers."""

import os
import signal
import threading
import time

import pytest

SOUND = time.perf_counter


def burn():
    while True:
        pass


def narrow():
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


# By rank: two of each, since a rank that spoils three generations ends the run.
LEFT = {
    "clock": (0, lambda: setattr(time, "perf_counter", lambda: SOUND() / 2)),
    "busy_thread": (1, lambda: threading.Thread(target=burn, daemon=True, name="burner").start()),
    "signal_mask": (0, lambda: signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})),
    "affinity": (1, narrow),
}


def is_sound():
    burners = [thread for thread in threading.enumerate() if thread.name == "burner"]
    return time.perf_counter is SOUND and not burners and not signal.pthread_sigmask(signal.SIG_BLOCK, ())


@pytest.mark.parametrize("what", [way for name in LEFT for way in (f"leave-{name}", f"find-{name}")])
def test_doubt(what, check, ranks):
    way, _, name = what.partition("-")
    rank, leave = LEFT[name]
    check("leaves_in_doubt.value", 5.0 if is_sound() else 0.0, "GB/s")
    if way == "leave" and ranks.rank == rank:
        leave()
