"""As leaves_in_doubt.py: a set-up that fails after it replaced a function, and CPUs that are left to nobody."""

import math
import os

import pytest

SQRT = math.sqrt


@pytest.fixture
def failing_set_up(ranks):
    if ranks.rank == 0:
        math.sqrt = lambda number: number
        raise ValueError("set-up")


def measure(check):
    check("leaves_more_in_doubt.value", 5.0 if math.sqrt == SQRT else 0.0, "GB/s")


def test_set_up(failing_set_up, check):
    measure(check)


def test_after_set_up(check):
    measure(check)


def test_affinity(check, ranks):
    measure(check)
    if ranks.rank == 1:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def test_after_affinity(check):
    measure(check)
