"""Blocks that differ too much, in both attempts."""


def test_value(check):
    check("unstable.value", 5.0, "GB/s", spread_percent=30.0)
