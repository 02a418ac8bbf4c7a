"""Processes that an earlier job left on a node, from real processes and the output of `scontrol listpids`."""

import os
import pwd
import subprocess
import time

import psutil
import pytest

from gpu_acceptance.inventory import slurm, slurm_health
from gpu_acceptance.inventory.answer import Missing, Why

LISTPIDS = "PID      JOBID    STEPID   LOCALID GLOBALID\n"


def row(pid, job="7"):
    return f"{pid:<8} {job:<8} 0        -       -      \n"


@pytest.fixture
def of_nobody():
    """Starts processes of the user nobody, and ends them."""
    started = []

    def start(command="sleep"):
        started.append(subprocess.Popen([command, "600"], user="nobody"))
        time.sleep(0.05)  # two ticks of the clock by which the kernel dates processes
        return started[-1].pid

    yield start
    for one in started:
        one.kill()
        one.wait()


def test_the_list_of_processes(commands):
    commands.print("listpids", LISTPIDS + row(10) + row(11, "8") + row(-1) + "12       9        batch    0       0      \n")
    assert slurm.leftover_pids((commands.folder / "listpids").read_text()) == {10: "7", 11: "8", 12: "9"}


@pytest.mark.parametrize("text", ["", "No job steps exist on this node.\n", LISTPIDS + "ten 7 0 - -\n", LISTPIDS + "10 7\n"])
def test_a_text_that_is_no_list_of_processes(text):
    with pytest.raises(ValueError, match="no list of processes: "):
        slurm.leftover_pids(text)


@pytest.mark.needs("root")
def test_processes_of_an_earlier_job_are_named_and_later_ones_are_not(of_nobody):
    nobody = pwd.getpwnam("nobody").pw_uid
    left, of_another_job, own, later = of_nobody(), of_nobody(), of_nobody(), of_nobody()
    listed = {own: "7", of_another_job: "8"}
    found = slurm.leftovers_of(nobody, listed, "7", own)
    assert [name for name in found if name.endswith((f" {left}", f" {of_another_job}", f" {own}", f" {later}"))] == [f"sleep {left}"]
    metric, number, unit, said = next(slurm_health.leftovers(found))
    assert (metric, number, unit) == ("slurm.leftovers.processes", len(found), "count")
    assert f"sleep {left}" in said


def test_leftovers_of_root_are_unknown():
    found = slurm.leftovers_of(0, {1: "7"}, "7", 1)
    assert found == Missing(Why.NOT_SUPPORTED, "the job runs as root, to whom the processes of the system belong too")
    assert next(slurm_health.leftovers(found))[1] == found


@pytest.mark.parametrize("listed", [{}, {4711: "8"}])
def test_a_list_without_this_process_is_of_other_processes(listed):
    said = "process 4711 is of job 7, and is missing in scontrol listpids: a container with its own PIDs?"
    assert slurm.leftovers_of(1000, listed, "7", 4711) == Missing(Why.UNREADABLE, said)


def test_processes_are_asked_of_the_node_by_its_own_name(commands, monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: 12345)  # a user without processes
    commands.print("listpids", LISTPIDS + row(os.getpid()))
    assert slurm.read_leftovers(commands.environ) == ()
    assert commands.asked == ["listpids * node1"]


def test_a_process_that_ends_meanwhile_is_none(monkeypatch):
    gone = psutil.Process()
    gone.info = {"name": None, "uids": None, "create_time": 0.0}
    own = psutil.Process(os.getppid())
    own.info = {"name": "own", "uids": own.uids(), "create_time": 1.0}
    monkeypatch.setattr(psutil, "process_iter", lambda names: iter([gone, own]))
    assert slurm.leftovers_of(12345, {own.pid: "7"}, "7", own.pid) == ()
