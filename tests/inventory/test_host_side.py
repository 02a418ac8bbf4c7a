"""Which readings from host memory count as made beside a GPU."""

import pytest

from gpu_acceptance.inventory.answer import Missing, Why
from gpu_acceptance.inventory.cpu import NumaNode
from gpu_acceptance.inventory.host_side import HostSide

NODE_1 = NumaNode(1, "48-50,60", 2**30)
UNKNOWN = Missing(Why.NOT_SUPPORTED, "0000:18:00.0: the kernel knows no NUMA node of it; there are NUMA nodes 0-1")


def reading(node, pages_by_node, is_bound=True):
    return HostSide(node).reading(55.0, pages_by_node, is_bound=is_bound)


@pytest.mark.parametrize(
    ("node", "cpus"),
    [
        (NODE_1, frozenset({48, 49, 50, 60})),
        (NumaNode(2, "", 2**30), None),
        (NumaNode(1, UNKNOWN, 2**30), None),
        (UNKNOWN, None),
        (None, None),
    ],
)
def test_the_cpus_beside_a_gpu(node, cpus):
    assert HostSide(node).cpus == cpus


def test_without_a_gpu_every_reading_counts():
    assert reading(None, {}, is_bound=False) == 55.0


@pytest.mark.parametrize("is_bound", [True, False])
def test_what_all_lies_beside_the_gpu_counts(is_bound):
    assert reading(NODE_1, {1: 131072}, is_bound) == 55.0


@pytest.mark.parametrize(
    ("node", "pages_by_node", "is_bound", "text"),
    [
        (UNKNOWN, {0: 10}, False, str(UNKNOWN)),
        (NODE_1, {}, True, "not supported (/proc/self/numa_maps does not say where the host memory was)"),
        (
            *(NODE_1, {0: 10, 1: 5}, False),
            "not permitted (this process may run on no CPU of NUMA node 1, beside the GPU: the host memory was elsewhere)",
        ),
        (
            NODE_1,
            {0: 10, 1: 90},
            True,
            "not there (10 of 100 pages of host memory were not on NUMA node 1, beside the GPU: it has no room, or a policy forbids it)",
        ),
        (
            NODE_1,
            {0: 1, 2: 2},
            True,
            "not there (3 of 3 pages of host memory were not on NUMA node 1, beside the GPU: it has no room, or a policy forbids it)",
        ),
    ],
)
def test_what_does_not_says_why(node, pages_by_node, is_bound, text):
    found = reading(node, pages_by_node, is_bound)
    assert isinstance(found, Missing)
    assert str(found) == text
