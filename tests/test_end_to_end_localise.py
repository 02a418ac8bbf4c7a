"""Hosts of one job: `--localise` names the one slow link of four, and a job that is made to fail ends on both of two hosts."""

import re
import shutil

import pytest
from faults import Fault
from hosts import connected, needs_hosts
from suite import EXAMPLES, ROOT, extend_conftest, processes_in, shipped_suite

pytestmark = [pytest.mark.launcher, needs_hosts]


NUM_NODES, SLOW = 4, 2
MBIT_PER_S, SLOW_MBIT_PER_S = 100, 10
CONTACT_S = 3


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """The run on the first of four hosts: one link was slow, and at the end some hosts were silent."""
    suites = [made_suite(tmp_path_factory.mktemp("localise") / f"node-{node}") for node in range(NUM_NODES)]
    with connected(suites) as hosts:
        for node in range(NUM_NODES):
            hosts.shape(node, SLOW_MBIT_PER_S if node == SLOW else MBIT_PER_S)
        for node in range(NUM_NODES):
            hosts.start_one(node, script=("-m", "pytest", "acceptance/", "--localise"))
        first, *_ = [host.wait() for host in hosts.hosts]
        return first


def made_suite(folder):
    suite = shipped_suite(folder, "localise")
    shutil.copy(ROOT / "acceptance" / "test_localise.py", suite / "acceptance" / "test_localise_silent.py")
    extend_conftest(suite, (EXAMPLES / "loses_contact.py").read_text())
    profile = suite / "thresholds" / "cpu.yaml"
    profile.write_text(re.sub(r"localise\.contact_s: \d+", f"localise.contact_s: {CONTACT_S}", profile.read_text()))
    return suite


def test_the_node_with_the_slow_link_is_named_and_no_other(ended):
    row = ended.row("test_localise.py::test_pairs")
    assert row.outcome == "failed", ended.output
    assert [*ended.missed("test_localise.py::test_pairs")] == ["localise.node.deficit"]
    (missed,) = row.message.splitlines()
    had = r"[\d.e-]+ with node [013] \(node-[013]\)"
    assert re.fullmatch(
        rf"localise\.node\.deficit = [\d.]+ % \([\d.e-]+ GB/s, median node [\d.e-]+: {had}, {had}, {had}; "
        rf"again, with nodes that passed: {had}, {had}, {had}; rail 0 slowest in 6 of 6 pairs\), "
        rf"need <= 50 % \[cpu\.yaml: policy: .*\] on node {SLOW} \(node-{SLOW}\); to do: take this node out and run again; .*",
        missed,
    ), missed
    assert missed in ended.reasons
    assert ended.verdict_line.startswith("REJECTED: ")


def test_every_rank_knows_the_suspects_and_nothing_that_moved_was_wrong(ended):
    told = [ended.values("test_localise.py::test_pairs", rank) for rank in range(NUM_NODES)]
    suspects = {one["pairs.suspects"] for one in told}
    assert len(suspects) == 1
    assert re.fullmatch(rf"node {SLOW} \(node-{SLOW}\) [\d.]+ %", suspects.pop())
    assert {(one["pairs.wrong"], one["pairs.rounds"]) for one in told} == {(0, 3 + 3)}
    assert [one["node.deficit"] > 50 for one in told] == [node == SLOW for node in range(NUM_NODES)]
    assert ended.row("test_localise.py::test_rails").outcome == "passed"


NOTHING_PASSES = Fault(
    "nothing passes between two nodes (--localise)",
    "failed",
    "test_localise_silent.py::test_pairs",
    rf"ranks 1,3: failed in call: no contact within {CONTACT_S} s between rank 1 \(node 1, node-1, rail 0\) and "
    r"rank 3 \(node 3, node-3, rail 0\); which end of a single pair is lost cannot be told; to do: .*",
)
ONE_IS_MISSED = Fault(
    "nothing passes between one node and its two neighbours (--localise)",
    "failed",
    "test_localise_silent.py::test_rails",
    rf"rank 2 \(node-2\): failed in call: no contact within {CONTACT_S} s between rank 1 \(node 1, node-1, rail 0\) and "
    r"rank 2 \(node 2, node-2, rail 0\), rank 2 \(node 2, node-2, rail 0\) and rank 3 \(node 3, node-3, rail 0\); "
    r"lost by several partners: rank 2 \(node 2, node-2, rail 0\); to do: .*",
)


