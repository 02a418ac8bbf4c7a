"""Subject `kubernetes` in a run: in a pod whose node is cordoned and one of two, and in no pod."""

import copy
from pathlib import Path

import pytest
from api_server import cluster
from pods import suite_in_pod
from suite import plain_pytest, shipped_suite, torchrun

from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.thresholds.profile import load_profile, profile_names, shipped_dir

pytestmark = pytest.mark.launcher


@pytest.mark.needs("openssl")
def test_a_cordoned_node_is_rejected_by_name(tmp_path):
    account = tmp_path / "account"
    suite = suite_in_pod(tmp_path / "suite", account)
    with cluster(account) as api:
        api.node["spec"]["taints"].append({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"})
        other = copy.deepcopy(api.node)
        other["metadata"]["name"] = "node-02"
        api.other_nodes = [other]
        ended = torchrun(suite, env=api.environment)
    assert ended.record.conclusion.verdict == "REJECTED", ended.output
    passed = dict.fromkeys(("test_devices", "test_pods", "test_elsewhere"), Outcome.PASSED)
    assert ended.outcomes() == {"test_node": Outcome.FAILED, **passed}
    assert "kubernetes.node.taints = 1 count (node.kubernetes.io/unschedulable), need <= 0 count" in ended.row("test_node").message
    coverage = ended.record.conclusion.coverage
    assert (coverage.ranks, coverage.limits_expected, coverage.limits_judged, coverage.limits_held) == (2, 7, 7, 6)
    assert "1 node of the cluster without a pod of this run: not tested" in ended.record.conclusion.line
    told = {**ended.values("test_node"), **ended.values("test_elsewhere")}
    assert told["nodes.untested_names"] == "node-02 (node.kubernetes.io/unschedulable)"
    assert told["node.name"] == "node-01"
    assert told["node.labels"] == "nvidia.com/gpu.present=true"
    assert told["node.all_taints"] == "nvidia.com/gpu=present:NoSchedule; node.kubernetes.io/unschedulable:NoSchedule"
    assert len(api.asked) == 3  # by one rank of the two


def test_in_no_pod_nothing_is_accepted(tmp_path):
    ended = plain_pytest(shipped_suite(tmp_path / "suite", "kubernetes"), env={"KUBERNETES_SERVICE_HOST": ""})
    assert ended.returncode == 6, ended.output
    assert "in no pod: no KUBERNETES_SERVICE_HOST" in ended.row("test_node").message
    assert set(ended.outcomes().values()) == {Outcome.SKIPPED}


@pytest.mark.parametrize("name", profile_names(shipped_dir()))
def test_the_overlay_requires_the_subject_and_declares_it_applicable(name):
    plain, asked = load_profile(name, shipped_dir()), load_profile(name, shipped_dir(), [Path("site-kubernetes")])
    assert asked.requires - plain.requires == {"kubernetes"}
    assert plain.not_applicable.keys() - asked.not_applicable.keys() == {"kubernetes.*"}
