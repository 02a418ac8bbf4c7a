"""Copies between GPUs, where buffers of one memory stand for GPUs, and traffic between nodes, which files in the form of sysfs count."""

import re
import shutil

import pytest
from inventory.rdma_trees import NDR_PORT, add_device
from suite import ROOT, extend_conftest, shipped_suite, torchrun, two_nodes

pytestmark = pytest.mark.launcher


PLANTED = """
import os
from dataclasses import replace

from gpu_acceptance.measure import p2p

_really = p2p.bandwidth


def _planted(mode, **options):
    print("PLANTED by", os.environ["RANK"], flush=True)
    found = _really(mode, **options)
    rates = {pair: 2.0 if 1 in pair else 4.0 for pair in found.cells}
    return replace(found, cells={pair: replace(cell, value=rates[pair]) for pair, cell in found.cells.items()})


p2p.bandwidth = _planted
"""
OVERLAY = """
reason: "a planted fault: rank 1 is slow both ways"
limits:
  p2p.unidirectional.out.bandwidth: {at_least: 3, unit: GB/s, scope: rank, source: "policy: a planted fault must miss it"}
  p2p.unidirectional.in.bandwidth: {at_least: 3, unit: GB/s, scope: rank, source: "policy: a planted fault must miss it"}
"""


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    folder = tmp_path_factory.mktemp("p2p")
    suite = shipped_suite(folder / "suite", "p2p", "nic")
    extend_conftest(suite, PLANTED)
    (folder / "planted.yaml").write_text(OVERLAY)
    return torchrun(suite, f"--limits={folder / 'planted.yaml'}", ranks=3)


def test_a_gpu_that_is_slow_both_ways_is_named_and_no_other(ended):
    assert ended.verdict_line.startswith("REJECTED: 2 limits missed in 1 of 5 validations"), ended.output
    row = ended.row("test_p2p.py::test_bandwidth[unidirectional]")
    missed = {metric: judgement.ranks for metric, judgement in ended.missed("test_p2p.py::test_bandwidth[unidirectional]").items()}
    assert missed == {f"p2p.unidirectional.{way}.bandwidth": (1,) for way in ("out", "in")}
    assert "p2p.unidirectional.out.bandwidth = 2 GB/s (rank 1 to rank 0, the fastest of 2), need >= 3 GB/s" in row.message
    assert ended.outcomes()["test_latency"] == ended.outcomes()["test_bandwidth[bidirectional]"] == "passed"


def test_each_rank_tells_its_row_of_the_matrix_which_the_first_one_measures(ended):
    told = [ended.values("test_p2p.py::test_bandwidth[unidirectional]", rank) for rank in range(3)]
    rates = [{int(metric[-1]): value for metric, value in values.items() if ".to_rank_" in metric} for values in told]
    assert rates == [{1: 2.0, 2: 4.0}, {0: 2.0, 2: 2.0}, {0: 4.0, 1: 2.0}]
    logs = [(ended.folder / "logs" / f"rank-{rank:05d}.log").read_text() for rank in range(3)]
    assert ["PLANTED by 0" in log for log in logs] == [True, False, False]
    row = ended.row("test_nic.py::test_share")
    assert (row.outcome, row.message, row.attempts) == ("not applicable", "needs at least 2 nodes, this job has 1", ())


def test_in_a_loopback_each_rank_met_each_other(ended):
    row = ended.row("test_nic.py::test_loopback")
    assert row.outcome == "passed", ended.output
    told = [ended.figures("test_nic.py::test_loopback", rank) for rank in range(3)]
    rates = [{int(metric[-1]): figure.value for metric, figure in figures.items() if ".with_rank_" in metric} for figures in told]
    assert [set(met) for met in rates] == [{1, 2}, {0, 2}, {0, 1}]
    for rank, figures in enumerate(told):
        best = max(rates[rank], key=rates[rank].get)
        assert rates[rank][best] == rates[best][rank] == figures["loopback.bandwidth"].value > 0
        assert figures["loopback.bandwidth"].detail == f"with rank {best}, the fastest of 2, through unknown (no connection told)"
        assert figures["loopback.wrong"].value == 0


# After each collective a rank adds to the counters what the cards of its node have carried, but for one card of node 1 in all_gather.
COUNTS = """
import os
from pathlib import Path

from gpu_acceptance.inventory import counters
from gpu_acceptance.measure import nccl

_root = Path({root!r}) / os.environ["GROUP_RANK"]
_really_read, _really_count = counters.read_ports, nccl.count_wrong


def _count(collective, *, num_bytes, device):
    wrong = _really_count(collective, num_bytes=num_bytes, device=device)
    for card in _root.glob("sys/class/infiniband/*"):
        for file in card.glob("ports/1/counters/port_*_data"):
            if (os.environ["GROUP_RANK"], card.name, collective) != ("1", "mlx5_1", "all_gather"):
                file.write_text(str(int(file.read_text()) + num_bytes // 4))
    return wrong


counters.read_ports = lambda devices: _really_read(devices, _root)
nccl.count_wrong = _count
"""
DECLARED = re.compile(r'^  "nic\.share\.\w+": .*\n', re.MULTILINE)


def nic_suite(folder):
    suite = shipped_suite(folder, "nic")
    shutil.copy(ROOT / "acceptance" / "test_nccl_scaling.py", suite / "acceptance")  # which has no limit, so no profile can require it
    profile = suite / "thresholds" / "cpu.yaml"
    profile.write_text(DECLARED.sub("", profile.read_text()))
    return suite


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    """Two nodes of one rank and two cards each."""
    folder = tmp_path_factory.mktemp("nic")
    suites = [nic_suite(folder / f"suite-{node}") for node in range(2)]
    port = {**NDR_PORT, "counters": {**NDR_PORT["counters"], "port_xmit_data": 5, "port_rcv_data": 5}}
    for node, suite in enumerate(suites):
        for card in range(2):
            add_device(folder / "cards" / str(node), f"mlx5_{card}", f"pci0000:0{card}/0000:0{card}:01.0", ports={"1": port})
        extend_conftest(suite, COUNTS.format(root=str(folder / "cards")))
    first, _ = two_nodes(*((suite, ("-kshare or efficiency",), {}) for suite in suites))
    return first


def test_the_card_without_its_share_is_named_and_a_node_of_one_rank_has_no_rate_of_its_own(nodes):
    row = nodes.row("test_nic.py::test_share")
    assert sorted(nodes.missed("test_nic.py::test_share")) == ["nic.share.received", "nic.share.sent"], nodes.output
    assert re.search(
        r"nic\.share\.sent = 0 % \(bytes in all_gather: mlx5_1 port 1: 0, mlx5_0 port 1: 1048576\), need >= 50 % \[base\.yaml: .*\] "
        r"on node 1 \(",
        row.message,
    )
    assert nodes.verdict_line.startswith("REJECTED: 2 limits missed in 1 of 2 validations (")
    for rank in (0, 1):
        assert [*nodes.figures("test_efficiency", rank)] == [f"{name}.busbw_all" for name in ("all_gather", "all_reduce", "reduce_scatter")]
