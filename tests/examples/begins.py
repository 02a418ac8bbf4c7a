"""Comes before the others: what it measured must be in the report, whatever they do."""


def test_value(check, ranks):
    check("begins.value", 5.0 + ranks.rank, "GB/s")
