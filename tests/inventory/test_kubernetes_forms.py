"""Odd values in every place of an answer of the Kubernetes API: it is read or unreadable, and every message is printable."""

import copy
from functools import partial

import pytest
from api_server import JOB_UID, in_container, node, pod, unscheduled

from gpu_acceptance.cli.meet import await_pods
from gpu_acceptance.inventory import kubernetes, kubernetes_health, kubernetes_node, kubernetes_own
from gpu_acceptance.inventory.answer import Missing, Why

ODD = (None, "", "x\n\x1b[2J\u202e", "9" * 400, 7, -1.5, float("inf"), True, [], {}, [None], ["x"], {"x": None}, [[]], [{}])
SELECTING = {
    "nodeSelector": {"a": "b"},
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {
                        "matchExpressions": [
                            {"key": "a", "operator": "In", "values": ["b"]},
                            {"key": "rack", "operator": "Gt", "values": ["3"]},
                        ]
                    }
                ]
            }
        }
    },
}


def places(plain, path=()):
    yield path
    if isinstance(plain, dict | list):
        for key, value in plain.items() if isinstance(plain, dict) else enumerate(plain):
            yield from places(value, (*path, key))


def spoilt(plain):
    """Yield copies with an odd value in each place in turn."""
    for path in places(plain):
        for odd in ODD:
            changed = {"it": copy.deepcopy(plain)}
            inner = changed
            for key in ("it", *path)[:-1]:
                inner = inner[key]
            inner[("it", *path)[-1]] = odd
            yield changed["it"]


def assert_read_or_unreadable(found):
    assert not isinstance(found, Missing) or found.missing is Why.UNREADABLE


@pytest.mark.parametrize(
    "one",
    [
        unscheduled("late", "0/4 nodes are available"),
        in_container("late", "Pending", waiting={"reason": "ErrImagePull", "message": "no such host"}),
        in_container("late", "Failed", init=True, terminated={"exitCode": 1, "reason": "Error", "message": "a\nb"}),
    ],
    ids=["unscheduled", "waiting", "failed"],
)
def test_a_pod_that_is_awaited(one):
    num_read = 0
    for other in spoilt(one):
        found = kubernetes.parsed([other], "x", kubernetes._pods_of_job)
        assert_read_or_unreadable(found)
        if not isinstance(found, Missing):
            num_read += 1
            lines = []
            await_pods(lambda found=found: found, 2, 0, lines.append)
            assert all(line.isprintable() for line in lines), lines
    assert num_read


def test_a_node_that_was_not_tested():
    for other in spoilt(node()):
        for spec in ({}, SELECTING):
            found = kubernetes.parsed([other], "x", partial(kubernetes_health._candidates, spec, tuple))
            assert_read_or_unreadable(found)


def test_a_selector_of_a_pod():
    labelled = node()
    labelled["metadata"]["labels"] = {"a": "b", "rack": "7"}
    assert kubernetes.parsed([labelled], "x", partial(kubernetes_health._candidates, SELECTING, tuple))
    for spec in spoilt(SELECTING):
        assert_read_or_unreadable(kubernetes.parsed([labelled], "x", partial(kubernetes_health._candidates, spec, tuple)))


def test_a_node_of_the_run_and_the_pods_on_it():
    for other in spoilt(node()):
        told = kubernetes_own.Answers(kubernetes.parsed(other, "x", kubernetes_node.read_node), (), "uid")
        assert_read_or_unreadable(told.node)
        for facts in (kubernetes_health.node(told), kubernetes_health.devices(told), kubernetes_health.own_facts(told)):
            for metric, value, *_ in facts:
                assert not isinstance(value, str) or value.isprintable(), (metric, value)
    for other in spoilt(pod("mine", "uid", JOB_UID, "8")):
        assert_read_or_unreadable(kubernetes.parsed({"metadata": {}, "items": [other]}, "x", kubernetes_own._pods))
