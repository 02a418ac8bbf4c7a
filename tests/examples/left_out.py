"""The second one is left out where a run has less time than its deadline, and what the module holds stays up for it."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def held():
    return 5.0


def test_first(check, held):
    check("left_out.value", held, "GB/s")


@pytest.mark.deadline(100_000)
def test_second(check, held):
    check("left_out.value", held, "GB/s")
