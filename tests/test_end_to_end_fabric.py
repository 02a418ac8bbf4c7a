"""Three hosts with Ethernet between them: the fabric that was bought is judged, each node has its own pair, and a slow port is named."""

import shutil

import pytest
from hosts import connected, needs_hosts
from suite import ROOT, shipped_suite

pytestmark = [pytest.mark.launcher, needs_hosts]

SITE = """
reason: a test
requires: [connectivity, nccl_scaling]
limits:
  nccl_scaling.all_reduce.busbw_pair:
    {at_least: 0.08, unit: GB/s, scope: node, nodes: several, source: "policy: the contract says 640 Mbit/s"}
parameters: {connectivity.patience_s: 3, connectivity.num_bytes: 4194304, nccl.large_bytes: 1048576, nccl.block_s: 0.02}
"""


def judged(tmp_path, slow=None):
    """Run one rank on each of three hosts; `slow`: a host whose port has 400 Mbit/s."""
    (tmp_path / "site.yaml").write_text(SITE)
    suites = [shipped_suite(tmp_path / f"node-{node}", "connectivity") for node in range(3)]
    for suite in suites:
        shutil.copy(ROOT / "acceptance" / "test_nccl_scaling.py", suite / "acceptance")
    with connected(suites) as hosts:
        if slow is not None:
            hosts.shape(slow, 400)
        command = ("-m", "pytest", "acceptance/", "--fabric=ethernet", f"--limits={tmp_path / 'site.yaml'}")
        for host in hosts.hosts:
            hosts.start_one(host.node, script=command)
        first, *_ = [host.wait() for host in hosts.hosts]
    return first


def pairs(ended):
    """The rate of each rank's pair of nodes."""
    ranks = ended.row("test_efficiency").attempts[-1].ranks
    found = [{one.metric: one for one in rank.figures}.get("nccl_scaling.all_reduce.busbw_pair") for rank in ranks]
    return [one and one.value for one in found]


def test_each_of_an_odd_number_of_nodes_has_a_rate_in_a_pair(tmp_path):
    ended = judged(tmp_path)
    assert ended.verdict_line.startswith("ACCEPTED ("), ended.output
    assert "fabric ethernet" in ended.verdict_line
    assert all(rate >= 0.08 for rate in pairs(ended)), ended.output


def test_a_slow_port_is_in_the_pairs_that_are_named(tmp_path):
    ended = judged(tmp_path, slow=2)
    assert ended.verdict_line.startswith("REJECTED: "), ended.output
    sound, partner, slow = pairs(ended)
    assert all(pairs(ended)), ended.output
    assert min(sound, partner) >= 0.08 > slow
    assert "nccl_scaling.all_reduce.busbw_pair" in ended.row("test_efficiency").message
