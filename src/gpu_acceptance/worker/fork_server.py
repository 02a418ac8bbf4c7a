"""The fork server: a process that has imported all modules of a rank worker, and forks each worker. One for each supervisor.

It opens no GPU, starts no thread, and imports libraries and this package alone: a worker collects its validations itself.
A worker that it forks is the supervisor's own child: the process between the two ends at once, and the supervisor is a subreaper.
"""

import contextlib
import ctypes
import importlib
import json
import os
import select
import socket
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

from gpu_acceptance.base import process as process_title
from gpu_acceptance.base.exit import ProcessExit
from gpu_acceptance.base.janitor import pidfd_open
from gpu_acceptance.base.process import die_with_parent, gc_spared
from gpu_acceptance.worker.worker import descriptor_environment, run, write_whole_lines

MOST_BYTES = 200_000  # of a request: below what a socket of this kind takes (net.core.wmem_default)
GO = b"!"  # the supervisor writes it once it holds the worker
_NUM_DESCRIPTORS = 5
_SAFE_THREADS = {"jemalloc_bg_thd"}  # pyarrow's, which transformers imports by way of scikit-learn: jemalloc prepares for forks itself
# Imports of any suite. `starting` has all imports of the plugin; pytest itself must import and rewrite the plugin.
_IMPORTED = (
    "pytest",
    "torch",
    "gpu_acceptance.worker.group",
    "gpu_acceptance.worker.leftovers",
    "gpu_acceptance.worker.plugin",
    "gpu_acceptance.run.starting",
)


def main(channel: socket.socket) -> None:
    """Fork a worker for each request, until the supervisor hangs up. In a fork, be that worker to its end."""
    die_with_parent(int(os.environ["GPU_ACCEPTANCE_SUPERVISOR"]))
    ended = ProcessExit()
    write_whole_lines()
    with gc_spared():  # in the forks as well: a collection would copy all pages of these modules
        for name in _IMPORTED:
            importlib.import_module(name)
        sys.modules["gpu_acceptance.worker.leftovers"].Leftovers()  # what is watched is looked up once, for all workers
    sys.stdout.flush()
    ctypes.CDLL(None).fflush(None)  # else each fork would write it again
    if not (trial := os.fork()):
        os._exit(0)
    os.waitpid(trial, 0)  # OpenBLAS ends its threads before a fork; threads that are there now do not end
    run(ended, _serve(channel))


def _serve(channel: socket.socket) -> list[str]:
    while True:
        content, descriptors, _, _ = socket.recv_fds(channel, MOST_BYTES, _NUM_DESCRIPTORS)
        if not content:
            sys.exit()
        request = json.loads(content)
        _import(request["first"])
        if threads := sorted(_other_threads() - _SAFE_THREADS):
            sys.exit(f"threads of an import in the fork server would not be in a fork: {', '.join(threads)}; workers are started anew")
        if _fork():
            try:
                return _become(channel, request, descriptors)
            except BaseException:
                traceback.print_exc()
                channel.shutdown(socket.SHUT_RDWR)  # for the server too: the supervisor starts its workers anew
                os._exit(1)
        for descriptor in descriptors:
            os.close(descriptor)
        for name in request["ahead"]:  # each may take seconds
            if not select.select([channel], [], [], 0)[0]:
                _import([name])


def _import(names: list[str]) -> None:
    """Import modules that validations need."""
    for name in names:
        try:
            with gc_spared():
                importlib.import_module(name)
        except Exception:  # the validation that needs it says so
            traceback.print_exc()


def _other_threads() -> set[str]:
    """Return the names of all threads of this process but its first one, as the kernel knows them."""
    names = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has just ended
            names |= {(task / "comm").read_text().strip()} if task.name != str(os.getpid()) else set()
    return names


def _fork_once() -> int:
    """Fork, whatever Python thinks of the threads that may be there."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _fork() -> bool:
    """Return True in the new process, once its parent is the supervisor."""
    if between := _fork_once():
        if os.waitstatus_to_exitcode(os.waitpid(between, 0)[1]):
            sys.exit("the fork server could not fork a worker")
        return False
    try:
        has_ended = pidfd_open(os.getpid())
        cuda = sys.modules["torch"].cuda
        if cuda.is_initialized() or cuda._is_in_bad_fork():  # torch knows that only in a fork
            raise RuntimeError("an import initialised CUDA in the fork server: no fork of it could use a GPU; workers are started anew")
        if _fork_once():
            os._exit(0)
    except BaseException:  # no other code may go on in a copy of the server
        traceback.print_exc()
        os._exit(1)
    select.select([has_ended], [], [])
    os.close(has_ended)
    return True


def _become(channel: socket.socket, request: dict[str, Any], descriptors: list[int]) -> list[str]:
    """Turn this fork into the worker, with all that a new process would have of its own. Return the worker's arguments."""
    go, log, *of_worker = descriptors
    command, environment = request["command"], {**request["environment"], **descriptor_environment(*of_worker)}
    os.setsid()
    for number in (1, 2):
        os.dup2(log, number)
    os.close(log)
    os.environ.clear()
    os.environ.update(environment)
    process_title.show(command, environment)
    sys.orig_argv, sys.argv = command, [str(Path(__file__).with_name("worker.py")), *command[3:]]
    sys.modules["torch"].default_generator.seed()  # as a new process is; CUDA's generators are when a GPU is opened, Python's in a fork
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if "multiprocessing.process" in sys.modules:
        sys.modules["multiprocessing.process"].current_process().authkey = os.urandom(32)
    channel.send(str(os.getpid()).encode())
    channel.close()
    if os.read(go, 1) != GO:
        os._exit(0)  # it was given up
    os.close(go)
    return list(command[3:])


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
