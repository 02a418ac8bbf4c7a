"""Every rank misses its limit."""


def test_value(check):
    check("misses.value", 0.5, "GB/s")
