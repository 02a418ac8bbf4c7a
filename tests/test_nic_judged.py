"""Network cards under an overlay as a site writes one: from lines of NCCL's log, and from counters in a tree like sysfs."""

import tempfile
from pathlib import Path

import pytest
from inventory.rdma_trees import NDR_PORT, add_device
from inventory.test_nccl_log import log

from gpu_acceptance.inventory import counters, infiniband, infiniband_health, nccl_physics
from gpu_acceptance.inventory.answer import Missing, Why
from gpu_acceptance.record.outcome import Status
from gpu_acceptance.thresholds.file import LimitsError
from gpu_acceptance.thresholds.profile import load_profile, shipped_dir
from tests.judging import judge_findings, shipped_profile

OVERLAY = Path(__file__).with_name("site_network.yaml")
NUM_GPUS, NUM_BYTES = 8, 4 * 2**30
CARDS = [f"mlx5_{card}" for card in range(NUM_GPUS)]
USING = f"NET/IB : Using {' '.join(f'[{index}]{name}:1/IB' for index, name in enumerate(CARDS))} [RO]; OOB eth0:192.0.2.2<0>"
DEVICES = "mlx5_[0-7]"


@pytest.fixture(scope="module")
def profile(tmp_path_factory):
    overlay = tmp_path_factory.mktemp("site") / "site-nic.yaml"
    overlay.write_text(OVERLAY.read_text(encoding="utf-8"))
    return load_profile("h200-sxm", shipped_dir(), [overlay])


def add_cards(root, num=NUM_GPUS, sent=0, received=0):
    for card in range(num):
        port = {**NDR_PORT, "counters": {"port_xmit_data": sent, "port_rcv_data": received}}
        add_device(root, f"mlx5_{card}", f"pci0000:{card:02}/0000:{card:02}:01.0", ports={"1": port})
    return root


def judged(profile, by_rank):
    found = judge_findings(profile, by_rank, "nic", NUM_GPUS)
    return {metric.removeprefix("nic."): judgement for metric, judgement in found.items()}


EFA = "NET/OFI Selected provider is efa, fabric is efa-direct (found 16 nics)"


def looped(via_of, root):
    """The findings of the ranks of one node that each talked to the next one."""
    logs = [
        log(USING, EFA, *([f"Channel 00/1 : {rank}[0] -> {(rank + 1) % NUM_GPUS}[0] [send] via {via}"] if (via := via_of(rank)) else []))
        for rank in range(NUM_GPUS)
    ]
    told = [nccl_physics.told_devices(one, [0] * NUM_GPUS) for one in logs]
    devices = infiniband_health.chosen(infiniband.read(root), DEVICES).devices
    return [list(nccl_physics.loopback(one, [0] * NUM_GPUS, told, devices)) for one in logs]


def own_card(rank):
    return f"NET/IB/{rank}/GDRDMA/Shared"


def test_each_gpu_through_its_own_card_holds(profile, tmp_path):
    found = judged(profile, looped(own_card, add_cards(tmp_path)))
    names = ["loopback.transport", "loopback.staged", "loopback.unused"]
    assert {name: status for name, (status, _) in found.items()} == dict.fromkeys(names, Status.HELD)


@pytest.mark.parametrize(
    ("via", "said"),
    [
        ("NET/Socket/0", "Socket (Socket: 3 -> 4)"),
        ("NET/NEW/3/GDRDMA", "NEW (NEW: 3 -> 4)"),
        ("P2P/CUMEM", "P2P (P2P: 3 -> 4)"),
        ("SHM/direct/direct", "SHM (SHM: 3 -> 4)"),
    ],
)
def test_another_or_an_unknown_transport_never_passes_and_its_rank_is_named(via, said, profile, tmp_path):
    found = judged(profile, looped(lambda rank: via if rank == 3 else own_card(rank), add_cards(tmp_path)))
    status, message = found["loopback.transport"]
    assert status is Status.MISSED
    assert message.startswith(f"nic.loopback.transport = {said}, need == IB [site-nic.yaml: policy: ")
    assert message.endswith(" on rank 3 (node-00, GPU 3, serial 165390003)")


def test_without_a_limit_a_transport_is_not_judged(tmp_path):
    site = tmp_path / "site.yaml"
    site.write_text("requires: [nic]\nparameters: {nic.asked: true}\n")
    found = judged(load_profile("h200-sxm", shipped_dir(), [site]), looped(own_card, add_cards(tmp_path)))
    assert found["loopback.transport"] == (
        Status.NO_LIMIT,
        "nic.loopback.transport = IB: no limit for a checked metric in profile h200-sxm",
    )


def test_a_card_that_a_collective_alone_went_through_is_unused():
    """The forming of the group is a collective: its rings may take cards that carry nothing afterwards."""
    found = log(USING, "Channel 00/0 : 0[0] -> 1[0] via NET/IB/0/GDRDMA", "Channel 00/1 : 0[0] -> 1[0] via NET/IB/1/GDRDMA/Shared")
    assert nccl_physics.told_devices(found, [0, 0]) == "mlx5_1"


