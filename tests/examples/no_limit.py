"""A metric that the profile does not know."""


def test_value(check):
    check("no_limit.value", 5.0, "GB/s")
    check("no_limit.unknown", 5.0, "GB/s")
