"""Another checkout on another node: one rank knows a test that the others do not."""

import os


def test_value(check):
    check("differs_between_ranks.value", 5.0, "GB/s")


if os.environ.get("RANK") == "1":

    def test_only_here(check):
        check("differs_between_ranks.value", 5.0, "GB/s")
