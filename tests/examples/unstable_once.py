"""Blocks that differ too much, but only in the first attempt."""

from gpu_acceptance.measure.pace import Spread

SPREADS = [30.0, 1.0]


def test_value(check):
    check("unstable_once.value", 5.0, "GB/s", spread=Spread(SPREADS.pop(0)))
