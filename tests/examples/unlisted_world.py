"""The limit names jobs of 4 and 8 GPUs per node; in a job of 2 there is none, and nothing is interpolated."""


def test_value(check):
    check("unlisted_world.value", 5.0, "GB/s")
