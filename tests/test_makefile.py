"""`make` with a stand-in for `gpu-acceptance`, and `tools/make_venv.py`: what they pass on, install and refuse."""

import os
import shutil
import signal
import subprocess
import sys
import venv

import pytest
from bundles import write_wheel
from clean_environment import clean_environment
from waiting import HANG_S

from tools.make_venv import OWN, ROOT, install, make_venv

pytestmark = pytest.mark.needs("make")


@pytest.fixture
def checkout(tmp_path):
    """The Makefile with an environment that is ready: a gpu-acceptance that prints its arguments, and returns 6."""
    shutil.copy(ROOT / "Makefile", tmp_path / "Makefile")
    for name in ("pyproject.toml", "setup.py", "constraints.txt", "tools/make_venv.py", ".venv/.ready"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    write_program(tmp_path / ".venv" / "bin" / "gpu-acceptance", 'printf "<%s>" "$@"; exit 6')
    return tmp_path


def write_program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def make(checkout, *arguments, **env):
    env = {**clean_environment(), **env}
    return subprocess.run(["make", *arguments], cwd=checkout, env=env, capture_output=True, text=True, check=False, timeout=180)


@pytest.mark.parametrize(
    ("arguments", "passed_on"),
    [
        (["accept"], "<run><--report-dir=reports>"),
        (["accept", "RANKS=4", "ARGS=--gpus=4 -k hbm"], "<run><--report-dir=reports><--ranks=4><--gpus=4><-k><hbm>"),
        (["accept", "REPORTS=all runs"], "<run><--report-dir=all runs>"),
        (["plan", "ARGS=--level=quick"], "<run><--plan><--level=quick>"),
        (["drill", "RANKS=2"], "<drill><--report-dir=reports><--ranks=2>"),
    ],
)
def test_a_run_is_that_of_the_program_and_ends_with_its_exit_code(checkout, arguments, passed_on):
    done = make(checkout, *arguments)
    assert done.stdout == passed_on
    assert done.stderr.startswith("make: *** ")
    assert done.stderr.endswith("Error 6\n")


TAKES_ITS_TIME = """
trap 'kill $!; echo "the run was told"; sleep 0.3; echo "the run has ended"; exit 2' TERM INT
echo up
sleep 60 > /dev/null 2>&1 &
wait
"""


@pytest.mark.parametrize("to", ["make", "the group"])
def test_a_run_that_is_asked_to_end_ends_before_make(checkout, to):
    """SIGTERM is of `docker stop`, or of a CI job that is cancelled; SIGINT of a terminal goes to all of its processes."""
    write_program(checkout / ".venv" / "bin" / "gpu-acceptance", TAKES_ITS_TIME)
    process = subprocess.Popen(
        ["make", "accept"], cwd=checkout, env=clean_environment(), stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout.readline() == "up\n"
    if to == "make":
        process.terminate()
    else:
        os.killpg(process.pid, signal.SIGINT)
    assert process.communicate(timeout=HANG_S)[0] == "the run was told\nthe run has ended\n"
    assert process.returncode == (-signal.SIGTERM if to == "make" else -signal.SIGINT)


@pytest.mark.parametrize("arguments", [["accept"], ["accept", "OFFLINE=1"], ["plan"], ["bundle"]])
def test_an_older_python_is_told_before_it_reads_anything(checkout, arguments):
    """As python3 of RHEL 9 is; a module that is not there would be a traceback."""
    (checkout / ".venv" / ".ready").unlink()
    older = "import sys; sys.version_info = (3, 9, 18); "
    write_program(checkout / "older", f'exec {sys.executable} -c "{older}$2"')
    done = make(checkout, *arguments, "PYTHON=./older")
    assert done.returncode == 2
    assert done.stderr.startswith("PYTHON=./older is Python 3.9: name one of 3.11 or newer, PYTHON=python3.12\n")


@pytest.mark.slow
def test_a_site_that_installs_into_homes_changes_nothing(tmp_path, monkeypatch):
    home, wheel = tmp_path / "home", write_wheel(tmp_path, "of_a_site", "1")
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PIP_USER", "1")
    venv.create(tmp_path / "made", system_site_packages=True)
    install(tmp_path / "made" / "bin" / "python", ["--no-index", "--no-deps", str(wheel)])
    assert list((tmp_path / "made").glob("lib/python*/site-packages/of_a_site.py"))
    assert list(home.rglob("of_a_site*")) == []


@pytest.fixture
def ready_checkout(tmp_path):
    """With an environment that this python made, and that is ready."""
    (tmp_path / "tools").mkdir()
    for name in ("Makefile", "pyproject.toml", "setup.py", "constraints.txt", "tools/make_venv.py"):
        shutil.copy(ROOT / name, tmp_path / name)
    make_venv(tmp_path / ".venv", with_own_packages=True, with_pip=False)
    (tmp_path / ".venv" / ".ready").touch()
    return tmp_path


@pytest.mark.parametrize("target", ["accept", "plan"])
def test_a_python_that_the_environment_is_not_of_is_refused(ready_checkout, target):
    """Else what is tested would be the torch of the other one, without a word."""
    venv.create(ready_checkout / "other", with_pip=False)
    other = ready_checkout / "other" / "bin" / "python"
    done = subprocess.run(["make", target, f"PYTHON={other}"], cwd=ready_checkout, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    is_of = f"{OWN.partition(' in ')[0]} in {ready_checkout}/other"
    assert done.stderr.startswith(f".venv was made with {OWN}, and PYTHON is {is_of}: `make clean` removes it, or leave PYTHON out\n")


@pytest.mark.parametrize("python", [sys.executable, ".venv/bin/python"])
def test_the_python_that_the_environment_is_of_is_taken_and_its_own(ready_checkout, python):
    done = subprocess.run([python, "tools/make_venv.py", ".venv"], cwd=ready_checkout, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
