"""What one validation changes, the next one does not see."""

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from waiting import wait_until

from gpu_acceptance.worker.leftovers import Leftovers, own_children
from gpu_acceptance.worker.surroundings import Surroundings


@pytest.fixture
def surroundings():
    made = Surroundings()
    yield made
    made.restore()


CHANGES = {
    "torch default_dtype is torch.float64, was torch.float32": lambda: torch.set_default_dtype(torch.float64),
    "torch default_device is meta, was cpu": lambda: torch.set_default_device("meta"),
    "torch deterministic is True, was False": lambda: torch.use_deterministic_algorithms(True),
    "torch grad is False, was True": lambda: torch.set_grad_enabled(False),
    "torch matmul.fp32_precision is tf32, was ": lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32"),
    "NCCL_ALGO='TREE', was None": lambda: os.environ.update(NCCL_ALGO="TREE"),
    "HOME=None, was ": lambda: os.environ.pop("HOME"),
    "the working directory is /": lambda: os.chdir("/"),
}


@pytest.mark.parametrize(("text", "change"), CHANGES.items(), ids=CHANGES)
def test_a_change_is_seen_and_undone(surroundings, monkeypatch, text, change):
    monkeypatch.setenv("HOME", os.environ.get("HOME", "/root"))
    assert surroundings.changes() == []
    change()
    assert any(seen.startswith(text) for seen in surroundings.changes())
    surroundings.restore()
    assert surroundings.changes() == []


def test_what_pytest_writes_into_the_environment_is_no_change(surroundings, monkeypatch):
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "another one")
    assert surroundings.changes() == []


def test_a_new_thread_and_a_new_process_are_left_behind():
    before = Leftovers()
    go = threading.Event()
    thread = threading.Thread(target=go.wait, name="left-alone")
    thread.start()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        found = before.found()
        process.communicate(b"\n")
    go.set()
    thread.join()
    assert found[0] == "thread left-alone"
    assert found[1].startswith(f"process {process.pid} ({sys.executable} -c input()")
    assert before.found() == []


def test_what_is_just_ending_is_not_left_behind():
    before = Leftovers()
    thread = threading.Thread(target=time.sleep, args=(0.2,))
    thread.start()
    with subprocess.Popen(["sleep", "0.2"]):
        assert before.found() == []
    thread.join()


def test_where_nothing_is_left_behind_nobody_waits(monkeypatch):
    monkeypatch.setattr("gpu_acceptance.worker.leftovers.time.sleep", lambda _seconds: pytest.fail("it waits"))
    assert Leftovers().found() == []


def test_what_was_there_before_is_not_left_behind():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert Leftovers().found() == []
        process.communicate(b"\n")


def test_children_are_found_on_a_kernel_that_does_not_list_them(tmp_path):
    (tmp_path / "task" / "1").mkdir(parents=True)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert own_children(tmp_path) == own_children()
        assert process.pid in own_children(tmp_path)
        process.communicate(b"\n")


def test_an_idle_pool_of_threads_is_not_left_behind_and_a_busy_one_is():
    before = Leftovers()
    go = threading.Event()
    with ThreadPoolExecutor(1, thread_name_prefix="pool") as pool:
        busy = pool.submit(go.wait)
        assert before.found() == ["thread pool_0"]
        go.set()
        busy.result()
        assert wait_until(lambda: before.found() == [])


def test_a_pool_of_compilers_may_stay():
    before = Leftovers()
    script = Path("/torch/_inductor/compile_worker/__main__.py")
    with subprocess.Popen([sys.executable, "-c", "input()", str(script)], stdin=subprocess.PIPE) as process:
        found = before.found()
        process.communicate(b"\n")
    assert found == []
