"""The fixture with which end-to-end tests check a row of the fault matrix and tell docs/faults.md of it."""

from pathlib import Path

import pytest
from faults import Seen


def pytest_addoption(parser):
    parser.addoption("--faults", type=Path, help="a folder to write what each fault ended in, for tools/make_faults.py")


@pytest.fixture
def seen(request):
    return Seen(request.config.getoption("--faults"), request.node.nodeid)
