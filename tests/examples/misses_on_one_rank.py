"""The figure depends on the rank by construction: rank 1 alone is too low."""


def test_value(check, ranks):
    check("misses_on_one_rank.value", 2.0 - ranks.rank * 1.5, "GB/s")


def test_other(check):
    check("misses_on_one_rank.value", 3.0, "GB/s")
