"""A library that is missing on one node only."""

import os

if os.environ.get("RANK") == "1":
    raise ImportError("libexample.so.1: cannot open shared object file")


def test_value(check):
    check("cannot_be_collected.value", 5.0, "GB/s")
