"""Asks for workers of its own with a text where a truth is meant."""

import pytest


@pytest.mark.worker(fresh="no")
def test_value(check):
    check("wrong_markers.value", 5.0, "GB/s")
