"""Traffic between two nodes, in a real run on gloo: files in the form of sysfs count what each card would carry. Loopback: with p2p."""

import re
import shutil

import pytest
from inventory.rdma_trees import NDR_PORT, add_device
from suite import ROOT, extend_conftest, shipped_suite, two_nodes

pytestmark = pytest.mark.launcher

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
def ended(tmp_path_factory):
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


def test_the_card_without_its_share_is_named_with_its_node_and_collective(ended):
    row = ended.row("test_nic.py::test_share")
    assert sorted(ended.missed("test_nic.py::test_share")) == ["nic.share.received", "nic.share.sent"], ended.output
    assert re.search(
        r"nic\.share\.sent = 0 % \(bytes in all_gather: mlx5_1 port 1: 0, mlx5_0 port 1: 4194304\), need >= 50 % \[base\.yaml: .*\] "
        r"on node 1 \(",
        row.message,
    )
    assert ended.verdict_line.startswith("REJECTED: 2 limits missed in 1 of 2 validations (")


def test_what_all_nodes_reach_is_recorded_and_a_node_of_one_rank_has_no_rate_of_its_own(ended):
    for rank in (0, 1):
        assert [*ended.figures("test_efficiency", rank)] == [f"{name}.busbw_all" for name in ("all_gather", "all_reduce", "reduce_scatter")]
