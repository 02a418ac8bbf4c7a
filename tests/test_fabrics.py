"""Each shipped network between nodes, sound and with one fault at a time, by the judge of a run."""

import re
from dataclasses import replace

import pytest
from fabrics import Cluster, Network, directory, judge, kind_of, network_of

from gpu_acceptance.thresholds.fabrics import fabrics, select_fabric
from gpu_acceptance.thresholds.file import LimitsError
from gpu_acceptance.thresholds.profile import load_profile, profile_names, shipped_dir
from tests.judging import shipped_profile

pytestmark = pytest.mark.slow

HIDDEN = {"8x400-ib-sharp"}  # nothing in a node shows it
CASES = [
    (name, profile)
    for name, match in fabrics(directory()).items()
    if name != "ethernet"
    for profile in (match.profiles if match else ["h200-sxm"])
]
LARGE = {name: (name, profile, 18 if name == "nvl72" else 32) for name, profile in CASES}.values()  # a network is the same beside any GPU
SIZES = [*((*case, size) for case in CASES for size in (2, 4, 8)), *LARGE]


def cluster(name, profile, num_nodes=2, **more):
    return Cluster(profile, network_of(name), num_nodes, asked=name if name in HIDDEN else "", **more)


@pytest.mark.parametrize(("name", "profile", "num_nodes"), SIZES)
def test_a_sound_cluster_is_accepted(name, profile, num_nodes):
    conclusion = judge(cluster(name, profile, num_nodes, whole=num_nodes == 2))
    assert conclusion.verdict == "ACCEPTED", conclusion.reasons
    assert f"fabric {name}: {kind_of(network_of(name))}" in conclusion.line
    assert conclusion.coverage.limits_held == conclusion.coverage.limits_expected > (200 if num_nodes == 2 else 25)


RDMA = [(name, profile) for name, profile in CASES if network_of(name).link in ("IB", "RoCE") and name != "nvl72"]


def rejected(conclusion, *texts):
    assert conclusion.verdict == "REJECTED", conclusion.reasons
    assert [text for text in texts if not any(text in reason for reason in conclusion.reasons)] == [], conclusion.reasons


@pytest.mark.parametrize(("name", "profile"), RDMA)
@pytest.mark.parametrize(
    ("fault", "texts"),
    [
        ({"down": (3,)}, ["infiniband.ports.state", "{driver}_3", "node-01"]),
        ({"slow": (2,)}, ["infiniband.ports.rate", "{driver}_2", "node-01"]),
        ({"gone": (3,)}, ["infiniband.devices.per_gpu", "infiniband.network.kind", "node-01"]),
    ],
    ids=["one port down", "one port at half rate", "a card less"],
)
def test_one_fault_of_a_node_is_named(name, profile, fault, texts):
    network = network_of(name)
    texts = [text.format(driver=network.driver) for text in texts]
    rejected(judge(cluster(name, profile, odd={1: replace(network, **fault)})), *texts)


@pytest.mark.parametrize(("name", "profile"), RDMA)
def test_all_ports_of_one_node_trained_down(name, profile):
    network = network_of(name)
    slow = replace(network, slow=tuple(range(network.ports)))
    rejected(judge(cluster(name, profile, 4, odd={2: slow})), "infiniband.ports.rate", "infiniband.network.kind", "node-02")


@pytest.mark.parametrize("name", ["8x400-ib", "8x400-roce"])
def test_all_ports_of_all_nodes_trained_down_are_no_known_network(name):
    network = network_of(name)
    conclusion = judge(Cluster("h200-sxm", replace(network, slow=tuple(range(8))), 4))
    assert conclusion.verdict == "INCOMPLETE"
    assert f"no fabric: 8 x 200 Gbit/s {'InfiniBand' if network.link == 'IB' else 'RoCE'} beside 8 GPUs" in conclusion.line


@pytest.mark.parametrize(("name", "profile"), CASES)
def test_sockets_are_not_what_was_bought(name, profile):
    network = replace(network_of(name), via="Socket", gpudirect=False)
    rejected(judge(cluster(name, profile, odd={0: network, 1: network})), "nccl.transport.internode = Socket", "nccl.network.staged")


@pytest.mark.parametrize(("name", "profile"), [case for case in CASES if case[0] != "nvl72"])
def test_bytes_staged_in_host_memory(name, profile):
    rejected(judge(cluster(name, profile, odd={1: replace(network_of(name), gpudirect=False)})), "nccl.network.staged", "node-01")


@pytest.mark.parametrize(("name", "profile"), RDMA)
def test_a_node_with_another_network(name, profile):
    network = network_of(name)
    other = Network("RoCE" if network.link == "IB" else "IB", network.ports, network.gbit_per_s)
    rejected(judge(cluster(name, profile, 4, odd={3: other})), "infiniband.network.kind", "nccl.transport.internode", "node-03")


