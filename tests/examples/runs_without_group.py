"""Needs no process group: runs even where none could be formed."""

import pytest


@pytest.mark.no_group
def test_alone(check):
    check("runs_without_group.value", 5.0, "GB/s")
