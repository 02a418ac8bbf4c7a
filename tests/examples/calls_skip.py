"""A skip inside the call comes too late: other ranks may wait in a collective."""

import pytest


def test_value(check, ranks):
    check("calls_skip.value", 5.0, "GB/s")
    if ranks.rank == 1:
        pytest.skip("not in the mood")
