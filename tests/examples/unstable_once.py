"""Blocks that differ too much, but only in the first attempt."""

SPREADS = [30.0, 1.0]


def test_value(check):
    check("unstable_once.value", 5.0, "GB/s", spread_percent=SPREADS.pop(0))
