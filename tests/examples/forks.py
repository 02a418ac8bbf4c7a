"""A test that forks: its copy runs on, and must not speak for the worker."""

import os
import time


def test_forks(check):
    check("forks.value", 5.0, "GB/s")
    if os.fork() == 0:
        time.sleep(4)


def test_next(check):
    time.sleep(6)
    check("forks.value", 5.0, "GB/s")
    raise OSError("seen, whatever the copy says")
