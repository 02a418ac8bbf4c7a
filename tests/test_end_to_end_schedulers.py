"""Subjects `slurm` and `kubernetes`: half of a node, a cordoned node, and a run in no job and no pod."""

import copy
import os
from pathlib import Path

import pytest
from api_server import cluster
from pods import suite_in_pod
from slurm import ASKED, ROOT, needs_slurm, slurm_suite, two_slurm_nodes
from suite import PYTHON, plain_pytest, shipped_suite, torchrun

from gpu_acceptance.folder.files import read_results
from gpu_acceptance.record.outcome import Outcome, Status
from gpu_acceptance.thresholds.profile import load_profile, profile_names, shipped_dir
from tests.judging import shipped_profile

pytestmark = pytest.mark.launcher


NOT_SHOWN = {
    **{f"slurm.isolation.{what}": "Slurm needs cgroups for this" for what in ("memory", "gpus", "processes")},
    "slurm.leftovers.processes": "the jobs are root's, as is the system",
}

NUM_THREADS = "from gpu_acceptance.inventory import slurm; print(slurm.promise(slurm.job(), slurm.own_node()).num_threads)"


@needs_slurm
@pytest.mark.parametrize(("cpus", "given"), [("CPUs=4", "8"), ("CPUs=8", "8")])
def test_threads_are_what_slurm_gives_whether_it_counts_them_or_cores(tmp_path, cpus, given):
    with two_slurm_nodes(tmp_path, cpus=f"{cpus} Sockets=1 CoresPerSocket=4 ThreadsPerCore=2") as slurm:
        assert slurm.ask("srun", "--nodes=1", "--exclusive", f"--chdir={ROOT / 'src'}", PYTHON, "-c", NUM_THREADS) == given


@needs_slurm
@pytest.mark.skipif(os.cpu_count() < 2, reason="a node of one CPU has no half")
def test_ranks_may_run_on_the_cpus_that_slurm_gave_and_on_no_other(tmp_path):
    suite = slurm_suite(tmp_path / "suite", NOT_SHOWN)
    (tmp_path / "slurm").mkdir()
    with two_slurm_nodes(tmp_path / "slurm", "task/affinity") as slurm:
        job = slurm.submit(suite, *ASKED, options=("--oversubscribe", "--cpus-per-task=1"))
        assert slurm.wait(job) == "COMPLETED 0:0", job.text
    record = read_results(suite / "reports" / f"slurm-{job.number}")
    held = {limit.metric for limit in record.conclusion.limits if limit.status is Status.HELD}
    assert held >= {"slurm.isolation.cpus", "slurm.cpus.lacking", "slurm.cpus.beyond"}
    figures = [figure for row in record.rows for one in row.attempts[-1].ranks for figure in one.figures]
    assert [one.detail for one in figures if one.metric == "slurm.cpus.beyond"] == ["CPUs 0; Slurm gave 1"] * 2


@pytest.mark.needs("openssl")
def test_a_cordoned_and_faulty_node_is_rejected_by_name(tmp_path):
    account = tmp_path / "account"
    suite = suite_in_pod(tmp_path / "suite", account)
    with cluster(account) as api:
        api.node["spec"]["taints"].append({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"})
        other = copy.deepcopy(api.node)
        other["metadata"]["name"] = "node-02"
        api.node["status"]["conditions"].append({"type": "XIDErrors", "status": "True", "reason": "XIDErrorsPresent", "message": "XID 79"})
        api.other_nodes = [other]
        ended = torchrun(suite, env=api.environment)
    assert ended.record.conclusion.verdict == "REJECTED", ended.output
    passed = dict.fromkeys(("test_devices", "test_pods", "test_elsewhere"), Outcome.PASSED)
    assert ended.outcomes() == {"test_node": Outcome.FAILED, **passed}
    assert "kubernetes.node.taints = 1 count (node.kubernetes.io/unschedulable), need <= 0 count" in ended.row("test_node").message
    assert "kubernetes.node.faults = 1 count (XIDErrors True (AKS: XID 79)), need <= 0 count" in ended.row("test_node").message
    coverage = ended.record.conclusion.coverage
    assert (coverage.ranks, coverage.limits_expected, coverage.limits_judged, coverage.limits_held) == (2, 8, 8, 6)
    assert "1 node of the cluster without a pod of this run: not tested" in ended.record.conclusion.line
    told = {**ended.values("test_node"), **ended.values("test_elsewhere")}
    assert told["nodes.untested_names"] == "node-02 (node.kubernetes.io/unschedulable)"
    assert told["node.name"] == "node-01"
    assert told["node.labels"] == "nvidia.com/gpu.present=true"
    assert told["node.all_taints"] == "nvidia.com/gpu=present:NoSchedule; node.kubernetes.io/unschedulable:NoSchedule"
    assert told["node.conditions"] == "XIDErrors True (XIDErrorsPresent)"
    assert len(api.asked) == len(set(api.asked))  # by one rank of the two


@pytest.mark.needs("openssl")
@pytest.mark.parametrize(("kind", "status", "verdict"), [("GPUMissing", "False", "ACCEPTED"), ("GpuState", "True", "INCOMPLETE")])
def test_a_sound_node_with_other_resources_is_accepted_unless_a_condition_of_its_gpus_proves_nothing(tmp_path, kind, status, verdict):
    account = tmp_path / "account"
    suite = suite_in_pod(tmp_path / "suite", account)
    with cluster(account) as api:
        api.node["status"]["conditions"].append({"type": kind, "status": status, "reason": "x"})
        for numbers in (api.node["status"]["capacity"], api.node["status"]["allocatable"]):
            numbers |= {"koordinator.sh/gpu-memory": "80Gi", "example.com/share": "1500m", "example.com/bandwidth": "1e3"}
        ended = torchrun(suite, env=api.environment)
    assert ended.record.conclusion.verdict == verdict, ended.output
    assert ended.values("test_node")["node.conditions"] == f"{kind} {status} (x)"


@pytest.mark.parametrize(
    ("subject", "variable", "row", "lack"),
    [
        ("slurm", "SLURM_JOB_ID", "test_controller", "in no Slurm job: no SLURM_JOB_ID"),
        ("kubernetes", "KUBERNETES_SERVICE_HOST", "test_node", "in no pod: no KUBERNETES_SERVICE_HOST"),
    ],
)
def test_in_no_job_and_no_pod_nothing_is_accepted(tmp_path, subject, variable, row, lack):
    ended = plain_pytest(shipped_suite(tmp_path / "suite", subject), env={variable: ""})
    assert ended.returncode == 6, ended.output
    assert lack in ended.row(row).message
    assert set(ended.outcomes().values()) == {Outcome.SKIPPED}


@pytest.mark.parametrize("subject", ["slurm", "kubernetes"])
@pytest.mark.parametrize("name", profile_names(shipped_dir()))
def test_the_overlay_requires_the_subject_and_declares_it_applicable(name, subject):
    plain, asked = shipped_profile(name), load_profile(name, shipped_dir(), [Path(f"site-{subject}")])
    assert asked.requires - plain.requires == {subject}
    assert plain.not_applicable.keys() - asked.not_applicable.keys() == {f"{subject}.*"}
