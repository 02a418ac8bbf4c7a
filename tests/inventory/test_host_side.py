"""Which readings from host memory count as made beside a GPU."""

import pytest

from gpu_acceptance.inventory.answer import Missing, Why
from gpu_acceptance.inventory.binding import HostSide
from gpu_acceptance.inventory.cpu import NumaNode

NODE_1 = NumaNode(1, "48-50,60", 2**30)
UNKNOWN = Missing(Why.NOT_SUPPORTED, "0000:18:00.0: the kernel knows no NUMA node of it; there are NUMA nodes 0-1")
NOT_BESIDE = "pages of host memory were not on NUMA node 1, beside the GPU, and at most 1 % may be: it has no room, or a policy forbids it"


def reading(node, pages_by_node, is_bound=True, num_pages=None):
    """Where it is not said how many pages there are: as many as were told of."""
    num_pages = sum(pages_by_node.values()) if num_pages is None else num_pages
    return HostSide(node).reading(55.0, pages_by_node, num_pages=num_pages, is_bound=is_bound)


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


@pytest.mark.parametrize(("far", "counts"), [(1, True), (100, True), (101, False), (9999, False)])
def test_one_percent_may_lie_elsewhere(far, counts):
    assert (reading(NODE_1, {0: far, 1: 10_000 - far}) == 55.0) == counts


@pytest.mark.parametrize(("pages_by_node", "num_pages"), [({1: 4096}, 16384), ({1: 16383}, 16384), ({0: 1, 1: 16384}, 16384)])
def test_what_is_not_told_of_all_pages_does_not_count(pages_by_node, num_pages):
    told = sum(pages_by_node.values())
    said = f"not supported (/proc/self/numa_maps told of {told} of {num_pages} pages of host memory where they were)"
    assert str(reading(NODE_1, pages_by_node, num_pages=num_pages)) == said


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
            f"not there (10 of 100 {NOT_BESIDE})",
        ),
        (
            NODE_1,
            {0: 1, 2: 2},
            True,
            f"not there (3 of 3 {NOT_BESIDE})",
        ),
    ],
)
def test_what_does_not_says_why(node, pages_by_node, is_bound, text):
    found = reading(node, pages_by_node, is_bound)
    assert isinstance(found, Missing)
    assert str(found) == text
