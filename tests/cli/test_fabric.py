"""`gpu-acceptance fabric`: the network of this machine, and derived limits for one that has none."""

import pytest
import yaml
from fabrics import Cluster, Network, judge, kind_of, lacking_in, network_of

from gpu_acceptance.cli import fabric
from gpu_acceptance.cli.verbs import main
from gpu_acceptance.inventory.fabric import FabricClass
from gpu_acceptance.inventory.infiniband import LINK_ERRORS
from gpu_acceptance.thresholds.fabrics import select_fabric
from gpu_acceptance.thresholds.profile import load_profile, shipped_dir
from tests.judging import shipped_profile

ODD = [
    ("h200-sxm", Network("IB", 4, 400)),
    ("h100-sxm", Network("RoCE", 8, 200)),
    ("a100-sxm", Network("RoCE", 8, 100)),
    ("b200", Network("IB", 8, 800)),
    ("h100-sxm", Network("RoCE", 8, 100, driver="irdma")),
    ("h200-sxm", Network("RoCE", 4, 400, driver="bnxt_re")),
    ("h200-sxm", Network("RoCE", 8, 400, driver="irdma")),
]


@pytest.mark.parametrize(("profile", "network"), ODD)
@pytest.mark.parametrize("num_nodes", [2, 4])
def test_a_draft_makes_a_network_without_a_fabric_judgeable(profile, network, num_nodes, tmp_path):
    seen = kind_of(network)
    assert select_fabric(seen.key, profile, shipped_dir()) == ""
    assert judge(Cluster(profile, network, num_nodes)).verdict == "INCOMPLETE"
    overlay = tmp_path / "site-network.yaml"
    overlay.write_text(fabric.drafted(seen, shipped_profile(profile), shipped_dir(), lacking_in(network)))
    sound = judge(Cluster(profile, network, num_nodes, limits=(overlay,)))
    assert sound.verdict == "ACCEPTED", sound.reasons
    slow = {("nccl.all_reduce.busbw_internode", -1): 0.9}
    assert judge(Cluster(profile, network, num_nodes, limits=(overlay,), factors=slow)).verdict == "REJECTED"


ALL_LINK_ERRORS = {f"{place}.{name}" for name in LINK_ERRORS for place in ("infiniband.counters", "counters.infiniband")}
OF_BNXT = {f"{place}.port_rcv_errors" for place in ("infiniband.counters", "counters.infiniband")}
DISCARDS = {f"{place}.port_xmit_discards" for place in ("infiniband.counters", "counters.infiniband")}


@pytest.mark.parametrize(
    ("network", "lacks"),
    [
        (Network("RoCE", 8, 400), set()),
        (Network("RoCE", 8, 400, driver="bnxt_re"), ALL_LINK_ERRORS - OF_BNXT - DISCARDS | {"infiniband.roce.rx_icrc_encapsulated"}),
        (
            Network("RoCE", 8, 400, driver="bnxt_re", has_counters=False),
            ALL_LINK_ERRORS - OF_BNXT | {"infiniband.roce.rx_icrc_encapsulated"},
        ),
        (
            Network("RoCE", 8, 400, driver="irdma"),
            ALL_LINK_ERRORS
            | {f"infiniband.roce.{name}" for name in ("out_of_sequence", "packet_seq_err", "rx_icrc_encapsulated")}
            | {"nic.share.*"},
        ),
    ],
    ids=["mlx5", "bnxt_re", "an older bnxt_re", "irdma"],
)
def test_a_draft_declares_what_the_driver_does_not_count(network, lacks):
    """bnxt_re shows files of errors that it never counts: their 0 proves nothing."""
    content = yaml.safe_load(fabric.drafted(kind_of(network), shipped_profile("h200-sxm"), shipped_dir(), lacking_in(network)))
    reasons = content["not_applicable"]
    assert {metric for metric, reason in reasons.items() if reason == "the driver of these ports has no such counter"} == lacks


def test_floors_of_a_draft_are_below_what_published_ones_ask(tmp_path):
    overlay = tmp_path / "site-network.yaml"
    overlay.write_text(fabric.drafted(kind_of(network_of("8x400-ib")), shipped_profile("h200-sxm"), shipped_dir()))
    drafted = load_profile("h200-sxm", shipped_dir(), [overlay]).limits
    published = shipped_profile("h200-sxm", "8x400-ib").limits
    for metric in ("nccl.all_reduce.busbw_internode", "nccl.all_gather.busbw_internode", "nccl_sizes.all_to_all.busbw_internode"):
        assert drafted[metric].at_least.at(2) <= published[metric].at_least.at(2), metric


def test_without_a_rate_nothing_can_be_derived():
    with pytest.raises(ValueError, match=r"32 EFA beside 8 GPUs: no rate of its ports is known"):
        fabric.drafted(FabricClass("EFA", 32, None, 8), shipped_profile("h100-sxm"), shipped_dir())


def test_a_machine_without_a_gpu_has_no_network_between_gpus(capsys):
    assert main(["fabric"]) == 4
    assert "this machine has no GPU that NVML shows" in capsys.readouterr().err
