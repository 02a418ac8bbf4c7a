"""A skip that no profile declared beforehand."""

import pytest


@pytest.mark.skipif(True, reason="no time for this today")
def test_skips(check):
    check("skips.value", 5.0, "GB/s")