@pytest.mark.parametrize(
    ("fault", "by_rank"),
    [
        (NOTHING_PASSES, {0: "passed", 1: "failed", 2: "passed", 3: "failed"}),
        (ONE_IS_MISSED, {0: "victim", 1: "victim", 2: "failed", 3: "victim"}),  # of 1 and 3 the device still waits
    ],
    ids=["a pair", "several pairs"],
)
def test_a_silent_host_is_the_finding_and_no_other(ended, fault, by_rank, seen):
    row = ended.row(fault.row)
    first = row.message.split("\n", 1)[0]
    assert re.fullmatch(fault.says, first), row.message
    assert row.outcome == "failed"
    assert ended.outcomes_by_rank(fault.row) == by_rank
    assert f"{fault.row}: {first}" in ended.reasons
    causes = {one.rank: one.cause for attempt in row.attempts for one in attempt.ranks if one.outcome == "failed"}
    assert causes == dict.fromkeys([rank for rank, outcome in by_rank.items() if outcome == "failed"], "no contact")
    assert row.duration_s < row.deadline_s / 2
    seen.told(fault, first, row.duration_s)


EXIT_IS_LEFT_OUT = re.compile(r'^  ("failure_propagation\.exit\*": ".*"|failure_propagation\.exits: false)\n', re.MULTILINE)
READS_AS_RANK_0 = """
import os

if os.environ.get("RANK") == "1":
    from torch.utils.data import DistributedSampler

    _really_iterates = DistributedSampler.__iter__

    def _as_rank_0(self):
        self.rank = 0
        return _really_iterates(self)

    DistributedSampler.__iter__ = _as_rank_0
"""


@pytest.fixture(scope="module")
def failed_job(tmp_path_factory):
    """The end of the run on the first of two hosts."""
    suites = [shipped_suite(tmp_path_factory.mktemp("ends") / f"node-{node}", "failure_propagation", "sampler") for node in range(2)]
    for suite in suites:
        extend_conftest(suite, READS_AS_RANK_0)
        profile = suite / "thresholds" / "cpu.yaml"
        profile.write_text(EXIT_IS_LEFT_OUT.sub("", profile.read_text()))
    with connected(suites) as hosts:
        hosts[1].name = hosts[0].name
        for node in range(2):  # gloo looks up its own name, which is that of node 0
            hosts.start_one(node, env={"GLOO_SOCKET_IFNAME": "eth0"}, script=("-m", "pytest", "acceptance/", "-k", "epochs or exit"))
        first, *_ = [host.wait() for host in hosts.hosts]
        return first


def test_the_job_ends_on_both_hosts(failed_job):
    row = failed_job.row("test_exit")
    assert row.outcome == "passed", failed_job.output
    took_s = []
    for record in row.attempts[-1].ranks:
        figures = {figure.metric.rsplit(".", 1)[-1]: figure for figure in record.figures}
        assert 0 < figures["end_s"].value < 25
        assert (figures["processes_left"].value, figures["misnamed"].value) == (0, 0)
        assert figures["misnamed"].detail == "rank 1, exit code 41"
        took_s.append(figures["end_s"].value)
    assert len(set(took_s)) == 2  # each host measured its own
    assert processes_in(failed_job.suite) == []


def test_a_rank_that_reads_the_part_of_another_is_rejected(failed_job):
    assert failed_job.verdict_line.startswith("REJECTED: "), failed_job.output
    row = failed_job.row("test_epochs[padded]")
    missed = {limit.metric: limit.message for limit in row.judgements if limit.status == "missed"}
    assert missed.keys() == {"sampler.samples.missing", "sampler.samples.repeated", "sampler.padding.difference"}
    said = "sampler.samples.repeated = 1000 count (2000 samples, epoch 0), need <= 0 count [base.yaml: policy: "
    assert missed["sampler.samples.repeated"].startswith(said)