@pytest.mark.parametrize(
    ("via_of", "metric", "said"),
    [
        (lambda rank: own_card(4 if rank == 3 else rank), "unused", "1 count (mlx5_3), need <= 0 count [base.yaml: policy: "),
        (lambda rank: own_card(rank).replace("/GDRDMA", ""), "staged", "1 count (IB: 0 -> 1), need <= 0 count [base.yaml: "),
    ],
    ids=["a card that no GPU uses", "host memory in between"],
)
def test_an_unused_card_and_a_staged_connection_are_named(via_of, metric, said, profile, tmp_path):
    status, message = judged(profile, looped(via_of, add_cards(tmp_path)))[f"loopback.{metric}"]
    assert status is Status.MISSED
    assert message.startswith(f"nic.loopback.{metric} = {said}")


def test_a_fact_that_the_log_does_not_have_is_no_pass(profile, tmp_path):
    silent = judged(profile, looped(lambda rank: "" if rank == 3 else own_card(rank), add_cards(tmp_path)))
    assert silent["loopback.transport"][0] is silent["loopback.staged"][0] is Status.INVALID
    assert "NCCL's log tells of no connection in a form that is known" in silent["loopback.transport"][1]
    status, message = silent["loopback.unused"]
    assert status is Status.INVALID  # the card of rank 3 may well have been used
    assert "NCCL's log does not say through which device it went: unknown (no connection told)" in message
    unread = Missing(Why.NOT_THERE, "stdout is no file")
    of_rank = list(nccl_physics.loopback(unread, [0] * NUM_GPUS, [nccl_physics.told_devices(unread, [0])], Missing(Why.NOT_THERE)))
    assert [value for _, value, _, _ in of_rank] == [unread, unread, Missing(Why.NOT_THERE)]


def test_connections_to_other_nodes_alone_are_no_loopback():
    other = log(USING, "Channel 00/1 : 0[0] -> 1[0] via NET/IB/0/GDRDMA")
    assert nccl_physics.told_devices(other, [0, 1]) == "unknown (no connection told)"
    assert nccl_physics.told_devices(other, [0, 0]) == "mlx5_0"
    assert nccl_physics.told_devices(other, [0]) == "unknown (no connection told)"  # of a rank that is not there
    (_, transport, _, _), *_ = nccl_physics.loopback(other, [0, 1], [""], ())
    assert transport == Missing(Why.NOT_THERE, "NCCL's log tells of no connection inside the node")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda root: root, "not there (no RDMA driver is loaded: no "),
        (lambda root: root / "sys/class/infiniband", "not there (no RDMA device matches those that the job uses)"),
    ],
)
def test_a_site_without_its_cards_is_no_pass(make, said, profile, tmp_path):
    make(tmp_path).mkdir(parents=True, exist_ok=True)
    found = judged(profile, looped(lambda rank: "NET/Socket/0", tmp_path))
    assert found["loopback.transport"][0] is Status.MISSED
    status, message = found["loopback.unused"]
    assert status is Status.INVALID
    assert said in message


def test_a_plugin_that_names_no_device_leaves_open_which_were_used(profile, tmp_path):
    found = judged(profile, looped(lambda rank: f"NET/AWS Libfabric/{rank}/GDRDMA", add_cards(tmp_path)))
    status, message = found["loopback.unused"]
    assert status is Status.INVALID
    assert "NCCL's log does not say through which device it went: unknown (NET/AWS Libfabric/0)" in message


# --- shares --------------------------------------------------------------------------------------------------------------------


