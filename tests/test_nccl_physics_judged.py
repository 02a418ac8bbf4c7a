"""NCCL's own log under the shipped limits: real logs of 4 H200, and logs of networks that were bought or not."""

import pytest
from inventory.test_nccl_log import GiB, log, real

from gpu_acceptance.inventory.answer import Missing, Why
from gpu_acceptance.inventory.nccl_physics import findings
from gpu_acceptance.record.outcome import Status
from gpu_acceptance.thresholds.profile import load_profile, shipped_dir
from tests.judging import judge_findings, shipped_profile

H200 = shipped_profile("h200-sxm")
INFINIBAND = """
reason: "each node was bought with 8 ports of NDR InfiniBand"
limits:
  nccl.transport.internode:
    equals: IB
    unit: text
    scope: node
    nodes: several
    source: "policy: InfiniBand was bought; sockets or RoCE are something else"
"""
USING = "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:192.0.2.2<0>"


@pytest.fixture(scope="module")
def nvls_off():
    return load_profile("h200-sxm", shipped_dir(), [shipped_dir() / "site-nvls-off.yaml"])


@pytest.fixture(scope="module")
def infiniband(tmp_path_factory):
    overlay = tmp_path_factory.mktemp("site") / "site-network.yaml"
    overlay.write_text(INFINIBAND)
    return load_profile("h200-sxm", shipped_dir(), [overlay])


def judged(profile, nodes, logs):
    """Metric -> status and message, over ranks with these logs."""
    return judge_findings(profile, [findings(log, GiB, nodes, rank) for rank, log in enumerate(logs)], "nccl", nodes.count(0))


def node(algorithm="RING", via="P2P/CUMEM", world_size=4):
    """The logs of all ranks of a ring."""
    choice = f"AllReduce: {GiB} Bytes -> Algo {algorithm} proto SIMPLE channel{{Lo..Hi}}={{0..23}}"
    return [log(choice, f"Channel 00/0 : {rank}[0] -> {(rank + 1) % world_size}[0] via {via}") for rank in range(world_size)]


def statuses(judgements):
    return {metric: status for metric, (status, _) in judgements.items()}


HELD = {"nccl.all_reduce.algorithm": Status.HELD, "nccl.transport.intranode": Status.HELD}


@pytest.mark.parametrize("logs", [*(node(world_size=size) for size in (2, 4, 8)), [real("plain"), *node()[1:]]])
def test_a_ring_over_nvlink_holds_where_nvls_is_off_on_purpose(logs, nvls_off):
    assert statuses(judged(nvls_off, [0] * len(logs), logs)) == HELD


def test_nvls_holds_on_8_and_a_ring_is_rejected():
    assert statuses(judged(H200, [0] * 8, node("NVLS", world_size=8))) == HELD
    status, message = judged(H200, [0] * 8, node(world_size=8))["nccl.all_reduce.algorithm"]
    assert status is Status.MISSED
    assert message.startswith("nccl.all_reduce.algorithm = RING (protocol SIMPLE, 24 channels), need == NVLS [h200-sxm.yaml: derived: ")


@pytest.mark.parametrize(("name", "transport"), [("shm", "SHM"), ("socket", "Socket")])
def test_p2p_switched_off_is_rejected_by_itself(name, transport, nvls_off):
    found = judged(nvls_off, [0] * 4, [real(name), *node()[1:]])
    assert found["nccl.all_reduce.algorithm"][0] is Status.HELD
    status, message = found["nccl.transport.intranode"]
    assert status is Status.MISSED
    assert message.startswith(f"nccl.transport.intranode = {transport} ({transport}: 0 -> 1, ")
    assert ", need == P2P [nvswitch.yaml: policy: NVLink was bought, " in message
    assert "to do: look for NCCL_P2P_DISABLE" in message


@pytest.mark.parametrize(
    ("algorithm", "status"), [("TREE", Status.MISSED), ("NVLS_TREE", Status.MISSED), ("WARP", Status.INVALID), ("6", Status.MISSED)]
)
def test_another_algorithm_is_rejected_and_an_unknown_one_is_no_value(algorithm, status, nvls_off):
    assert judged(nvls_off, [0] * 4, node(algorithm))["nccl.all_reduce.algorithm"][0] is status


@pytest.mark.parametrize(
    ("version", "choice", "status", "message"),
    [
        ("2.19.3", "", Status.INVALID, "NCCL version 2.19.3 logs no algorithm, 2.20 and later do: run with a newer NCCL"),
        ("2.20.5", f"{GiB} Bytes -> Algo 4 proto 2 time 9321.1", Status.HELD, ""),
        ("2.20.5", f"{GiB} Bytes -> Algo 1 proto 2 time 9321.1", Status.MISSED, "RING (protocol SIMPLE), need == NVLS"),
        ("2.23.4", f"AllReduce: {GiB} Bytes -> Algo 4 proto 2 time 9321.1", Status.HELD, ""),
    ],
)
def test_older_versions_of_nccl(version, choice, status, message):
    ways = [f"Channel 00/0 : {rank}[0] -> {(rank + 1) % 8}[0] via P2P/CUMEM" for rank in range(8)]
    others = [f"{GiB} Bytes -> Algo 1 proto 2 time 1.0"] * 2 * bool(choice)  # all_gather and reduce_scatter, which run after it
    logs = [log(f"NCCL version {version}+cuda12.4", choice, *others, ways[0]), *(log(way) for way in ways[1:])]
    found = judged(H200, [0] * 8, logs)["nccl.all_reduce.algorithm"]
    assert (found[0], message in found[1]) == (status, True)


def test_a_log_that_cannot_be_read_is_no_pass(nvls_off):
    unread = Missing(Why.NOT_THERE, "stdout is no file")
    assert statuses(judged(nvls_off, [0] * 4, [unread] * 4)) == dict.fromkeys(HELD, Status.INVALID)


def two_nodes(via):
    """Two GPUs each; rank 1 sends to rank 2, and rank 3 to rank 0."""
    ways = [(0, 1, "P2P/CUMEM"), (1, 2, via), (2, 3, "P2P/CUMEM"), (3, 0, via)]
    return [log(USING, f"Channel 00/0 : {source}[0] -> {target}[0] via {way}") for source, target, way in ways]


@pytest.mark.parametrize(
    ("via", "internode", "staged"),
    [
        ("NET/IB/0/GDRDMA", Status.HELD, Status.HELD),
        ("NET/IB/0", Status.HELD, Status.MISSED),
        ("NET/IB/1/GDRDMA", Status.MISSED, Status.HELD),  # RoCE
        ("NET/Socket/0", Status.MISSED, Status.MISSED),
        ("NET/NEW/0/GDRDMA", Status.MISSED, Status.HELD),
        ("P2P/MNNVL", Status.MISSED, Status.HELD),  # NVLink between nodes
    ],
)
def test_the_network_between_nodes_is_what_was_bought(via, internode, staged, infiniband):
    found = judged(infiniband, [0, 0, 1, 1], two_nodes(via))
    assert (found["nccl.transport.internode"][0], found["nccl.network.staged"][0]) == (internode, staged)
    assert found["nccl.transport.intranode"][0] is Status.HELD


def test_without_a_limit_of_the_site_nothing_between_nodes_passes():
    status, message = judged(H200, [0, 0, 1, 1], two_nodes("NET/IB/0/GDRDMA"))["nccl.transport.internode"]
    assert (status, message) == (Status.NO_LIMIT, "nccl.transport.internode = IB: no limit for a checked metric in profile h200-sxm")
