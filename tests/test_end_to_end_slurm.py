"""deploy/slurm/acceptance.sbatch in a real Slurm of two nodes: verdict, exit code, and what is left of a job that is ended from outside."""

import contextlib
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import time
from fnmatch import fnmatchcase
from pathlib import Path

import psutil
import pytest
from faults import Fault
from hosts import NO_NAME
from slurm import ASKED, BATCH, EACH_NODE, needs_slurm, slurm_suite, two_slurm_nodes
from suite import PYTHON, extend_conftest, make_suite, processes_in
from waiting import wait_until

from gpu_acceptance.folder.files import read_results
from gpu_acceptance.inventory.slurm import leftover_pids, leftovers_of
from gpu_acceptance.record.outcome import Outcome, Status
from tests.judging import shipped_profile

pytestmark = [pytest.mark.launcher, needs_slurm]
# What one small machine cannot show: its Slurm binds nothing, and the only user is root.
NOT_SHOWN = {
    "slurm.isolation.*": "without cgroups and with TaskPlugin=task/none Slurm binds nothing; both nodes have the same CPUs",
    "slurm.leftovers.processes": "the jobs are root's, as is the system",
}
WHOLE_NODES_WITHOUT_GPUS = ("--oversubscribe", f"--cpus-per-task={os.cpu_count()}")
FEWER_CPUS_ON_NODE_2 = """\
import os

if os.environ.get("SLURMD_NODENAME") == "node2":
    os.sched_setaffinity(0, {0})
"""
SRUN_WITHOUT_PYXIS = """\
#!/bin/bash
echo "$*" >>asked
for word; do
    shift
    [[ $word == --container-* ]] || set -- "$@" "$word"
done
exec "$SRUN" "$@"
"""
WAITS = """\
import time
from pathlib import Path


def test_waits(ranks, record):
    Path("begun").touch()
    while not Path("go").exists():
        time.sleep(0.1)
    record("before.ranks", ranks.world_size, "ranks")
"""

REQUEUED = Fault("Slurm runs a job again", "usage error, exit code 4: the first attempt stays")
DRAINED = Fault("Slurm drains a node of the job meanwhile", "REJECTED (failed), exit code 1")
CPUS = Fault("Slurm gave fewer CPUs than ranks run on, and binds nothing", "REJECTED (failed), exit code 1")
GPUS = Fault("Slurm gave GPUs that ranks do not see", "REJECTED (failed), exit code 1")
CANCELLED = Fault("scancel in a call", "INCOMPLETE (interrupted), exit code 2")
TIME_LIMIT = Fault("the time limit of a Slurm job, in a call", "INCOMPLETE (interrupted), exit code 2")
TORCHRUN_KILLED = Fault("SIGKILL of the torchrun of a Slurm node", "INCOMPLETE (lost), exit code 2")
TASK_KILLED = Fault("SIGKILL of the task of rank 0 under srun; the store that it started lives", "INCOMPLETE (lost), exit code 6")
STORE_KILLED = Fault("SIGKILL of the store that rank 0 started under srun", "INCOMPLETE (interrupted), exit code 3")
UNEQUAL = Fault("unequal numbers of tasks under srun", "usage error, exit code 4, on each node")


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
        assert wait_until(lambda: all((suite / f"begun-{rank}").exists() for rank in (0, 1))), job.text
        return suite, job

    yield submit
    for job in jobs:  # a job that is left holds both nodes
        slurm.ask("scancel", str(job.number))
        slurm.wait(job)


