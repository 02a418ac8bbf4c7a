"""Findings in NCCL's log: real logs of 4 H200, on one node and as if on two."""

import pytest
from inventory.test_nccl_log import GiB, log, real

from gpu_acceptance.inventory.answer import Missing, Why
from gpu_acceptance.inventory.nccl_physics import COLLECTIVES, choice_of, facts, findings, reduction, told_reduction

ONE_NODE, TWO_NODES = [0, 0, 0, 0], [0, 0, 1, 1]
UNREAD = Missing(Why.NOT_THERE, "stdout is no file")


def found(log, nodes=ONE_NODE, rank=0):
    return {metric: (value, detail) for metric, value, _, detail in findings(log, GiB, nodes, rank)}


@pytest.mark.parametrize(
    ("name", "channels", "transport", "pairs"),
    [
        ("plain", 24, "P2P", "0 -> 1, 0 -> 2, 0 -> 3"),
        ("shm", 4, "SHM", "0 -> 1, 0 -> 2, 0 -> 3"),
        ("socket", 2, "Socket", "0 -> 1, 2 -> 0, 0 -> 2, 1 -> 0, 2 more"),
    ],
)
def test_one_node(name, channels, transport, pairs):
    assert found(real(name)) == {
        "nccl.all_reduce.algorithm": ("RING", f"protocol SIMPLE, {channels} channels"),
        "nccl.transport.intranode": (transport, f"{transport}: {pairs}"),
    }


def test_sockets_between_nodes():
    assert found(real("socket"), TWO_NODES) == {
        "nccl.all_reduce.algorithm_internode": ("RING", "protocol SIMPLE, 2 channels"),
        "nccl.transport.intranode": ("Socket", "Socket: 0 -> 1, 1 -> 0"),
        "nccl.transport.internode": ("Socket", "Socket: 2 -> 0, 0 -> 2, 3 -> 0, 0 -> 3"),
        "nccl.network.staged": (4, "Socket: 2 -> 0, 0 -> 2, 3 -> 0, 0 -> 3"),
    }


def test_several_transports_are_all_named():
    mixed = log("Channel 00 : 0[0] -> 1[1] via SHM/direct/direct", "Channel 00 : 0[0] -> 2[2] via P2P/CUMEM")
    assert found(mixed)["nccl.transport.intranode"] == ("P2P, SHM", "P2P: 0 -> 2; SHM: 0 -> 1")


@pytest.mark.parametrize(
    "line", ["Channel 02/0 : 0[0] -> 1[1] [send/0] via NET/Socket/0", "Channel x via P2P/CUMEM", "CollNet 1 : 0 [both] via COLLNET/SHARP"]
)
def test_beside_known_connections_one_in_an_unknown_form_leaves_the_transport_unread(line):
    mixed = log("Channel 00 : 0[0] -> 1[1] via P2P/CUMEM", line)
    why = f"NCCL's log tells of a connection in a form that is not known: {line[:60]}"
    assert found(mixed)["nccl.transport.intranode"] == (Missing(Why.UNREADABLE, why), "")


SHARP = log(
    "NET/IB : Using [0]mlx5_0:1/IB/SHARP [RO]; OOB ib0:192.0.2.2<0>",
    "Channel 00/0 : 0[0] -> 2[2] [send] via NET/IB/0",
    "CollNet 00/0 : 0 [send] via COLLNET/SHARP/0/GDRDMA",
)


def test_a_network_that_reduces_has_a_figure_of_its_own():
    assert found(SHARP, TWO_NODES)["nccl.transport.internode"] == ("IB", "IB: 0 -> 2")
    assert found(SHARP, TWO_NODES)["nccl.network.staged"] == (1, "IB: 0 -> 2")
    assert told_reduction(SHARP) == "SHARP"
    assert told_reduction(log("Channel 00 : 0[0] -> 1[1] via P2P/CUMEM")) == "none"
    assert told_reduction(log("CollNet 00 : 0 [send] via COLLNET/OTHER/0")) == "unknown (COLLNET/OTHER)"


