"""Every rank measures a value above its limit, and keeps a curve."""


def test_value(check, ranks, record_curve):
    check("passes.value", 2.0 + ranks.rank, "GB/s")
    record_curve("passes.loss", [float(ranks.rank), float("nan"), 0.5], "nats")
