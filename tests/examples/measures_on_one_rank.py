"""One rank checks, the other says nothing."""


def test_value(check, ranks):
    if ranks.rank == 0:
        check("measures_on_one_rank.value", 5.0, "GB/s")
