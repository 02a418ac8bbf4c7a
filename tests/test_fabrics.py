"""Each shipped network between nodes, sound and with one fault at a time, by the judge of a run."""

from dataclasses import replace

import pytest
from fabrics import Cluster, Network, judge, kind_of, network_of

from gpu_acceptance.thresholds.profile import fabric_match, fabric_names, shipped_dir

FABRICS = [name for name in fabric_names(shipped_dir()) if name != "ethernet"]
HIDDEN = {"8x400-ib-sharp"}  # nothing in a node shows it


def profiles_of(name):
    match = fabric_match(name, shipped_dir())
    return match.profiles if match else ["h200-sxm"]


CASES = [(name, profile) for name in FABRICS for profile in profiles_of(name)]


def cluster(name, profile, num_nodes=2, **more):
    return Cluster(profile, network_of(name), num_nodes, asked=name if name in HIDDEN else "", **more)


@pytest.mark.parametrize("num_nodes", [2, 4, 8, 32])
@pytest.mark.parametrize(("name", "profile"), CASES)
def test_a_sound_cluster_is_accepted(name, profile, num_nodes):
    conclusion = judge(cluster(name, profile, num_nodes, whole=num_nodes == 2))
    assert conclusion.verdict == "ACCEPTED", conclusion.reasons
    assert f"fabric {name}: {kind_of(network_of(name))}" in conclusion.line
    assert conclusion.coverage.limits_held == conclusion.coverage.limits_expected > (200 if num_nodes == 2 else 25)


RDMA = [(name, profile) for name, profile in CASES if network_of(name).link in ("IB", "RoCE")]


def rejected(conclusion, *texts):
    assert conclusion.verdict == "REJECTED", conclusion.reasons
    assert [text for text in texts if not any(text in reason for reason in conclusion.reasons)] == [], conclusion.reasons


@pytest.mark.parametrize(("name", "profile"), RDMA)
@pytest.mark.parametrize(
    ("fault", "texts"),
    [
        ({"down": (3,)}, ["infiniband.ports.state", "mlx5_3", "node-01"]),
        ({"slow": (5,)}, ["infiniband.ports.rate", "mlx5_5", "node-01"]),
        ({"gone": (7,)}, ["infiniband.devices.per_gpu", "infiniband.network.kind", "node-01"]),
    ],
    ids=["one port down", "one port at half rate", "a card less"],
)
def test_one_fault_of_a_node_is_named(name, profile, fault, texts):
    rejected(judge(cluster(name, profile, odd={1: replace(network_of(name), **fault)})), *texts)


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


@pytest.mark.parametrize(("name", "profile"), CASES)
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