def pid_of(*words, **variables):
    """The process id of the one python whose command holds these words and whose environment holds these variables."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # gone, or a zombie
            command = [*process.cmdline(), ""]
            if command[0] == PYTHON and all(word in " ".join(command) for word in words):
                found += [process.pid] if variables.items() <= process.environ().items() else []
    (pid,) = found
    return pid


def record_of(suite, job):
    return read_results(suite / "reports" / f"slurm-{job.number}")


def test_two_nodes_are_accepted_and_a_job_that_is_run_again_keeps_what_the_first_attempt_said(slurm, tmp_path, seen):
    suite = slurm_suite(tmp_path / "suite", NOT_SHOWN, "environment", "binding")
    job = slurm.submit(suite, *ASKED, options=(*WHOLE_NODES_WITHOUT_GPUS, "--requeue"))
    assert slurm.wait(job) == "COMPLETED 0:0", job.text
    line = job.text.splitlines()[-1]
    untested = "1 node of the partition on which no job starts: not tested"
    weaknesses = f"cpu profile: no GPU was tested, {untested}, 2 limits declared not applicable by overlay one-machine.yaml"
    assert line.startswith(f"ACCEPTED ({weaknesses}) | run slurm-{job.number} | ended "), job.text
    record = record_of(suite, job)
    assert (record.conclusion.coverage.nodes, record.conclusion.coverage.ranks) == (2, 2)
    held = {limit.metric for limit in record.conclusion.limits if limit.status is Status.HELD and limit.metric.startswith("slurm.")}
    asked = {metric for metric in shipped_profile("cpu").limits if metric.startswith("slurm.")}
    assert held == {metric for metric in asked if not any(fnmatchcase(metric, glob) for glob in NOT_SHOWN)}
    told = [figure for row in record.rows for one in row.attempts[-1].ranks for figure in one.figures]
    (named,) = [str(one.value) for one in told if one.metric == "slurm.partition.untested_nodes"]
    assert re.fullmatch(r"node3 DOWN(\+NOT_RESPONDING)? \(no power\)", named)

    results = suite / "reports" / f"slurm-{job.number}" / "results.json"
    first = (results.read_bytes(), job.text)
    assert slurm.run_again(job) == "FAILED 4:0", job.text
    said = f"SLURM_RESTART_COUNT=1: a job run again proves nothing, submit a new one; the first is in {results.parent}\n"
    assert (results.read_bytes(), job.text) == (first[0], first[1] + said)
    seen.told(REQUEUED, re.sub(r"slurm-\d+", "slurm-JOBID", said), 0)


def test_each_node_by_itself(slurm, tmp_path):
    suite = slurm_suite(tmp_path / "suite", NOT_SHOWN)
    extend_conftest(suite, FEWER_CPUS_ON_NODE_2)
    options = (*WHOLE_NODES_WITHOUT_GPUS, "--requeue")
    job = slurm.submit(suite, *ASKED, options=options, env={"SLURM_MPI_TYPE": "pmi2"}, batch=EACH_NODE)  # as MpiDefault of a site
    assert slurm.wait(job) == "FAILED 1:0", job.text
    good, bad = job.text.splitlines()[-2:]
    untested = "1 node of the partition on which no job starts: not tested"
    assert good.startswith(f"node1: ACCEPTED (1 of 2 nodes of the Slurm job, cpu profile: no GPU was tested, {untested}, 1 waived, "), (
        job.text
    )
    assert bad.startswith(
        "node2: REJECTED: 1 limit missed in 1 of 10 validations (1 of 2 nodes of the Slurm job, cpu profile: no GPU was tested, "
    ), job.text
    folders = [suite / "reports" / f"slurm-{job.number}-{node}" for node in ("node1", "node2")]
    said = f"slurm.cpus.lacking = {os.cpu_count() - 1} count (CPUs 0; Slurm gave {os.cpu_count()}), need <= 0 count"
    assert said in Path(f"{folders[1]}.txt").read_text()
    records = [read_results(folder) for folder in folders]
    assert [(record.conclusion.coverage.nodes, record.conclusion.coverage.ranks) for record in records] == [(1, 1)] * 2
    assert slurm.run_again(job) == "FAILED 4:0", job.text
    assert job.text.splitlines()[-1].startswith("SLURM_RESTART_COUNT=1: a job run again proves nothing"), job.text
    assert [read_results(folder) for folder in folders] == records


@pytest.mark.parametrize("batch", [BATCH, EACH_NODE])
def test_an_image_goes_to_srun_which_refuses_it_where_there_is_no_pyxis(slurm, tmp_path, batch):
    suite = make_suite(tmp_path / "suite", "passes")
    job = slurm.submit(suite, env={"CONTAINER_IMAGE": "image.sqsh"}, batch=batch)
    assert slurm.wait(job) == "FAILED 4:0", job.text
    assert "srun: unrecognized option '--container-image=image.sqsh'" in job.text


def test_a_node_drained_gpus_and_cpus_asked_and_not_bound_are_each_rejected_by_their_row(slurm, tmp_path, seen):
    suite = slurm_suite(tmp_path / "suite", NOT_SHOWN)
    (suite / "acceptance" / "test_before.py").write_text(WAITS)
    base = suite / "thresholds" / "base.yaml"
    base.write_text(base.read_text().replace("\n  inventory: [", "\n  before: [before]\n  inventory: [", 1))
    options = ("--oversubscribe", "--cpus-per-task=1", "--gpus-per-node=2")
    job = slurm.submit(suite, *ASKED, options=options)
    assert wait_until(lambda: (suite / "begun").exists()), job.text
    slurm.ask("scontrol", "update", "NodeName=node2", "State=DRAIN", "Reason=fan")
    (suite / "go").touch()
    assert slurm.wait(job) == "FAILED 1:0", job.text
    slurm.ask("scontrol", "update", "NodeName=node2", "State=RESUME")
    record = record_of(suite, job)
    bad = {row.nodeid.rpartition("test_")[2]: row.message for row in record.rows if row.outcome is Outcome.FAILED}
    assert bad.keys() == {"allocation", "cpus", "gpus"}, job.text
    assert bad["allocation"].startswith("slurm.allocation.unsound = 1 count (node2 MIXED+DRAIN (fan ["), bad
    assert f"slurm.cpus.beyond = {os.cpu_count() - 1} count (CPUs 0-{os.cpu_count() - 1}; Slurm gave 1), need <= 0 count" in bad["cpus"]
    assert "slurm.gpus.lacking = 2 count (0 seen; Slurm gave 2), need <= 0 count" in bad["gpus"]
    assert "2 nodes of the partition on which no job starts: not tested" in record.conclusion.line
    assert (suite / "reports" / f"slurm-{job.number}" / "report.html").exists()
    for fault, row in ((DRAINED, "allocation"), (CPUS, "cpus"), (GPUS, "gpus")):
        seen.told(fault, bad[row].split("\n", 1)[0], 0)


def test_options_go_on_to_the_suite_and_the_job_ends_with_the_verdicts_code(slurm, tmp_path):
    """As in a container, in which the verdict is asked for as well."""
    suite = make_suite(tmp_path / "suite", "misses", "passes")
    (tmp_path / "srun").write_text(SRUN_WITHOUT_PYXIS)
    (tmp_path / "srun").chmod(0o755)
    in_container = {"CONTAINER_IMAGE": "image.sqsh", "PATH": f"{tmp_path}:{os.environ['PATH']}", "SRUN": shutil.which("srun")}
    rejected = slurm.submit(suite, "--budget=10m", env=in_container)
    assert slurm.wait(rejected) == "FAILED 1:0", rejected.text
    asked = (suite / "asked").read_text().splitlines()
    assert asked[-1].startswith(
        "--mpi=none --overlap --nodes=1 --ntasks=1 --nodelist=node1 --container-image=image.sqsh --container-mounts="
    )
    assert rejected.text.splitlines()[-1].startswith("REJECTED: 1 limit missed in 1 of ")
    refused = slurm.submit(suite, "--level=none")
    assert slurm.wait(refused) == "FAILED 4:0", refused.text
    assert "--level=none: " in refused.text
    assert refused.text.splitlines()[-1] == f"no run in {suite}/reports/slurm-{refused.number}: see the error above"


def test_scancel_leaves_a_report(slurm, sleeping, seen):
    suite, job = sleeping()
    before = time.monotonic()
    slurm.ask("scancel", str(job.number))
    assert slurm.wait(job).startswith("CANCELLED "), job.text
    record = record_of(suite, job)
    assert record.conclusion.verdict == "INCOMPLETE"
    assert (record.conclusion.reasons[0], record.conclusion.exit_code) == ("interrupted: SIGTERM", 2)
    assert (suite / "reports" / f"slurm-{job.number}" / "report.html").exists()
    assert wait_until(lambda: not processes_in(suite)), processes_in(suite)
    seen.told(CANCELLED, record.conclusion.line, time.monotonic() - before)


def test_before_the_time_limit_the_report_is_written(slurm, sleeping, seen):
    suite, job = sleeping("--time=20", "--signal=TERM@60")
    slurm.ask("scontrol", "update", f"JobId={job.number}", "EndTime=now+90")  # only now: how long a start takes is the machine's
    assert slurm.wait(job) == "FAILED 2:0", job.text
    conclusion = record_of(suite, job).conclusion
    assert conclusion.reasons[0] == "interrupted: SIGTERM"
    assert job.text.splitlines()[-1].startswith("INCOMPLETE: ")
    seen.told(TIME_LIMIT, conclusion.line, 0)


def test_a_torchrun_that_is_killed_is_named_and_the_report_is_there(slurm, sleeping, seen):
    suite, job = sleeping()
    killed = pid_of("torch.distributed.run", "--node-rank=1", f"--run-id=slurm-{job.number} ")
    before = time.monotonic()
    os.kill(killed, signal.SIGKILL)
    assert slurm.wait(job) == "FAILED 2:0", job.text
    conclusion = record_of(suite, job).conclusion
    assert conclusion.reasons[0].startswith("interrupted: the loss of the launcher of node 1 (")
    seen.told(TORCHRUN_KILLED, conclusion.reasons[0], time.monotonic() - before)


def test_what_is_older_than_a_job_and_not_on_the_list_of_the_node_was_left(slurm):
    """Processes of another user than root, by the list of a real slurmd."""
    sleeping = [subprocess.Popen(["sleep", "600"], user="nobody")]
    options = ("--nodes=1", "--nodelist=node1", "--chdir=/", "--output=/dev/null")
    job = slurm.ask("sbatch", "--parsable", *options, "--wrap=exec sleep 601")
    try:
        assert wait_until(lambda: job in slurm_pids(slurm).values()), slurm.ask("scontrol", "show", "job", job)
        time.sleep(0.05)  # two ticks of the clock by which the kernel dates processes
        sleeping.append(subprocess.Popen(["sleep", "600"], user="nobody"))
        listed = slurm_pids(slurm)
        own = next(pid for pid, of_job in listed.items() if of_job == job)
        found = leftovers_of(pwd.getpwnam("nobody").pw_uid, listed, job, own)
        assert [f"sleep {one.pid}" in found for one in sleeping] == [True, False]
    finally:
        slurm.ask("scancel", job)
        for one in sleeping:
            one.kill()
            one.wait()


def slurm_pids(slurm):
    printed = slurm.ask("scontrol", "listpids", "*", "node1")
    return leftover_pids(printed) if "JOBID" in printed else {}


def test_a_task_for_each_rank_is_accepted(slurm, tmp_path):
    """The other style: no torchrun, and rank 0 starts the store. Of the environment sbatch passes on what it is told alone."""
    suite = slurm_suite(tmp_path / "suite", NOT_SHOWN, "environment", "binding")
    options = (*WHOLE_NODES_WITHOUT_GPUS, "--export=PYTHON,RANKS,LAUNCH,MASTER_ADDR,MASTER_PORT")
    job = slurm.submit(suite, *ASKED, options=options, env={"LAUNCH": "srun", "RANKS": "2"})
    assert slurm.wait(job) == "COMPLETED 0:0", job.text
    assert job.text.splitlines()[-1].startswith("ACCEPTED (cpu profile: no GPU was tested, "), job.text
    coverage = record_of(suite, job).conclusion.coverage
    assert (coverage.nodes, coverage.ranks) == (2, 4)
    assert wait_until(lambda: not processes_in(suite)), processes_in(suite)


def test_a_task_that_is_killed_is_named_by_the_others_though_it_was_rank_0(slurm, sleeping, seen):
    suite, job = sleeping(LAUNCH="srun")
    before = time.monotonic()
    os.kill(pid_of(f"--run-id=slurm-{job.number} ", SLURM_PROCID="0"), signal.SIGKILL)
    assert slurm.wait(job) == "FAILED 6:0", job.text
    record = record_of(suite, job)
    assert record.conclusion.verdict == "INCOMPLETE"
    assert "rank 0 lost: no heartbeat for 15 s" in "\n".join(record.conclusion.reasons)
    assert job.text.splitlines()[-1].startswith("INCOMPLETE: ")
    assert wait_until(lambda: not processes_in(suite)), processes_in(suite)
    seen.told(TASK_KILLED, record.conclusion.line, time.monotonic() - before)


def test_a_store_that_is_killed_is_named_with_its_address_and_ends_the_run(slurm, sleeping, seen):
    suite, job = sleeping(LAUNCH="srun")
    store = pid_of("gpu_acceptance.control.store_host", f"gpu-acceptance/slurm-{job.number}.")
    before = time.monotonic()
    os.kill(store, signal.SIGKILL)
    assert slurm.wait(job) == "FAILED 3:0", job.text
    record = record_of(suite, job)
    assert record.conclusion.verdict == "INCOMPLETE"
    assert re.match(r"the control store at 127\.0\.0\.1:\d+ is gone: ", record.conclusion.reasons[0])
    second = (suite / "reports" / f"slurm-{job.number}" / "logs" / "rank-00001.pytest.txt").read_text()
    assert re.search(r"the control store at 127\.0\.0\.1:\d+ is gone: ", second), second
    assert wait_until(lambda: not processes_in(suite)), processes_in(suite)
    seen.told(STORE_KILLED, record.conclusion.line, time.monotonic() - before)


def test_another_way_to_launch_is_a_usage_error(slurm, tmp_path):
    job = slurm.submit(make_suite(tmp_path / "suite", "passes"), env={"LAUNCH": "mpirun"})
    assert slurm.wait(job) == "FAILED 4:0", job.text
    assert job.text == "LAUNCH=mpirun: torchrun (one on each node) or srun (a task for each rank)\n"


@pytest.mark.parametrize("launch", ["torchrun", "srun"])
def test_where_nodes_cannot_meet_the_first_one_says_so_and_nothing_starts(slurm, tmp_path, launch):
    """The other node would wait for a quarter of an hour: Slurm ends it."""
    suite = make_suite(tmp_path / "suite", "passes")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        job = slurm.submit(suite, env={"LAUNCH": launch, "MASTER_PORT": str(port)})
        assert slurm.wait(job) == "FAILED 4:0", job.text
    other = "name another one, the same on every node (MASTER_PORT, --rdzv-endpoint)"
    assert re.search(rf"^gpu-acceptance: port {port} of .* \(node 0\): Address already in use; {re.escape(other)}$", job.text, re.MULTILINE)
    assert job.text.endswith(f"no run in {suite}/reports/slurm-{job.number}: see the error above\n"), job.text


def test_an_address_that_leads_nowhere_is_said_by_the_first_node(slurm, tmp_path):
    suite = make_suite(tmp_path / "suite", "passes")
    job = slurm.submit(suite, env={"MASTER_ADDR": "nowhere.invalid", "JOIN_TIMEOUT": "8s"})
    assert slurm.wait(job) == "FAILED 4:0", job.text
    end = rf"does not lead there: {NO_NAME}; name the host of node 0 \(MASTER_ADDR, --rdzv-endpoint\)"
    assert re.search(rf"^gpu-acceptance: node 0 is .*, and nowhere\.invalid:\d+ {end}$", job.text, re.MULTILINE), job.text


def test_unequal_tasks_are_one_line_on_each_node(slurm, tmp_path, seen):
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
    error = "ERROR: SLURM_STEP_TASKS_PER_NODE='2,1': start as many tasks on every node (srun --ntasks-per-node=N)"
    assert said.count(error) == 2, said
    assert said.count("code 4") == 3, "each task of it, one of each node says why"
    seen.told(UNEQUAL, error, 0)
