"""The marker would turn any failure into a pass."""

import pytest


@pytest.mark.xfail(reason="known to be slow here")
def test_misses(check):
    check("xfail_marker.value", 5.0, "GB/s")
    raise AssertionError("far too slow")
