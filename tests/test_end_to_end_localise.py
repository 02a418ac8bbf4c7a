"""Four hosts with a link each, one of them slow: a run must name it, and only it. And one that dies while pairs are measured."""

import re
import shutil

import pytest
from hosts import connected, needs_hosts
from suite import EXAMPLES, shipped_suite

pytestmark = [pytest.mark.launcher, pytest.mark.timeout(600), needs_hosts]

NUM_NODES, SLOW, DIES = 4, 2, 3
MBIT_PER_S, SLOW_MBIT_PER_S = 100, 6


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """What the first of four hosts was left with, after a run in which one link was slow and one host died at the end."""
    suites = [shipped_suite(tmp_path_factory.mktemp("localise") / f"node-{node}", "localise") for node in range(NUM_NODES)]
    for suite in suites:
        shutil.copy(EXAMPLES / "dies_in_a_tournament.py", suite / "acceptance" / "test_localise_dies.py")
    with connected(suites) as hosts:
        for node in range(NUM_NODES):
            hosts.shape(node, SLOW_MBIT_PER_S if node == SLOW else MBIT_PER_S)
        for node in range(NUM_NODES):
            hosts.start_one(node, script=("-m", "pytest", "acceptance/", "--localise"))
        first, *_ = [host.wait() for host in hosts.hosts]
        return first


def test_the_node_with_the_slow_link_is_named_and_no_other(ended):
    row = ended.row("test_localise.py::test_pairs")
    assert row.outcome == "failed", ended.output
    assert [limit.metric for limit in row.judgements if limit.status == "missed"] == ["localise.node.deficit"]
    (missed,) = row.message.splitlines()
    had = r"[\d.e-]+ with node [013] \(node-[013]\)"
    assert re.fullmatch(
        rf"localise\.node\.deficit = [\d.]+ % \([\d.e-]+ GB/s, median node [\d.e-]+: {had}, {had}, {had}; "
        rf"again, with nodes that passed: {had}, {had}, {had}; rail 0 slowest in 6 of 6 pairs\), "
        rf"need <= 50 % \[cpu\.yaml: policy: .*\] on node {SLOW} \(node-{SLOW}\)",
        missed,
    ), missed
    assert missed in ended.reasons
    assert ended.verdict_line.startswith("REJECTED: ")


def test_every_rank_knows_the_suspects_and_nothing_that_moved_was_wrong(ended):
    row = ended.row("test_localise.py::test_pairs")
    told = [{figure.metric.removeprefix("localise."): figure.value for figure in rank.figures} for rank in row.attempts[-1].ranks]
    suspects = {one["pairs.suspects"] for one in told}
    assert len(suspects) == 1
    assert re.fullmatch(rf"node {SLOW} \(node-{SLOW}\) [\d.]+ %", suspects.pop())
    assert {(one["pairs.wrong"], one["pairs.rounds"]) for one in told} == {(0, 3 + 3)}
    assert [one["node.deficit"] > 50 for one in told] == [node == SLOW for node in range(NUM_NODES)]
    assert ended.row("test_rails").outcome == "passed"


def test_a_peer_that_dies_in_the_tournament_is_the_finding(ended):
    row = ended.row("test_localise_dies.py::test_pairs")
    assert row.outcome == "died"
    assert row.message.splitlines()[0] == f"rank {DIES} (node-{DIES}): died in call: the worker ended with signal SIGKILL"
    assert ended.outcomes_by_rank("test_localise_dies.py::test_pairs") == {0: "victim", 1: "victim", 2: "victim", 3: "died"}
