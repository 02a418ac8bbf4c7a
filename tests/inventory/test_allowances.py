"""What a process may use: soft and hard, with `unlimited` a value of its own."""

import shutil

import pytest
from host_root import LIMITS, fill, x86_node

from gpu_acceptance.inventory import cgroup
from gpu_acceptance.inventory.answer import Missing, Why
from gpu_acceptance.inventory.cgroup import Allowance


@pytest.fixture
def node(tmp_path):
    return x86_node(tmp_path)


def test_a_server(node):
    found = cgroup.read_allowances(node)
    assert found.memlock_bytes == Allowance("unlimited", "unlimited")
    assert found.stack_bytes == Allowance(8388608, "unlimited")
    assert found.nofile == Allowance(1024, 1048576)
    assert found.nproc == Allowance(8254567, 8254567)
    assert found.shm.size_bytes == shutil.disk_usage(node).total
    assert found.cgroup.memory_bytes == "unlimited"


def test_a_row_that_is_not_there(node):
    fill(node, {"proc/self/limits": LIMITS.replace("Max locked memory ", "Max unlocked memory ")})
    found = cgroup.read_allowances(node)
    assert found.memlock_bytes == Missing(Why.NOT_THERE, f"{node / 'proc/self/limits'} has no Max locked memory")
    assert found.nofile == Allowance(1024, 1048576)


@pytest.mark.parametrize("row", ["8388608 bytes", "8388608 infinite bytes", "-1 -1 bytes", "1 2 3 bytes"])
def test_a_row_of_another_form(node, row):
    fill(node, {"proc/self/limits": f"Max locked memory         {row}\n"})
    assert cgroup.read_allowances(node).memlock_bytes == Missing(
        Why.UNREADABLE, f"{node / 'proc/self/limits'}: Max locked memory is {row!r}"
    )


def test_without_proc_and_shm(node):
    (node / "proc/self/limits").unlink()
    shutil.rmtree(node / "dev")
    found = cgroup.read_allowances(node)
    assert found.nproc == Missing(Why.NOT_THERE, str(node / "proc/self/limits"))
    assert found.shm == Missing(Why.NOT_THERE, str(node / "dev/shm"))
