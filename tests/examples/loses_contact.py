"""For the conftest of a suite on four hosts: some of them are silenced for each other while a validation runs, and reach all others.

As where a link is dead and no connection sees a reset: frames go to a hardware address of no host. A wait on a device for
a lost peer never ends there.
"""

import platform
import subprocess
import time

import pytest

from gpu_acceptance.worker import plugin as worker_plugin

SILENT = {"test_rails": [(1, 2), (2, 3)], "test_pairs": [(1, 3)]}  # nodes; node 0 has the control store
NOWHERE = "02:00:00:00:00:01"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item):
    yield
    for peer in lost_peers(item):
        neighbour("replace", peer, "lladdr", NOWHERE, "nud", "permanent")
        worker_plugin.wait_for_device = lambda: time.sleep(600)


def pytest_runtest_teardown(item):
    for peer in lost_peers(item):
        neighbour("del", peer)


def lost_peers(item):
    node = int(platform.node().removeprefix("node-"))
    pairs = SILENT.get(item.name, []) if "silent" in item.nodeid else []
    return [sum(pair) - node for pair in pairs if node in pair]


def neighbour(action, node, *what):
    subprocess.run(["ip", "neigh", action, f"192.0.2.{node + 1}", *what, "dev", "eth0"], check=True)
