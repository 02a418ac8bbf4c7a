"""Subject `slurm` in a Slurm that binds tasks to CPUs, where half of a node is what a job was given; and in no job."""

import os
from pathlib import Path

import pytest
from slurm import ASKED, ROOT, needs_slurm, slurm_suite, two_slurm_nodes
from suite import PYTHON, plain_pytest, shipped_suite

from gpu_acceptance.folder.files import read_results
from gpu_acceptance.record.outcome import Outcome, Status
from gpu_acceptance.thresholds.profile import load_profile, profile_names, shipped_dir

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


def test_in_no_job_nothing_is_accepted(tmp_path):
    ended = plain_pytest(shipped_suite(tmp_path / "suite", "slurm"), env={"SLURM_JOB_ID": ""})
    assert ended.returncode == 6, ended.output
    assert "in no Slurm job: no SLURM_JOB_ID" in ended.row("test_controller").message
    assert set(ended.outcomes().values()) == {Outcome.SKIPPED}


@pytest.mark.parametrize("name", profile_names(shipped_dir()))
def test_the_overlay_requires_the_subject_and_declares_it_applicable(name):
    plain, asked = load_profile(name, shipped_dir()), load_profile(name, shipped_dir(), [Path("site-slurm")])
    assert asked.requires - plain.requires == {"slurm"}
    assert plain.not_applicable.keys() - asked.not_applicable.keys() == {"slurm.*"}
