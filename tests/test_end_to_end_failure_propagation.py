"""Two hosts of one name: the job that is made to fail ends on both, each tells its own; and who reads another rank's data is rejected."""

import re

import pytest
from hosts import connected, needs_hosts
from suite import extend_conftest, processes_in, shipped_suite

pytestmark = [pytest.mark.launcher, needs_hosts]

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
def ended(tmp_path_factory):
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


def test_the_job_ends_on_both_hosts(ended):
    row = ended.row("test_exit")
    assert row.outcome == "passed", ended.output
    took_s = []
    for record in row.attempts[-1].ranks:
        figures = {figure.metric.rsplit(".", 1)[-1]: figure for figure in record.figures}
        assert 0 < figures["end_s"].value < 25
        assert (figures["processes_left"].value, figures["misnamed"].value) == (0, 0)
        assert figures["misnamed"].detail == "rank 1, exit code 41"
        took_s.append(figures["end_s"].value)
    assert len(set(took_s)) == 2  # each host measured its own
    assert processes_in(ended.suite) == []


def test_a_rank_that_reads_the_part_of_another_is_rejected(ended):
    assert ended.verdict_line.startswith("REJECTED: "), ended.output
    row = ended.row("test_epochs[padded]")
    missed = {limit.metric: limit.message for limit in row.judgements if limit.status == "missed"}
    assert missed.keys() == {"sampler.samples.missing", "sampler.samples.repeated", "sampler.padding.difference"}
    said = "sampler.samples.repeated = 1000 count (2000 samples, epoch 0), need <= 0 count [base.yaml: policy: "
    assert missed["sampler.samples.repeated"].startswith(said)