def moved(root, collective="all_reduce", **bytes_of):
    """The findings of a node whose ports count these bytes each way between two readings."""
    add_cards(root, sent=1000, received=7)
    before = counters.read_ports(DEVICES, root)
    for card in CARDS:
        sent, received = bytes_of.get(card, (NUM_BYTES // 8, NUM_BYTES // 8))
        for file, first, num_bytes in (("port_xmit_data", 1000, sent), ("port_rcv_data", 7, received)):
            (root / "sys/class/infiniband" / card / "ports/1/counters" / file).write_text(str(first + num_bytes // 4))
    after = counters.read_ports(DEVICES, root)
    return list(nccl_physics.share(before, after, collective=collective, num_bytes=NUM_BYTES, world_size=16))


def of_two_nodes(profile, of_node_1, tmp_path):
    good = moved(Path(tempfile.mkdtemp(dir=tmp_path)))
    return judged(profile, [good] * NUM_GPUS + [of_node_1] * NUM_GPUS)


def test_equal_shares_of_all_that_must_pass_hold_and_without_traffic_each_is_missed(profile, tmp_path):
    found = of_two_nodes(profile, moved(tmp_path / "node-1"), tmp_path)
    names = ["share.sent", "share.received", "share.carried"]
    assert {name: status for name, (status, _) in found.items()} == dict.fromkeys(names, Status.HELD)
    silent = of_two_nodes(profile, moved(tmp_path / "silent", **dict.fromkeys(CARDS, (0, 0))), tmp_path)
    assert {status for status, _ in silent.values()} == {Status.MISSED}


@pytest.mark.parametrize("way", ["sent", "received"])
def test_a_card_without_its_share_is_named_with_its_node(way, profile, tmp_path):
    half = NUM_BYTES // 8
    lacks = {"mlx5_3": (0, half) if way == "sent" else (half, 0), "mlx5_4": (2 * half, 2 * half)}
    found = of_two_nodes(profile, moved(tmp_path / "node-1", **lacks), tmp_path)
    assert [name for name, (status, _) in found.items() if status is Status.MISSED] == [f"share.{way}"]
    message = found[f"share.{way}"][1]
    assert message.startswith(f"nic.share.{way} = 0 % (bytes in all_reduce: mlx5_3 port 1: 0, mlx5_0 port 1: {half}, ")
    assert " on node 1 (node-01)" in message


@pytest.mark.parametrize(("collective", "least"), [("all_reduce", 2 * NUM_BYTES), ("all_gather", NUM_BYTES), ("reduce_scatter", NUM_BYTES)])
def test_bytes_that_went_past_the_cards_are_missed(collective, least, profile, tmp_path):
    each = least // 16
    enough = dict.fromkeys(CARDS, (each, each))
    assert of_two_nodes(profile, moved(tmp_path / "node-1", collective, **enough), tmp_path)["share.carried"][0] is Status.HELD
    less = {**enough, "mlx5_0": (each - 4, each)}
    status, message = of_two_nodes(profile, moved(tmp_path / "node-2", collective, **less), tmp_path)["share.carried"]
    assert status is Status.MISSED
    assert f"({least - 4} bytes in {collective}, of at least {least}), need >= 100 % [base.yaml: derived: " in message


def damaged(root, damage):
    """The findings where something happened to the files between two readings."""
    add_cards(root, sent=1000, received=1000)
    before = counters.read_ports(DEVICES, root)
    damage(root / "sys/class/infiniband/mlx5_3/ports/1/counters/port_xmit_data")
    after = counters.read_ports(DEVICES, root)
    return list(nccl_physics.share(before, after, collective="all_reduce", num_bytes=NUM_BYTES, world_size=16))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda path: path.write_text("9"), "mlx5_3 port 1: fell from 4000 to 36: it was reset, or began again"),
        (lambda path: path.write_text(str(2**64 - 1)), "mlx5_3 port 1: it stands at its highest value"),
        (lambda path: path.unlink(), "mlx5_3 port 1: "),
        (lambda path: path.write_text("many"), "mlx5_3 port 1: "),
        (lambda path: path.parents[3].joinpath("ports").rename(path.parents[3] / "gone"), "/ports"),
    ],
)
def test_counters_that_cannot_be_compared_are_no_pass(damage, said, profile, tmp_path):
    found = of_two_nodes(profile, damaged(tmp_path / "node-1", damage), tmp_path)
    assert found["share.sent"][0] is found["share.carried"][0] is Status.INVALID
    assert said in found["share.sent"][1]
    assert said in found["share.carried"][1]


def test_a_port_that_comes_in_between_has_no_share(tmp_path):
    before = counters.read_ports(DEVICES, add_cards(tmp_path, num=2))
    after = counters.read_ports(DEVICES, add_cards(tmp_path / "later", num=3))
    values = [value for _, value, _, _ in nccl_physics.share(before, after, collective="all_gather", num_bytes=64, world_size=2)]
    assert values == [Missing(Why.NOT_THERE, "mlx5_2 port 1: one reading has no such port")] * 3


def test_no_counters_at_all_is_no_pass(profile, tmp_path):
    nothing = counters.read_ports(DEVICES, tmp_path)
    shares = list(nccl_physics.share(nothing, nothing, collective="all_reduce", num_bytes=NUM_BYTES, world_size=16))
    found = of_two_nodes(profile, shares, tmp_path)
    assert {status for status, _ in found.values()} == {Status.INVALID}
    assert f"not there ({tmp_path}/sys/class/infiniband)" in found["share.carried"][1]


def test_a_run_judges_network_cards_only_where_a_site_requires_it(profile):
    shipped = shipped_profile("h200-sxm")
    assert ("nic" in shipped.requires, shipped.parameters["nic.asked"], "nic.*" in shipped.not_applicable) == (False, False, True)
    assert "nic" in profile.requires
    assert not [glob for glob in profile.not_applicable if glob.startswith("nic")]


def test_a_rate_above_what_the_port_can_do_is_a_typing_error(tmp_path):
    site = tmp_path / "site.yaml"
    limit = '{at_least: 60, ceiling: 50, unit: GB/s, scope: rank, source: "policy: a typing error"}'
    site.write_text(f"requires: [nic]\nlimits: {{nic.loopback.bandwidth: {limit}}}\n")
    with pytest.raises(LimitsError, match="ceiling"):
        load_profile("h200-sxm", shipped_dir(), [site])
