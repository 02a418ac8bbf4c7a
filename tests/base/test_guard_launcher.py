"""A launcher that does not notice the end of its ranks: real processes."""

import signal
import subprocess
import sys

import pytest

from gpu_acceptance.base.guard import end_launcher, end_launcher_later, is_torchrun

pytestmark = pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")
DEAF = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("deaf", flush=True)
signal.pause()
"""


def test_a_launcher_that_stays_is_told_to_end():
    with subprocess.Popen(["torchrun", "600"], executable="sleep") as launcher:
        end_launcher_later(launcher.pid, patience_s=0.2)
        assert launcher.wait(60) == -signal.SIGTERM


def test_one_that_does_not_hear_that_either_is_killed(tmp_path):
    (tmp_path / "torchrun").write_text(DEAF)
    with subprocess.Popen([sys.executable, str(tmp_path / "torchrun")], stdout=subprocess.PIPE) as launcher:
        assert launcher.stdout.readline() == b"deaf\n"
        end_launcher_later(launcher.pid, patience_s=0.2)
        assert launcher.wait(60) == -signal.SIGKILL


def test_a_launcher_that_ends_by_itself_is_left_alone():
    with subprocess.Popen(["torchrun", "0.5"], executable="sleep") as launcher:
        end_launcher(launcher.pid, patience_s=60)
        assert launcher.wait(60) == 0
        end_launcher(launcher.pid, patience_s=60)  # and one that is gone is nobody


def test_a_parent_that_is_no_torchrun_is_left_alone():
    with subprocess.Popen(["sh", "-c", "read line; exit 7"], stdin=subprocess.PIPE) as shell:
        end_launcher(shell.pid, patience_s=0.1)
        shell.communicate(b"torchrun\n")
    assert shell.returncode == 7


@pytest.mark.parametrize(
    ("command", "is_one"),
    [
        (["/venv/bin/python3.11", "-m", "torch.distributed.run", "-m", "pytest"], True),
        (["/venv/bin/python3.11", "-u", "-m", "torch.distributed.launch", "-m", "pytest"], True),
        (["/venv/bin/python3.11", "/venv/bin/torchrun", "-m", "pytest"], True),
        (["/venv/bin/torchrun", "-m", "pytest"], True),
        (["sh", "-c", "torchrun; upload"], False),
        (["sh", "torchrun"], False),
        (["/venv/bin/python3.11", "-m", "pytest", "torchrun"], False),
        (["/venv/bin/python3.11"], False),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_is_a_torchrun(tmp_path, command, is_one):
    (tmp_path / "17").mkdir()
    (tmp_path / "17" / "cmdline").write_text("".join(f"{part}\0" for part in command))
    assert is_torchrun(17, tmp_path) is is_one


def test_a_process_that_is_gone_or_a_zombie_is_none(tmp_path):
    assert not is_torchrun(17, tmp_path)
    (tmp_path / "17").mkdir()
    (tmp_path / "17" / "cmdline").write_text("")
    assert not is_torchrun(17, tmp_path)
