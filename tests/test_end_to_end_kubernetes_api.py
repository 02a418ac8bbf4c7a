"""Subject `kubernetes` in a run: in a pod whose node is cordoned, and in no pod."""

from pathlib import Path

import pytest
from api_server import cluster, needs_openssl
from suite import extend_conftest, plain_pytest, shipped_suite, torchrun

from gpu_acceptance.record import Outcome
from gpu_acceptance.thresholds import load_profile, profile_names, shipped_dir

pytestmark = pytest.mark.launcher


@needs_openssl
def test_a_cordoned_node_is_rejected_by_name(tmp_path):
    suite = shipped_suite(tmp_path / "suite", "kubernetes")
    account = tmp_path / "account"
    extend_conftest(
        suite,
        "from pathlib import Path",
        "from gpu_acceptance.inventory import kubernetes_api",
        f"kubernetes_api.ACCOUNT = Path({str(account)!r})",
    )
    with cluster(account) as api:
        api.node["spec"]["taints"].append({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"})
        ended = torchrun(suite, env=api.environment)
    assert ended.record.conclusion.verdict == "REJECTED", ended.output
    assert ended.outcomes() == {"test_node": Outcome.FAILED, "test_devices": Outcome.PASSED, "test_pods": Outcome.PASSED}
    assert "kubernetes.node.taints = 1 count (node.kubernetes.io/unschedulable), need <= 0 count" in ended.row("test_node").message
    coverage = ended.record.conclusion.coverage
    assert (coverage.ranks, coverage.limits_expected, coverage.limits_judged, coverage.limits_held) == (2, 7, 7, 6)
    assert len(api.asked) == 2  # by one rank of the two


def test_in_no_pod_nothing_is_accepted(tmp_path):
    ended = plain_pytest(shipped_suite(tmp_path / "suite", "kubernetes"), env={"KUBERNETES_SERVICE_HOST": ""})
    assert ended.returncode == 6, ended.output
    assert "in no pod: no KUBERNETES_SERVICE_HOST" in ended.row("test_node").message
    assert set(ended.outcomes().values()) == {Outcome.SKIPPED}


@pytest.mark.parametrize("name", profile_names(shipped_dir()))
def test_the_overlay_requires_it_and_takes_back_that_nobody_asks(name):
    plain, asked = load_profile(name, shipped_dir()), load_profile(name, shipped_dir(), [Path("site-kubernetes")])
    assert asked.requires - plain.requires == {"kubernetes"}
    assert plain.not_applicable.keys() - asked.not_applicable.keys() == {"kubernetes.*"}
