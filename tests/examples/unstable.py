"""Blocks that differ too much, in both attempts."""

from gpu_acceptance.measure.pace import Spread


def test_value(check):
    check("unstable.value", 5.0, "GB/s", spread=Spread(30.0))