@pytest.mark.parametrize(("name", "profile"), CASES)
def test_a_slow_pair_and_a_slow_node_are_named(name, profile):
    pair = {("nccl_scaling.all_reduce.busbw_pair", node): 0.8 for node in (0, 1)}
    rejected(judge(cluster(name, profile, 4, factors=pair)), "nccl_scaling.all_reduce.busbw_pair", "node-00", "node")
    node = {("nccl_scaling.all_reduce.busbw_node", 1): 0.8}
    rejected(judge(cluster(name, profile, 4, factors=node)), "nccl_scaling.all_reduce.busbw_node", "node-01")


@pytest.mark.parametrize(("name", "profile"), [(name, profile) for name, profile in CASES if name.startswith(("8x400", "16x200", "tcpxo"))])
def test_half_the_rate_of_all_to_all(name, profile):
    factors = {("nccl_sizes.all_to_all.busbw_internode", -1): 0.5}
    rejected(judge(cluster(name, profile, factors=factors)), "nccl_sizes.all_to_all.busbw_internode")


def test_sharp_that_was_bought_is_asked_for():
    rejected(judge(cluster("8x400-ib-sharp", "h200-sxm", odd={n: network_of("8x400-ib") for n in (0, 1)})), "nccl.network.reduction = none")
    some = judge(cluster("8x400-ib", "h200-sxm", odd={1: replace(network_of("8x400-ib"), sharp=True)}))
    rejected(some, "nccl.network.reduction = SHARP, none", "not on node 0")


def test_sockets_pass_only_where_they_were_bought():
    network = network_of("ethernet")
    assert judge(Cluster("h200-sxm", network, 2, asked="ethernet")).verdict == "ACCEPTED"
    assert judge(Cluster("h200-sxm", network, 2)).verdict != "ACCEPTED"
    rejected(judge(Cluster("h200-sxm", network_of("8x400-ib"), 2, asked="ethernet")), "nccl.transport.internode = IB")


BNXT = [(name, profile) for name, profile in CASES if network_of(name).driver == "bnxt_re"]


@pytest.mark.parametrize(("name", "profile"), BNXT)
@pytest.mark.parametrize(
    ("counter", "metric"),
    [("seq_err_naks_rcvd", "infiniband.roce.packet_seq_err"), ("rx_roce_errors", "infiniband.counters.port_rcv_errors")],
)
def test_errors_that_another_driver_names_otherwise_are_judged(name, profile, counter, metric):
    network = replace(network_of(name), counted=((counter, 7),))
    rejected(judge(cluster(name, profile, odd={1: network})), f"{metric} = 7 count (bnxt_re_3 port 1: 7)", "node-01")


@pytest.mark.parametrize(("name", "profile"), BNXT)
def test_an_older_driver_without_port_counters_is_accepted_too(name, profile):
    network = replace(network_of(name), has_counters=False)
    assert judge(cluster(name, profile, odd=dict.fromkeys((0, 1), network))).verdict == "ACCEPTED"


@pytest.mark.parametrize(
    ("name", "counter"), [("8x400-roce", "out_of_sequence"), ("16x200-roce", "out_of_sequence"), ("8x400-roce-bnxt", "oos_drop_count")]
)
def test_packets_out_of_order_are_the_sites_to_judge(name, counter, tmp_path):
    """Routing that spreads packets over paths reorders them by design; where it does not, an overlay of the site asks for none."""
    odd = {1: replace(network_of(name), counted=((counter, 9),))}
    assert judge(cluster(name, "h100-sxm", odd=odd)).verdict == "ACCEPTED"
    site = tmp_path / "in-order.yaml"
    site.write_text('limits: {infiniband.roce.out_of_sequence: {at_most: 0, source: "policy: no adaptive routing here"}}\n')
    strict = judge(cluster(name, "h100-sxm", odd=odd, limits=(site,)))
    rejected(strict, "infiniband.roce.out_of_sequence = 9", "node-01")
    assert judge(cluster(name, "h100-sxm", limits=(site,))).verdict == "ACCEPTED"


def test_a_driver_without_a_fabric_is_named():
    conclusion = judge(Cluster("h200-sxm", Network("RoCE", 8, 400, driver="irdma"), 2))
    assert conclusion.verdict == "INCOMPLETE"
    assert "no fabric: 8 x 400 Gbit/s RoCE (irdma) beside 8 GPUs" in conclusion.line


def test_a_node_whose_cards_have_another_driver():
    other = replace(network_of("8x400-roce"), driver="bnxt_re")
    rejected(judge(cluster("8x400-roce", "h200-sxm", 4, odd={3: other})), "infiniband.network.kind", "RoCE (bnxt_re)", "node-03")


