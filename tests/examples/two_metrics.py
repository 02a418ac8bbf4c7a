"""Each of two tests measures one metric of the subject; `-k` may leave one of them out."""


def test_first(check):
    check("two_metrics.first", 5.0, "GB/s")


def test_second(check):
    check("two_metrics.second", 5.0, "GB/s")
