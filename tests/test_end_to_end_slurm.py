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

    def submit(*options, **env):
        job = slurm.submit(suite, options=options, env=env)
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


def supervisor_of_rank_0(job):
    """Its process id, where srun started it."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if f"--run-id=slurm-{job.number}" in process.cmdline() and process.environ().get("SLURM_PROCID") == "0":
                found += [process.pid] if process.cmdline()[0] == PYTHON else []
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


def test_a_task_for_each_rank_is_accepted(slurm, tmp_path):
    """The other style: no torchrun, and rank 0 starts the store."""
    suite = shipped_suite(tmp_path / "suite", "environment", "binding")
    job = slurm.submit(suite, env={"LAUNCH": "srun", "RANKS": "2"})
    assert slurm.wait(job) == "COMPLETED 0:0", job.text
    assert job.text.splitlines()[-1].startswith(f"ACCEPTED (cpu profile: no GPU was tested) | run slurm-{job.number} | ended "), job.text
    coverage = record_of(suite, job).conclusion.coverage
    assert (coverage.nodes, coverage.ranks) == (2, 4)
    assert wait_until(lambda: not processes_in(suite), 60), processes_in(suite)


def test_a_task_that_is_killed_is_named_by_the_others_though_it_was_rank_0(slurm, sleeping):
    suite, job = sleeping(LAUNCH="srun")
    os.kill(supervisor_of_rank_0(job), signal.SIGKILL)
    assert slurm.wait(job).startswith("FAILED "), job.text
    record = record_of(suite, job)
    assert record.conclusion.verdict == "INCOMPLETE"
    assert "rank 0 lost: no heartbeat for 15 s" in "\n".join(record.conclusion.reasons)
    assert job.text.splitlines()[-1].startswith("INCOMPLETE: ")
    assert wait_until(lambda: not processes_in(suite), 60), processes_in(suite)


def test_another_way_to_launch_is_a_usage_error(slurm, tmp_path):
    job = slurm.submit(make_suite(tmp_path / "suite", "passes"), env={"LAUNCH": "mpirun"})
    assert slurm.wait(job) == "FAILED 4:0", job.text
    assert job.text == "LAUNCH=mpirun: torchrun (one on each node) or srun (a task for each rank)\n"


def test_unequal_tasks_are_one_line_on_each_node(slurm, tmp_path):
    suite = make_suite(tmp_path / "suite", "passes")
    said = slurm.ask(
        "srun",
        "--nodes=2",
        "--ntasks=3",
        "--overcommit",
        f"--chdir={suite}",
        "sh",
        "-c",
        f"{PYTHON} -m pytest acceptance/ 2>&1; echo code $?",
    )
    assert said.count("ERROR: SLURM_STEP_TASKS_PER_NODE='2,1': start as many tasks on every node (srun --ntasks-per-node=N)") == 3, said
    assert said.count("code 4") == 3