@pytest.mark.parametrize(
    ("told", "value", "detail"),
    [
        (["SHARP", "none", "none", "SHARP"], "SHARP", ""),  # one rank of each node is its way out
        (["none"] * 4, "none", ""),
        (["SHARP", "SHARP", "none", "none"], "SHARP, none", "not on node 1"),
        (
            ["SHARP", told_reduction(UNREAD), "none", "none"],
            Missing(Why.UNREADABLE, f"NCCL's log tells of a network that reduces that this suite does not know: {told_reduction(UNREAD)}"),
            "not on node 1",
        ),
    ],
)
def test_whether_the_network_reduces_on_every_node(told, value, detail):
    assert list(reduction(told, TWO_NODES)) == [("nccl.network.reduction", value, "text", detail)]
    assert list(reduction(told, ONE_NODE)) == []


def test_nvlink_between_nodes_needs_no_network_card():
    assert found(log("Channel 00/0 : 0[0] -> 2[2] via P2P/MNNVL"), TWO_NODES) == {
        "nccl.all_reduce.algorithm_internode": (missing("AllReduce", GiB), ""),
        "nccl.transport.internode": ("P2P", "P2P: 0 -> 2"),
        "nccl.network.staged": (0, ""),
    }


def test_other_ranks_are_not_told_the_algorithm():
    assert found(real("plain"), rank=1).keys() == {"nccl.transport.intranode"}


def test_a_rank_without_peers_says_nothing_of_them():
    assert found(log("Using network Socket"), [0], 0).keys() == {"nccl.all_reduce.algorithm"}


def missing(function, num_bytes):
    return Missing(Why.NOT_THERE, f"NCCL's log tells no algorithm of {function} over {num_bytes} bytes")


def test_the_algorithm_of_a_smaller_message_is_not_that_of_a_large_one():
    assert choice_of(real("tree"), "all_reduce", GiB, 4) == missing("AllReduce", GiB)
    assert choice_of(real("plain"), "all_gather", 4 * GiB, 4) == missing("AllGather", GiB)
    assert choice_of(real("plain"), "all_gather", GiB, 4).num_bytes == GiB // 4


@pytest.mark.parametrize(
    ("log", "why"),
    [
        (UNREAD, UNREAD),
        (log("Using network Socket"), Missing(Why.NOT_THERE, "NCCL's log tells of no connection in a form that is known")),
        (
            log("Channel 00 : 0[0] -> 4[4] via P2P/CUMEM"),
            Missing(Why.UNREADABLE, "NCCL's log tells of 0 -> 4 in a job of 4 ranks"),
        ),
    ],
)
def test_unknown_connections_are_missing(log, why):
    assert found(log, TWO_NODES, rank=1) == dict.fromkeys(
        ["nccl.transport.intranode", "nccl.transport.internode", "nccl.network.staged"], (why, "")
    )


def test_facts_of_rank_0_and_of_others():
    named = {metric: value for metric, value, _ in facts(real("plain"), GiB, ONE_NODE, 0)}
    assert named["nccl.all_gather.algorithm"] == named["nccl.reduce_scatter.algorithm"] == "RING"
    assert "nccl.all_reduce.algorithm" not in named  # is judged
    assert {named[f"nccl.{collective}.protocol"] for collective in COLLECTIVES} == {"SIMPLE"}
    assert (named["nccl.channels.collective"], named["nccl.channels.nvls"], named["nccl.plugin"]) == (24, 0, "Socket")
    assert [metric for metric, *_ in facts(real("plain"), GiB, ONE_NODE, 1)] == [
        "nccl.channels.collective",
        "nccl.channels.nvls",
        "nccl.plugin",
    ]
    assert list(facts(UNREAD, GiB, ONE_NODE, 1)) == []


def test_a_message_is_looked_up_in_whole_elements_of_each_rank():
    assert choice_of(real("plain"), "all_gather", GiB + 15, 4).num_bytes == GiB // 4
    assert choice_of(real("plain"), "all_reduce", GiB + 3, 4).num_bytes == GiB
