"""`make accept` with stand-ins for what it starts: what it passes on, and what it says last."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


@pytest.fixture
def checkout(tmp_path):
    """The Makefile with an environment that is ready: a torchrun that prints its arguments, and a gpu-acceptance that returns 6."""
    (tmp_path / "tools").mkdir()
    for name in ("Makefile", "tools/accept.py"):
        shutil.copy(ROOT / name, tmp_path / name)
    for name in ("pyproject.toml", "setup.py", "constraints.txt", "tools/make_venv.py", ".venv/.ready"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    write_program(tmp_path / ".venv" / "bin" / "gpu-acceptance", 'echo "asked for $*"; exit 6')
    write_torchrun(tmp_path, 'echo "ran $*"; exit 1')
    return tmp_path


def write_torchrun(checkout, text):
    python = f'case $1 in tools/*) exec {sys.executable} "$@";; esac'
    write_program(checkout / ".venv" / "bin" / "python", f"{python}\n{text}")


def write_program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def plain_environment():
    ours = ("MAKE", "MFLAGS", "RANKS", "REPORTS", "ARGS", "VENV")  # of the make that runs these tests, and what would decide for this one
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


def make(checkout, *arguments, **env):
    env = {**plain_environment(), **env}
    return subprocess.run(["make", *arguments], cwd=checkout, env=env, capture_output=True, text=True, check=False, timeout=180)


def test_a_run_that_was_refused_has_no_verdict(checkout):
    done = make(checkout, "accept", "RANKS=4", "ARGS=--gpus=4")
    assert done.returncode == 2
    assert "--nproc-per-node=4 -m pytest acceptance/ --report-dir=reports --run-id=" in done.stdout
    assert done.stdout.endswith(" --gpus=4\n")
    assert done.stderr.startswith("no run: see the error above\n")


def test_ranks_meet_on_a_machine_whose_own_name_resolves_to_nothing(checkout):
    """As in a container without a network: there torchrun waits for ever, unless it is told an address."""
    assert " --standalone --local-addr=127.0.0.1 " in make(checkout, "accept", "RANKS=1").stdout


@pytest.mark.parametrize(("given", "taken"), [("", 1), ("3", 3)])
def test_each_rank_has_one_thread_where_nobody_says_otherwise(checkout, given, taken):
    write_torchrun(checkout, 'echo "threads: $OMP_NUM_THREADS"')
    assert make(checkout, "accept", "RANKS=1", OMP_NUM_THREADS=given).stdout == f"threads: {taken}\n"


def test_a_run_that_left_a_folder_is_asked_for_its_verdict(checkout):
    make_folder = 'for word; do case $word in --run-id=*) mkdir -p "all runs/${word#--run-id=}";; esac; done'
    write_torchrun(checkout, make_folder)
    done = make(checkout, "accept", "RANKS=1", "REPORTS=all runs")
    assert done.returncode == 2
    assert done.stdout.startswith("asked for verdict all runs/2")
    assert "Error 6" in done.stderr


TAKES_ITS_TIME = """
for word; do case $word in --run-id=*) mkdir -p "reports/${word#--run-id=}";; esac; done
trap 'kill $!; echo "torchrun was told"; sleep 0.3; echo "torchrun has ended"; exit 1' TERM INT
echo up
sleep 60 > /dev/null 2>&1 &
wait
"""


@pytest.mark.parametrize("to", ["make", "the group"])
def test_a_run_that_is_asked_to_end_ends_before_make_and_tells_its_verdict(checkout, to):
    """SIGTERM is of `docker stop`, or of a CI job that is cancelled; SIGINT of a terminal goes to all of its processes."""
    write_torchrun(checkout, TAKES_ITS_TIME)
    process = subprocess.Popen(
        ["make", "accept", "RANKS=1"], cwd=checkout, env=plain_environment(), stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout.readline() == "up\n"
    if to == "make":
        process.terminate()
    else:
        os.killpg(process.pid, signal.SIGINT)
    said = process.communicate(timeout=60)[0]
    assert said.startswith("torchrun was told\ntorchrun has ended\nasked for verdict reports/2")
    assert process.returncode == (-signal.SIGTERM if to == "make" else -signal.SIGINT)


@pytest.mark.parametrize("argument", ["--run-id=first", "--report-dir=x", "--plan", "--collect-only", "--help"])
def test_what_make_itself_decides_is_not_taken_from_args(checkout, argument):
    done = make(checkout, "accept", "RANKS=1", f"ARGS=--gpus=4 {argument}")
    assert done.returncode == 2
    assert done.stdout == ""
    assert f"{argument} is not for ARGS of `make accept`, which names its run and judges it: " in done.stderr
    assert "REPORTS=DIR is the folder of all runs, `make plan` the plan" in done.stderr


@pytest.mark.parametrize("arguments", [["accept"], ["accept", "OFFLINE=1"], ["plan"], ["bundle"]])
def test_an_older_python_is_told_before_it_reads_anything(checkout, arguments):
    """As python3 of RHEL 9 is; a module that is not there would be a traceback."""
    (checkout / ".venv" / ".ready").unlink()
    older = "import sys; sys.version_info = (3, 9, 18); "
    write_program(checkout / "older", f'exec {sys.executable} -c "{older}$2"')
    done = make(checkout, *arguments, "PYTHON=./older")
    assert done.returncode == 2
    assert done.stderr.startswith("PYTHON=./older is Python 3.9: name one of 3.11 or newer, PYTHON=python3.12\n")
