"""With -x nothing runs after the first failure, on no rank."""


def test_first(check):
    check("stops_at_the_first_failure.value", 5.0, "GB/s")


def test_second(check, ranks):
    check("stops_at_the_first_failure.value", 0.5 if ranks.rank == 1 else 5.0, "GB/s")


def test_third(check):
    check("stops_at_the_first_failure.value", 5.0, "GB/s")
