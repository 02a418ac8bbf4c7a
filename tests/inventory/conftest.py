"""A node, commands of Slurm and an API of Kubernetes for one test."""

import pytest
from api_server import cluster
from host_root import x86_node

from gpu_acceptance.inventory import kubernetes
from tests.inventory.slurm_commands import Commands


@pytest.fixture
def commands(tmp_path):
    return Commands(tmp_path)


@pytest.fixture
def node(tmp_path):
    return x86_node(tmp_path)


@pytest.fixture
def api(tmp_path, monkeypatch):
    with cluster(tmp_path / "account") as found:
        monkeypatch.setattr(kubernetes, "ACCOUNT", found.account)
        yield found
