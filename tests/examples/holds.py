"""Stays for an hour at the place that HOLDS_AT names, on the last rank; the others wait for it where they then must."""

import atexit
import os
import time
from pathlib import Path

import pytest

IN_WORKER = "GPU_ACCEPTANCE_SUPERVISOR" in os.environ
IS_LAST = int(os.environ.get("RANK", "0")) == int(os.environ.get("WORLD_SIZE", "1")) - 1


def hold(place):
    if os.environ.get("HOLDS_AT") == place and IS_LAST:
        Path("holds").touch()
        time.sleep(3600)


hold("import of the worker" if IN_WORKER else "collection")


if IN_WORKER:
    atexit.register(hold, "end of the worker")


@pytest.fixture
def part():
    hold("set-up")
    yield
    hold("teardown")


def test_before(check):
    check("holds.value", 5.0, "GB/s")


def test_held(check, part):
    check("holds.value", 5.0, "GB/s")
    hold("call")


def test_next(check):
    check("holds.value", 5.0, "GB/s")
