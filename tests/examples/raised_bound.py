"""Holds by its profile; the overlay beside it, raised_bound.site.yaml, asks for more than there is."""


def test_value(check):
    check("raised_bound.value", 2.0, "GB/s")
