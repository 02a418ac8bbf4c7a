"""A worker that is stopped reads nothing any more, however much its supervisor has for it."""

import os
import signal
import threading
import time

import pytest


@pytest.mark.deadline(6)
def test_stopped(check, ranks):
    check("stops_reading.value", 5.0, "GB/s")
    if ranks.rank == 0:
        threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGSTOP)).start()
    else:
        time.sleep(2)
    for number in range(200):
        ranks.gather(str(number), "x" * 2000)


def test_next(check):
    check("stops_reading.value", 5.0, "GB/s")
