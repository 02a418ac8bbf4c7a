"""A fork of tests/warm.py behaves as a started process does, but for the time that its imports take."""

import subprocess
import sys
from pathlib import Path

import pytest
from clean_environment import clean_environment
from waiting import HANG_S
from warm import Forked, Server, fork

pytestmark = pytest.mark.slow

SHOWN = """
import os, sys
from pathlib import Path
def test_it():
    proc = Path("/proc/self")
    command = (proc / "cmdline").read_bytes().split(b"\\0")
    environment = set((proc / "environ").read_bytes().split(b"\\0"))
    open_files = sorted(os.readlink(file) for file in (proc / "fd").iterdir() if file.is_symlink() and int(file.name) > 2)
    shown = command, sorted(environment), os.getcwd(), sys.path[0], sys.argv[1:], sys.gettrace(), len(list((proc / "task").iterdir()))
    print("\\nshown", shown, [file for file in open_files if "pidfd" in file])
    assert sum("socket" in file for file in open_files) == ("warm_nest" in sys.modules)
    assert "torch" in sys.modules or os.environ["WARM"] == "no"
    assert False, "meant"
"""


def said(text):
    """Without what every process of pytest has of its own."""
    return [line for line in text.splitlines() if line.startswith("shown")]


def test_it_cannot_be_told_from_one_that_was_started(tmp_path):
    (tmp_path / "test_shown.py").write_text(SHOWN)
    command = [sys.executable, "-m", "pytest", "-s", "-p", "no:cacheprovider", "test_shown.py"]
    environment = {**clean_environment(), "WARM": "no"}
    started = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    forked = fork(command, tmp_path, environment, None)
    assert isinstance(forked, Forked)
    output, _ = forked.communicate(timeout=HANG_S)
    assert said(output) == said(started.stdout) != []
    assert forked.poll() == forked.returncode == started.returncode


def test_what_it_imported_is_there(tmp_path):
    (tmp_path / "test_shown.py").write_text(SHOWN)
    command = [sys.executable, "-m", "pytest", "-s", "-p", "no:cacheprovider", "test_shown.py"]
    output = tmp_path / "output"
    forked = fork(command, tmp_path, {**clean_environment(), "WARM": "yes"}, output)
    assert forked.wait(timeout=HANG_S) == 1
    assert "AssertionError: meant" in output.read_text()


ENDS = """
import atexit, sys, threading, time
print("kept in a buffer")
atexit.register(print, "exit function")
threading.Thread(target=lambda: (time.sleep(0.3), print("its thread"))).start()
{end}
"""


@pytest.mark.parametrize("end", ["pass", "sys.exit(3)", "sys.exit('words')", "sys.exit()", "raise ValueError('words')"])
def test_it_ends_as_python_does(tmp_path, end):
    script = tmp_path / "script.py"
    script.write_text(ENDS.format(end=end))
    started = subprocess.run([sys.executable, script], cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, check=False)
    server = Server(clean_environment(), ("json",))
    request = {"script": str(script), "arguments": [], "cwd": str(tmp_path), "environment": clean_environment()}
    output, errors = tmp_path / "output", tmp_path / "errors"
    forked = Forked(server, request, output, errors)
    assert forked.wait(timeout=HANG_S) == started.returncode
    server.close()
    assert output.read_text() == started.stdout
    assert errors.read_text().splitlines()[-1:] == started.stderr.splitlines()[-1:]


def test_a_signal_is_its_end(tmp_path):
    (tmp_path / "test_long.py").write_text("import time\nprint('long', flush=True)\ndef test_it(): time.sleep(600)\n")
    forked = fork([sys.executable, "-m", "pytest", "test_long.py"], tmp_path, clean_environment(), tmp_path / "output")
    assert forked.poll() is None
    forked.kill()
    assert forked.wait(timeout=HANG_S) == -9


def test_what_is_read_once_has_it_started_anew(tmp_path):
    command = [sys.executable, "-m", "pytest", "--version"]
    assert fork(command, tmp_path, {**clean_environment(), "OMP_NUM_THREADS": "3"}, None) is None
    assert fork(command, tmp_path, {**clean_environment(), "PYTHONPATH": "elsewhere"}, None) is None
    assert fork([sys.executable, "-m", "json.tool"], tmp_path, clean_environment(), None) is None
    assert fork([sys.executable, "-c", "pass"], tmp_path, clean_environment(), None) is None
    assert fork([str(Path(sys.executable).parent / "python9"), *command[1:]], tmp_path, clean_environment(), None) is None


def test_libraries_that_start_threads_at_their_import_are_no_obstacle():
    """As OpenBLAS does where nothing says how many it may have."""
    environment = {name: value for name, value in clean_environment().items() if not name.startswith(("OMP_", "OPENBLAS_", "MKL_"))}
    Server(environment, ("numpy", "torch")).close()


PACKAGE = """
import gpu_acceptance.run.suite
def test_it():
    print("\\nshown", gpu_acceptance.run.suite.__file__)
"""


@pytest.mark.parametrize("is_ours", [True, False])
def test_the_package_is_found_where_the_suite_has_it(tmp_path, is_ours):
    """Also where that is another package, of which nothing was imported before."""
    (tmp_path / "conftest.py").write_text("import sys\nsys.path.insert(0, 'src')\n")
    (tmp_path / "test_shown.py").write_text(PACKAGE)
    if is_ours:
        (tmp_path / "src").symlink_to(Path(__file__).parents[1] / "src")
    else:
        (tmp_path / "src" / "gpu_acceptance" / "run").mkdir(parents=True)
        for name in ("__init__.py", "run/__init__.py", "run/suite.py"):
            (tmp_path / "src" / "gpu_acceptance" / name).touch()
    command = [sys.executable, "-m", "pytest", "-s", "-p", "no:cacheprovider", "test_shown.py"]
    forked = fork(command, tmp_path, clean_environment(), None)
    output, _ = forked.communicate(timeout=HANG_S)
    assert [Path(line.split()[1]) for line in said(output)] == [tmp_path / "src" / "gpu_acceptance" / "run" / "suite.py"]
