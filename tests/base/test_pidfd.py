import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_acceptance.base import janitor
from gpu_acceptance.base.janitor import find_unusable, pidfd_open, pidfd_send_signal

AS_A_PYTHON_WITHOUT = """
import os, runpy, signal, sys

del os.pidfd_open, signal.pidfd_send_signal
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture(params=["with", "without"])
def functions(request, monkeypatch):
    if request.param == "without":
        monkeypatch.delattr(os, "pidfd_open")
        monkeypatch.delattr(signal, "pidfd_send_signal")


@pytest.mark.usefixtures("functions")
def test_the_end_of_a_process_is_seen_and_a_signal_reaches_it():
    with subprocess.Popen(["sleep", "600"]) as process:
        pidfd = pidfd_open(process.pid)
        assert not select.select([pidfd], [], [], 0)[0]
        pidfd_send_signal(pidfd, signal.SIGKILL)
        assert select.select([pidfd], [], [], 60)[0]
        assert process.wait() == -signal.SIGKILL
    os.close(pidfd)
    assert find_unusable() is None


@pytest.mark.usefixtures("functions")
def test_a_process_that_is_not_there():
    with subprocess.Popen(["true"]) as process:
        process.wait()
    with pytest.raises(ProcessLookupError):
        pidfd_open(process.pid)


@pytest.mark.slow
def test_the_janitor_waits_in_a_python_without_them(tmp_path):
    """It ends once its supervisor has, and has removed the folders; before that it does not."""
    (tmp_path / "stem-1").mkdir()
    code = AS_A_PYTHON_WITHOUT.replace("sys.argv[0]", repr(str(Path(janitor.__file__))))
    with subprocess.Popen(["sleep", "600"]) as supervisor:
        command = [sys.executable, "-I", "-S", "-c", code, str(supervisor.pid), "no-such-mark", str(tmp_path / "stem-1")]
        with subprocess.Popen(command) as cleaner:
            with pytest.raises(subprocess.TimeoutExpired):
                cleaner.wait(timeout=3)
            assert (tmp_path / "stem-1").exists()
            supervisor.kill()
            supervisor.wait()
            assert cleaner.wait(timeout=60) == 0
    assert not (tmp_path / "stem-1").exists()
