"""deploy/slurm/acceptance.sbatch in a real Slurm of two nodes: verdict, exit code, and what is left of a job that is ended from outside."""

import contextlib
import os
import signal

import psutil
import pytest
from slurm import needs_slurm, two_slurm_nodes
from suite import PYTHON, make_suite, processes_in, shipped_suite
from waiting import wait_until

from gpu_acceptance.files import read_results

pytestmark = [pytest.mark.launcher, needs_slurm]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    with two_slurm_nodes(tmp_path_factory.mktemp("slurm")) as slurm:
        yield slurm


@pytest.fixture
def sleeping(slurm, tmp_path):
    """A job whose validation has begun, and does not end by itself."""
    suite, jobs = make_suite(tmp_path / "suite", "takes_long"), []

    def submit(*options):
        job = slurm.submit(suite, options=options)
        jobs.append(job)
        assert wait_until(lambda: all((suite / f"begun-{rank}").exists() for rank in (0, 1)), 120), job.text
        return suite, job

    yield submit
    for job in jobs:  # a job that is left holds both nodes
        slurm.ask("scancel", str(job.number))
        slurm.wait(job)


def launcher_of_node_1(job):
    """Its process id. A task's shell has become torchrun."""
    wanted = {"torch.distributed.run", "--node-rank=1", f"--run-id=slurm-{job.number}"}
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # gone, or a zombie
            if wanted <= set(process.cmdline()) and process.cmdline()[0] == PYTHON:
                found.append(process.pid)
    (pid,) = found
    return pid


def record_of(suite, job):
    return read_results(suite / "reports" / f"slurm-{job.number}")


def test_two_nodes_are_accepted(slurm, tmp_path):
    suite = shipped_suite(tmp_path / "suite", "environment", "binding")
    job = slurm.submit(suite)
    assert slurm.wait(job) == "COMPLETED 0:0", job.text
    line = job.text.splitlines()[-1]
    assert line.startswith(f"ACCEPTED (cpu profile: no GPU was tested) | run slurm-{job.number} | ended "), job.text
    coverage = record_of(suite, job).conclusion.coverage
    assert (coverage.nodes, coverage.ranks) == (2, 2)


def test_options_go_on_to_the_suite_and_the_job_ends_with_the_verdicts_code(slurm, tmp_path):
    suite = make_suite(tmp_path / "suite", "misses", "passes")
    rejected = slurm.submit(suite, "--budget=10m")
    assert slurm.wait(rejected) == "FAILED 1:0", rejected.text
    assert rejected.text.splitlines()[-1].startswith("REJECTED: 1 limit missed in 1 of ")
    refused = slurm.submit(suite, "--level=none")
    assert slurm.wait(refused) == "FAILED 4:0", refused.text
    assert "--level=none: " in refused.text
    assert refused.text.splitlines()[-1] == f"no run in {suite}/reports/slurm-{refused.number}: see the error above"


def test_scancel_leaves_a_report(slurm, sleeping):
    suite, job = sleeping()
    slurm.ask("scancel", str(job.number))
    assert slurm.wait(job).startswith("CANCELLED "), job.text
    record = record_of(suite, job)
    assert record.conclusion.verdict == "INCOMPLETE"
    assert record.conclusion.reasons[0] == "interrupted: SIGTERM"
    assert (suite / "reports" / f"slurm-{job.number}" / "report.html").exists()
    assert wait_until(lambda: not processes_in(suite), 60), processes_in(suite)


def test_before_the_time_limit_the_report_is_written(slurm, sleeping):
    suite, job = sleeping("--time=20", "--signal=TERM@60")
    slurm.ask("scontrol", "update", f"JobId={job.number}", "EndTime=now+90")  # only now: how long a start takes is the machine's
    assert slurm.wait(job) == "FAILED 2:0", job.text
    assert record_of(suite, job).conclusion.reasons[0] == "interrupted: SIGTERM"
    assert job.text.splitlines()[-1].startswith("INCOMPLETE: ")


def test_a_torchrun_that_is_killed_is_named_and_the_report_is_there(slurm, sleeping):
    suite, job = sleeping()
    killed = launcher_of_node_1(job)
    os.kill(killed, signal.SIGKILL)
    assert slurm.wait(job).startswith("FAILED "), job.text
    assert record_of(suite, job).conclusion.reasons[0].startswith("interrupted: the loss of the launcher of node 1 (")


def test_a_task_for_each_rank_is_a_usage_error(slurm, tmp_path):
    """Without torchrun nothing hosts the control plane that must outlive every rank."""
    suite = make_suite(tmp_path / "suite", "passes")
    said = slurm.ask(
        "srun", "--nodes=2", "--ntasks=2", f"--chdir={suite}", "sh", "-c", f"{PYTHON} -m pytest acceptance/ 2>&1; echo code $?"
    )
    text = "ERROR: started by srun with SLURM_STEP_NUM_TASKS=2, but without torchrun: start one torchrun per node, "
    assert said.count(text) == 2, said
    assert said.count("code 4") == 2
