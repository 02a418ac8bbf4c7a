"""Every rank measures a value above its limit."""


def test_value(check, ranks):
    check("passes.value", 2.0 + ranks.rank, "GB/s")
