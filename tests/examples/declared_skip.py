"""Skipped, and the profile said beforehand that it does not apply here."""

import pytest


@pytest.fixture
def infiniband():
    pytest.skip("no InfiniBand device")


@pytest.mark.usefixtures("infiniband")
def test_link(check):
    check("declared_skip.value", 5.0, "GB/s")
