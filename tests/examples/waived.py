"""Misses its limit; --waive accepts that, and it is shown."""


def test_value(check):
    check("waived.value", 0.5, "GB/s")
