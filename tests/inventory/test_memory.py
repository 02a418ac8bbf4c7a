"""Memory: bytes as the kernel counts them, huge pages by size, settings by name."""

import shutil

import pytest
from host_root import fill, x86_node

from gpu_acceptance.inventory import system
from gpu_acceptance.inventory.answer import Missing, Why
from gpu_acceptance.inventory.system import HugePages, Memory

POOLS = "sys/kernel/mm/hugepages"


@pytest.fixture
def node(tmp_path):
    return x86_node(tmp_path)


def test_a_server(node):
    assert system.read_memory(node) == Memory(
        total_bytes=2113385208 * 1024,
        available_bytes=2052304364 * 1024,
        swap_bytes=8388604 * 1024,
        hugepages=(HugePages(2 * 2**20, 64, 60), HugePages(2**30, 0, 0)),
        transparent_hugepages="madvise",
        numa_balancing_mode=0,
    )


def test_a_kernel_without_huge_pages_and_numa(node):
    shutil.rmtree(node / "sys/kernel")
    (node / "proc/sys/kernel/numa_balancing").unlink()
    found = system.read_memory(node)
    assert found.hugepages == Missing(Why.NOT_THERE, str(node / POOLS))
    assert (found.transparent_hugepages.missing, found.numa_balancing_mode.missing) == (Why.NOT_THERE, Why.NOT_THERE)


def test_a_pool_that_does_not_answer_is_kept(node):
    (node / POOLS / "hugepages-2048kB/free_hugepages").unlink()
    found = system.read_memory(node).hugepages[0]
    assert (found.page_bytes, found.num_pages, found.num_free.missing) == (2 * 2**20, 64, Why.NOT_THERE)


def test_a_pool_of_no_size(node):
    (node / POOLS / "hugepages-big").mkdir()
    assert system.read_memory(node).hugepages == Missing(Why.UNREADABLE, f"{node / POOLS} holds 'hugepages-big'")


def test_what_an_old_kernel_does_not_estimate_is_not_there(node):
    fill(node, {"proc/meminfo": "MemTotal:       2113385208 kB\nSwapTotal:             0 kB\n"})
    found = system.read_memory(node)
    assert found.available_bytes == Missing(Why.NOT_THERE, f"{node / 'proc/meminfo'} has no MemAvailable")
    assert found.swap_bytes == 0
