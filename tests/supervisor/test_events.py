"""What a supervisor waits for: a real worker that writes more than anybody can read."""

import re
import subprocess
import sys
from pathlib import Path

SRC = Path(__file__).parents[2] / "src"
FLOODS = """
import os

while True:
    os.write(int(os.environ["GPU_ACCEPTANCE_CHANNEL"].split(",")[1]), b'{"type": "step"}\\n' * 1000)
"""
SUPERVISES = f"""
import os, sys
sys.path.insert(0, {str(SRC)!r})
from pathlib import Path
from types import SimpleNamespace
from gpu_acceptance.supervisor.events import Events
from gpu_acceptance.processes.stop_signals import StopSignals
from gpu_acceptance.supervisor.worker_process import WorkerProcess

folder = Path.cwd()
worker = WorkerProcess([sys.executable, "floods.py"], dict(os.environ), folder, folder / "log", folder / "stacks")
events = Events(SimpleNamespace(wake_fd=os.eventfd(0)), StopSignals("node 0", has_launcher=True))
events.watch(worker)
while (got := events.wait()) == [] or got[-1].message["type"] != "garbled":
    pass
assert len(got) == 1  # of the flood itself nothing is handled
print(got[-1].message["message"])
worker.kill()
while not got or got[-1].kind != "exit":
    got = events.wait()
print(got[-1].message["status"])
"""


def test_a_worker_that_floods_keeps_nobody_and_is_believed_no_more(tmp_path):
    (tmp_path / "floods.py").write_text(FLOODS)
    command = [sys.executable, "-c", SUPERVISES]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=180, check=False)
    first, second = done.stdout.splitlines()
    assert re.fullmatch(r"a flood of \d+ messages at once; allowed: 100", first)
    assert (done.returncode, second) == (0, "signal SIGKILL")
