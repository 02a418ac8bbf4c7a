"""The slot of a worker: a real one that writes faster than it can be read, and the GPU that one opened."""

import os
import re
import selectors
import sys
import threading
import time
from types import SimpleNamespace

import pytest
from inventory.fake_nvml import install
from judging import make_identity
from waiting import wait_until

from gpu_acceptance.supervisor import worker_slot
from gpu_acceptance.supervisor.worker_process import WorkerProcess
from gpu_acceptance.supervisor.worker_slot import read_messages

FLOODS = """
import os

while True:
    os.write(int(os.environ["GPU_ACCEPTANCE_CHANNEL"].split(",")[1]), b'{"type": "step", "name": "x"}\\n' * 1000)
"""


@pytest.mark.slow
def test_a_worker_that_floods_blocks_no_loop_and_is_not_trusted(tmp_path):
    (tmp_path / "floods.py").write_text(FLOODS)
    folder = tmp_path
    worker = WorkerProcess([sys.executable, "floods.py"], dict(os.environ), folder, folder / "log", folder / "stacks")
    is_open = True
    while is_open:
        found, is_open = read_messages(worker.reader)
    (flood,) = found  # of the flood itself nothing is handled
    assert re.fullmatch(r"a flood of \d+ messages at once; allowed: 100", str(flood))
    worker.kill()
    assert wait_until(lambda: str(worker.exit_status()) == "signal SIGKILL")
    worker.close()


@pytest.fixture
def hold(monkeypatch, tmp_path):
    """A supervisor's hold on its worker; it starts and kills no process here."""
    install(monkeypatch)
    monkeypatch.setattr(worker_slot, "start_janitor", lambda *_: SimpleNamespace(pid=0, poll=lambda: None))
    for name in ("kill_marked", "kill_descendants"):
        monkeypatch.setattr(worker_slot, name, lambda *_, **__: None)
    made = worker_slot.WorkerSlot(SimpleNamespace(prefix="telemetry"), selectors.DefaultSelector(), tmp_path, make_identity(0, 1, 1))
    yield made
    made.kill_everything()


def lately(hold):
    now_s = time.monotonic()
    return hold.telemetry.during(now_s - 2.0, now_s)


def samplers():
    return [thread for thread in threading.enumerate() if thread.name == "telemetry"]


def test_the_slot_samples_the_gpu_that_its_worker_opened(hold):
    assert (lately(hold), samplers()) == (None, [])
    hold.opened("GPU-00000001-0000-4000-8000-000000000001")
    assert len(samplers()) == 1
    assert wait_until(lambda: lately(hold).num_samples > 0)
    hold.kill_everything()
    assert samplers() == []
