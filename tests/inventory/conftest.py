"""Commands of Slurm for one test."""

import pytest

from tests.inventory.slurm_commands import Commands


@pytest.fixture
def commands(tmp_path):
    return Commands(tmp_path)
