"""Gathers from all ranks, though it needs no process group."""

import pytest


@pytest.mark.no_group
def test_gathers_alone(check, ranks):
    check("gathers_alone.value", float(len(ranks.gather("rank", ranks.rank))), "GB/s")
