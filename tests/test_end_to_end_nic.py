"""Network cards in a real run on gloo: every pair of a node moves data; files in the form of sysfs count what each card would carry."""

import re

import pytest
from inventory.rdma_trees import NDR_PORT, add_device
from suite import extend_conftest, shipped_suite, two_nodes

pytestmark = pytest.mark.launcher

# After each collective the first rank of a node adds to the counters what its cards have carried, but for one card of node 1.
COUNTS = """
import os
from pathlib import Path

from gpu_acceptance.inventory import port_counters
from gpu_acceptance.measure import nccl

_root = Path({root!r}) / os.environ["GROUP_RANK"]
_really_read, _really_count = port_counters.read, nccl.count_wrong


def _count(collective, *, num_bytes, device):
    wrong = _really_count(collective, num_bytes=num_bytes, device=device)
    for card in _root.glob("sys/class/infiniband/*") if os.environ["LOCAL_RANK"] == "0" else ():
        for file in card.glob("ports/1/counters/port_*_data"):
            if (os.environ["GROUP_RANK"], card.name, collective) != ("1", "mlx5_1", "all_gather"):
                file.write_text(str(int(file.read_text()) + num_bytes // 4))
    return wrong


port_counters.read = lambda devices: _really_read(devices, _root)
nccl.count_wrong = _count
"""
DECLARED = re.compile(r'^  "nic\.share\.\w+": .*\n', re.MULTILINE)


def nic_suite(folder):
    suite = shipped_suite(folder, "nic")
    profile = suite / "thresholds" / "cpu.yaml"
    profile.write_text(DECLARED.sub("", profile.read_text()))
    return suite


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """Two nodes of two ranks and two cards each."""
    folder = tmp_path_factory.mktemp("nic")
    suites = [nic_suite(folder / f"suite-{node}") for node in range(2)]
    port = {**NDR_PORT, "counters": {**NDR_PORT["counters"], "port_xmit_data": 5, "port_rcv_data": 5}}
    for node, suite in enumerate(suites):
        for card in range(2):
            add_device(folder / "cards" / str(node), f"mlx5_{card}", f"pci0000:0{card}/0000:0{card}:01.0", ports={"1": port})
        extend_conftest(suite, COUNTS.format(root=str(folder / "cards")))
    first, _ = two_nodes(*((suite, (), {}) for suite in suites), ranks=2)
    return first


def test_the_card_without_its_share_is_named_with_its_node_and_collective(ended):
    row = ended.row("test_nic.py::test_share")
    missed = [judgement.metric for judgement in row.judgements if judgement.status == "missed"]
    assert missed == ["nic.share.received", "nic.share.sent"], ended.output
    assert re.search(
        r"nic\.share\.sent = 0 % \(bytes in all_gather: mlx5_1 port 1: 0, mlx5_0 port 1: 4194304\), need >= 50 % \[base\.yaml: .*\] "
        r"on node 1 \(",
        row.message,
    )
    assert ended.verdict_line.startswith("REJECTED: 2 limits missed in 1 of 2 validations")


def test_each_rank_met_those_of_its_node_and_no_others(ended):
    row = ended.row("test_nic.py::test_loopback")
    assert row.outcome == "passed", ended.output
    told = {record.rank: {figure.metric: figure for figure in record.figures} for record in row.attempts[-1].ranks}
    met = {rank: [metric for metric in figures if ".with_rank_" in metric] for rank, figures in told.items()}
    assert met == {rank: [f"nic.loopback.with_rank_{peer}"] for rank, peer in ((0, 1), (1, 0), (2, 3), (3, 2))}
    rate = told[2]["nic.loopback.bandwidth"]
    assert rate.value == told[3]["nic.loopback.bandwidth"].value > 0
    assert rate.detail == "with rank 3, the fastest of 1, through no RDMA device"
    assert {figures["nic.loopback.wrong"].value for figures in told.values()} == {0}

