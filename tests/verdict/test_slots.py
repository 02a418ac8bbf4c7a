"""Slots of two runs whose nodes share one host name, as where each calls itself `localhost`."""

import pytest

from gpu_acceptance.verdict.comparison import compare
from gpu_acceptance.verdict.slots import match_slots
from tests.report import samples
from tests.verdict.comparisons import HBM, later, scaled, with_row
from tests.verdict.judged_anew import judged_anew


def identities(*nodes, chassis=True, uuids=True, hosts=("localhost", "localhost")):
    """Two nodes of 4 ranks. `nodes`: which of two boxes is node 0, and which node 1; box 2 is box 1 with another GPU 0."""
    for rank in range(8):
        node, local_rank = divmod(rank, 4)
        box = nodes[node]
        gpus = [samples.gpu(index, box % 2) for index in range(4)]
        gpus[0] = gpus[0].model_copy(update={"uuid": f"GPU-{box}"})
        gpus = [gpu if uuids else gpu.model_copy(update={"uuid": "", "serial": ""}) for gpu in gpus]
        yield samples.identity(rank, 4, 2).model_copy(
            update={
                "node": node,
                "local_rank": local_rank,
                "host": hosts[node],
                "gpus": tuple(gpus) if uuids else (),
                "gpu_uuid": "",
                "chassis_serial": f"CH-{box % 2}" if chassis else "",
            }
        )


def run_of(*nodes, **more):
    return judged_anew(samples.accepted(), ranks=identities(*nodes, **more))


@pytest.mark.parametrize("slow", [1, 6])
def test_a_slow_gpu_of_either_node_is_worse(slow):
    before = run_of(0, 1)
    found = compare(before, later(with_row(before, HBM, scaled("hbm.triad.bandwidth", 0.9, slow))))
    assert [(one.metric, one.place) for one in found.in_direction("worse")] == [
        ("hbm.triad.bandwidth", f"localhost (node {slow // 4}), GPU {slow % 4}")
    ], found.line
    assert found.exit_code == 1
    assert found.num_figures == compare(samples.accepted(), later(samples.accepted())).num_figures


@pytest.mark.parametrize(
    ("earlier", "later_nodes", "known", "partner"),
    [
        ((0, 1), (1, 0), {}, 1),
        ((0, 1), (1, 0), {"chassis": False}, 1),
        ((0, 1), (2, 0), {"chassis": False}, 1),
        ((0, 1), (1, 0), {"chassis": False, "uuids": False}, 0),
        ((0, 1), (1, 0), {"hosts": ("localhost", "node-02")}, 0),
        ((0, 0), (0, 0), {}, 0),
    ],
    ids=["chassis", "gpus", "one of them with another GPU", "order", "names that differ", "one serial for all"],
)
def test_nodes_that_came_in_another_order(earlier, later_nodes, known, partner):
    """`partner`: which node of the earlier run is node 0 of the later one."""
    before, after = match_slots(run_of(*earlier, **known), run_of(*later_nodes, **known))
    assert after.nodes[0] == before.nodes[partner]
    assert sorted(after.places.values()) == sorted(before.places.values())
    assert len(set(after.places.values())) == 8


def test_a_node_that_came_instead_of_another_is_named():
    before, after = run_of(0, 1, hosts=("a", "b")), later(run_of(0, 1, hosts=("a", "a")))
    (nodes,) = [str(one) for one in compare(before, after).differing if one.what == "nodes"]
    assert nodes == "nodes: a (node 0), b -> a (node 0), a (node 1 of the later run)"
