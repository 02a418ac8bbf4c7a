"""Events of a supervisor, with a real worker that writes faster than they can be read."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src"
FLOODS = """
import os

while True:
    os.write(int(os.environ["GPU_ACCEPTANCE_CHANNEL"].split(",")[1]), b'{"type": "step", "name": "x"}\\n' * 1000)
"""
SUPERVISES = f"""
import os, sys
sys.path.insert(0, {str(SRC)!r})
from pathlib import Path
from types import SimpleNamespace
from gpu_acceptance.supervisor.events import Events, Exit, FromWorker, Garbled
from gpu_acceptance.base.exit import StopSignals
from gpu_acceptance.supervisor.worker_process import WorkerProcess

folder = Path.cwd()
worker = WorkerProcess([sys.executable, "floods.py"], dict(os.environ), folder, folder / "log", folder / "stacks")
events = Events(SimpleNamespace(wake_fd=os.eventfd(0)), StopSignals("node 0", has_launcher=True))
events.watch(worker)
while not ((got := events.wait()) and isinstance(got[-1], FromWorker) and isinstance(got[-1].message, Garbled)):
    pass
assert len(got) == 1  # of the flood itself nothing is handled
print(got[-1].message.what)
worker.kill()
while not got or not isinstance(got[-1], Exit):
    got = events.wait()
print(got[-1].status)
"""


@pytest.mark.slow
def test_a_worker_that_floods_blocks_no_loop_and_is_not_trusted(tmp_path):
    (tmp_path / "floods.py").write_text(FLOODS)
    command = [sys.executable, "-c", SUPERVISES]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=180, check=False)
    first, second = done.stdout.splitlines()
    assert re.fullmatch(r"a flood of \d+ messages at once; allowed: 100", first)
    assert (done.returncode, second) == (0, "signal SIGKILL")
