"""How a worker leaves: real processes, with exit functions, forked copies, and threads of gloo that are not done."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest

HEAD = """
import atexit, ctypes, os, sys
from gpu_acceptance.base.exit import ProcessExit
ended = ProcessExit()
"""


def run(body: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-c", HEAD + textwrap.dedent(body)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)


def test_exit_functions_run_and_all_that_was_written_is_there():
    ended = run(
        """
        atexit.register(lambda: print("said at the end"))
        ctypes.CDLL(None).printf(b"said by C\\n")
        ended.code = 7
        sys.exit(ended.code)
        """
    )
    assert (ended.returncode, sorted(ended.stdout.splitlines()), ended.stderr) == (7, ["said at the end", "said by C"], "")


def test_who_never_came_to_say_how_it_ended_has_not_ended_well():
    ended = run("raise OSError('the disk is full')")
    assert ended.returncode == 3
    assert "OSError: the disk is full" in ended.stderr


def test_what_was_written_and_not_flushed_is_there(tmp_path):
    ended = run(
        f"""
        import gc, io
        file = open("{tmp_path}/left open", "w")
        gc.freeze()
        file.write("written")
        print("before")
        sys.stdout = io.StringIO()
        ended.code = 0
        """
    )
    assert (ended.returncode, ended.stdout) == (0, "before\n")
    assert (tmp_path / "left open").read_text() == "written"


def test_output_that_cannot_be_written_is_no_good_end():
    assert run("sys.stdout = open('/dev/full', 'w')\nprint('text')\nended.code = 0").returncode == 120


def test_a_file_of_c_that_a_thread_waits_for_keeps_nobody():
    ended = run(
        """
        import threading, time
        libc = ctypes.CDLL(None)
        libc.fdopen.restype = ctypes.c_void_p
        file = libc.fdopen(os.pipe()[0], b"r")
        threading.Thread(target=libc.fgetc, args=[ctypes.c_void_p(file)], daemon=True).start()
        time.sleep(0.3)
        ended.code = 0
        """
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_nothing_registers_an_exit_function_before_a_worker_does():
    count = "import atexit, gpu_acceptance.worker.worker; print(atexit._ncallbacks())"
    assert subprocess.run([sys.executable, "-c", count], capture_output=True, text=True, check=True, timeout=120).stdout == "0\n"


@pytest.mark.parametrize(
    ("body", "code"), [("atexit.register(os.abort)", -signal.SIGABRT), ("atexit.register(ctypes.string_at, 1)", -signal.SIGSEGV)]
)
def test_a_crash_in_an_exit_function_of_python_counts(body, code):
    assert run(f"ended.code = 0\n{body}").returncode == code


def test_a_forked_copy_ends_as_it_likes():
    ended = run(
        """
        if os.fork() == 0:
            sys.exit(5)
        ended.code = os.waitstatus_to_exitcode(os.wait()[1])
        """
    )
    assert ended.returncode == 5


def test_a_stream_that_is_closed_keeps_nobody():
    assert run("ended.code = 0\nsys.stdout.close()\nsys.stderr = None").returncode == 0


GLOO = """
import tempfile
import torch
import torch.distributed as dist

def leave_early(rank, path):
    leaving = ProcessExit()
    leaving.code = 0
    dist.init_process_group("gloo", store=dist.FileStore(path, 2), rank=rank, world_size=2)
    tensors = [torch.ones(1000) for _ in range(200)]
    for number in range(200):
        dist.all_reduce(tensors[number], async_op=True)
    del tensors
    sys.exit(0)

for pair in range(10):
    path = f"{tempfile.mkdtemp()}/store"
    for rank in (0, 1):
        if os.fork() == 0:  # a copy has torch already
            leave_early(rank, path)
statuses = [os.wait()[1] for _ in range(20)]
ended.code = sum(map(bool, statuses))
"""


@pytest.mark.slow
def test_threads_that_wait_to_free_a_tensor_end_with_their_process():
    ended = run(GLOO)
    assert ended.returncode == 0, ended.stderr