@pytest.mark.parametrize(
    ("name", "profile", "storage"),
    [(name, profile, "RoCE mlx5") for name, profile in RDMA if network_of(name).link == "IB"] + [("8x400-roce", "h200-sxm", "RoCE irdma")],
)
def test_a_card_of_storage_beside_a_gpu_is_not_judged(name, profile, storage):
    """Azure has an Ethernet function of 100 Gbit/s on the NUMA node of the InfiniBand ones. No byte of NCCL goes through it."""
    beside = replace(network_of(name), storage=storage)
    sound = judge(cluster(name, profile, odd={0: beside, 1: beside}))
    assert sound.verdict == "ACCEPTED", sound.reasons
    fewer = replace(beside, gone=(3,))
    rejected(judge(cluster(name, profile, odd={0: beside, 1: fewer})), "infiniband.devices.per_gpu", "node-01")


@pytest.mark.parametrize(("name", "profile"), CASES)
@pytest.mark.parametrize("num_gpus", [1, 2])
def test_a_job_of_some_gpus_of_each_node_has_no_rate_of_whole_nodes(name, profile, num_gpus):
    """One GPU uses one card or two: what eight reach together says nothing of it."""
    limits = load_profile(profile, directory(), fabric=name).limits.values()
    several = [limit for limit in limits if limit.nodes == "several" and limit.at_least is not None]
    rates = [limit for limit in several if re.match(r"nccl.*_internode|nic\.share\.", limit.metric)]
    assert rates
    assert [limit.metric for limit in rates if limit.applies(num_gpus, 2)] == []
    gpus = network_of(name).gpus
    assert [limit.metric for limit in rates if limit.world not in (None, (gpus,)) or limit.applies(gpus, 2) != limit.covers(gpus, 2)] == []


RACKS = [(name, profile) for name, profile in CASES if profile.startswith("gb")]


@pytest.mark.parametrize(("name", "profile"), RACKS)
def test_nvlink_between_nodes_decides_the_fabric(name, profile):
    """In one domain it is judged whatever cards are there; where each node is in one of its own it is the network, which says so."""
    network, nodes = network_of(name), range(4)
    one = judge(Cluster(profile, replace(network, nvlink_domain="rack/1", via="P2P/MNNVL"), 4))
    assert (one.verdict, "fabric nvl72: NVLink beside 4 GPUs" in one.line) == ("ACCEPTED", True), one.reasons
    off = judge(Cluster(profile, replace(network, nvlink_domain="rack/1", via=network.via if network.link == "EFA" else "IB"), 4))
    rejected(off, "nccl.transport.internode")
    if name != "nvl72":
        apart = judge(cluster(name, profile, 4, odd={node: replace(network, nvlink_domain=f"rack/{node}") for node in nodes}))
        assert (apart.verdict, "beside 4 GPUs, in 4 NVLink domains" in apart.line) == ("ACCEPTED", True), apart.reasons


@pytest.mark.parametrize(("name", "profile"), [case for case in RACKS if case[0] != "nvl72"])
@pytest.mark.parametrize("racks", [(1, 1, 2, 2), (1, 1, 1, 2)], ids=["2 racks", "a node outside"])
@pytest.mark.parametrize("is_whole", [True, False], ids=["NVLink inside a rack", "NVLink fails in all racks"])
def test_a_job_over_several_racks_is_neither_accepted_nor_rejected(name, profile, racks, is_whole):
    """NCCL reaches the same rack by NVLink and others by the network, and no limits are for both."""
    network = network_of(name)
    odd = {node: replace(network, nvlink_domain=f"rack/{rack}") for node, rack in enumerate(racks)}
    if is_whole:
        odd |= {node: replace(odd[node], via="P2P/MNNVL") for node in range(3) if racks[node] == racks[node + 1]}
    conclusion = judge(cluster(name, profile, 4, odd=odd))
    assert conclusion.verdict == "INCOMPLETE", conclusion.reasons
    assert "no fabric: " in conclusion.line
    assert "in 2 NVLink domains: test each alone" in conclusion.line


def test_no_gpu_with_a_profile_can_be_judged_by_data_for_another():
    """MI300X: the suite does not run there, and no shipped profile is that one's."""
    assert "mi300x" not in profile_names(shipped_dir())
    match = fabrics(shipped_dir())["8x400-roce-mi300x"].fabric
    for profile in profile_names(shipped_dir()):
        assert select_fabric(match.model_dump(), profile, shipped_dir()) != "8x400-roce-mi300x"
        with pytest.raises(LimitsError, match=rf"^fabric 8x400-roce-mi300x is for mi300x; fabrics for {profile}: "):
            shipped_profile(profile, "8x400-roce-mi300x")
