"""The declared nodes against those that are here: every difference named."""

import pytest

from gpu_acceptance.inventory.declared import DeclaredNode, Seen, by_declared_name, difference

DECLARED = (DeclaredNode(host="node-00", gpus=8), DeclaredNode(host="node-01", gpus=8, rack="B2"))


def seen(*nodes, ranks=2):
    """Each node with its host and its GPUs, told by every rank of it."""
    return [Seen(number, host, num_gpus) for number, (host, num_gpus) in enumerate(nodes) for _ in range(ranks)]


@pytest.mark.parametrize(
    ("nodes", "says"),
    [
        ([("node-00", 8), ("node-01", 8)], "none"),
        ([("node-01", 8), ("node-00", 8)], "none"),
        ([("node-00", 8)], "node-01, rack B2 is declared and has no rank"),
        ([("node-00", 8), ("node-01", 7)], "node-01, rack B2 has 7 GPUs, not 8"),
        ([("node-00", 8), ("node-01", 8), ("node-02", 8)], "node-02 is not declared"),
        (
            [("node-00", 8), ("node-01", 8), ("node-01", 4)],
            "node-01, rack B2 is there 2 times, as nodes 1, 2; node-01, rack B2 has 4 GPUs, not 8",
        ),
        ([("node-00.cluster.internal", 8), ("node-01", 7)], "node-01, rack B2 has 7 GPUs, not 8"),
        (
            [("node-00.a", 8), ("node-00.b", 8), ("node-01", 8)],
            "node-00 is declared and has no rank; node-00.a is not declared; node-00.b is not declared",
        ),
        ([("node-0", 8), ("node-01", 8)], "node-00 is declared and has no rank; node-0 is not declared"),
    ],
)
def test_differences(nodes, says):
    assert difference(DECLARED, seen(*nodes)) == says


def test_a_declared_name_may_have_the_domain():
    assert difference([DeclaredNode(host="node-00.cluster.internal", gpus=8)], seen(("node-00", 8))) == "none"
    assert by_declared_name(["node-00", "node-1"], ["node-00.x", "node-10"]) == {"node-00": "node-00.x"}


def test_the_most_that_any_rank_sees_counts():
    """A container may hide GPUs from some ranks of a node."""
    assert difference(DECLARED[:1], [Seen(0, "node-00", 1), Seen(0, "node-00", 8)]) == "none"


def test_many_differences_are_counted_where_they_do_not_fit():
    many = [DeclaredNode(host=f"node-{number:03d}", gpus=8) for number in range(500)]
    text = difference(many, [])
    assert text.startswith("node-000 is declared and has no rank; node-001 is declared")
    assert text.endswith("more")
    assert len(text) < 1_000
