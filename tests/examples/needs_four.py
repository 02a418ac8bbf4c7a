"""Not applicable in a job of fewer than 4 ranks."""

import pytest

pytestmark = pytest.mark.min_ranks(4)


def test_value(check):
    check("needs_four.value", 5.0, "GB/s")
