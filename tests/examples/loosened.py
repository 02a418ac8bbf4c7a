"""Misses the limit of its profile and holds that of the overlay beside it, loosened.site.yaml."""


def test_value(check):
    check("loosened.value", 0.5, "GB/s")
