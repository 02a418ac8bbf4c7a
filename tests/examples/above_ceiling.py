"""A rate that no hardware can reach is a measuring error."""


def test_value(check):
    check("above_ceiling.value", 101.0, "GB/s")
