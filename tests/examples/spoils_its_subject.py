"""Three validations of one subject end rank 1's worker, one after the other; the fourth would pass."""

import os

import pytest


@pytest.mark.parametrize("number", range(3))
def test_dies(number, check, ranks):
    check("spoils_its_subject.value", 5.0, "GB/s")
    if ranks.rank == 1:
        os._exit(7)


def test_left_out(check):
    check("spoils_its_subject.value", 5.0, "GB/s")
