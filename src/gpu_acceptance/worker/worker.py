"""The rank worker: a second pytest on the same rootdir that owns CUDA, the process group, the fixtures and the test bodies.

A supervisor starts it, or its fork server forks it (fork_server.py). It may hang, crash or be killed at any time; nothing that must survive
lives here.
"""

import ctypes
import faulthandler
import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

from gpu_acceptance.base.exit import ProcessExit
from gpu_acceptance.base.process import become_subreaper, die_with_parent, finding_package, gc_spared
from gpu_acceptance.base.scratch import SCRATCH

# The supervisor shows, stores and selects; a worker only runs.
_PLUGINS_OFF = ("terminal", "cacheprovider", "junitxml", "faulthandler", "pastebin", "stepwise")
_MODULE = ("-m", "gpu_acceptance.worker.worker")
_ROOTDIR = "--rootdir="
_IOLBF = 1  # stdio.h of glibc and musl


def worker_command(python: str, rootdir: Path, ini: Path, files: list[str]) -> list[str]:
    """Return the command of a worker that collects `files`."""
    off = [f"-pno:{name}" for name in _PLUGINS_OFF]
    return [python, *_MODULE, f"{_ROOTDIR}{rootdir}", f"-c{ini}", "--capture=no", *off, *files]


def is_worker(command: list[str]) -> bool:
    """Return True for the command of a worker in this Python."""
    return command[:3] == [sys.executable, *_MODULE]


def worker_environment(base: dict[str, str], channel_fds: tuple[int, int], stack_file: Path, inquiry: tuple[int, Path]) -> dict[str, str]:
    """Return the environment of a worker: `base` without variables that would change pytest, and with the way to its supervisor."""
    return {
        **common_environment(base),
        **descriptor_environment(*channel_fds, inquiry[0]),
        "GPU_ACCEPTANCE_STACK_FILE": str(stack_file),
        "GPU_ACCEPTANCE_COLLECTIVES_FILE": str(inquiry[1]),
    }


def descriptor_environment(read_fd: int, write_fd: int, bell_fd: int) -> dict[str, str]:
    """Return the variables that tell a worker its descriptors."""
    return {"GPU_ACCEPTANCE_CHANNEL": f"{read_fd},{write_fd}", "GPU_ACCEPTANCE_BELL": str(bell_fd)}


def common_environment(base: dict[str, str]) -> dict[str, str]:
    """Return the environment that all workers of this process and the fork server share.

    NCCL warns in the rank's own log, where its supervisor looks: an empty file name is stdout (its src/debug.cc).
    """
    ours = {"PYTEST_ADDOPTS", "PYTEST_PLUGINS"}  # for the supervisor; a worker is no rank of torchrun any more
    kept = {name: value for name, value in base.items() if name not in ours and not name.startswith("TORCHELASTIC_")}
    level = base.get("NCCL_DEBUG", "")
    return {
        **finding_package(kept),
        "NCCL_DEBUG": level if level.upper() in {"INFO", "ABORT", "TRACE"} else "WARN",
        "NCCL_DEBUG_FILE": "",
        "HF_HUB_OFFLINE": "1",  # transformers and peft ask a hub for missing files; nothing is downloaded here
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "GPU_ACCEPTANCE_SUPERVISOR": str(os.getpid()),
    }


def write_whole_lines() -> None:
    """Make C's stdout, where NCCL logs, write each line. In a file it holds back 4 KiB: a warning would come late, or never."""
    libc = ctypes.CDLL(None)
    libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, _IOLBF, 0)


def tell_stack_when_asked(path: Path) -> None:
    """Append the stack of the main thread to `path` at SIGUSR1, though that thread may be stuck in C, or hold the GIL.

    Not of all threads: faulthandler would walk frames of threads that run on meanwhile, and crashes (1 in 10, CPython 3.11.7).
    """
    file = path.open("a")  # for as long as the process lives
    faulthandler.register(signal.SIGUSR1, file=file, all_threads=False)


def main(arguments: list[str]) -> int:
    """Run pytest as a worker; return the exit code of the process."""
    read_fd, write_fd = map(int, os.environ["GPU_ACCEPTANCE_CHANNEL"].split(","))
    bell_fd = int(os.environ["GPU_ACCEPTANCE_BELL"])
    for fd in (read_fd, write_fd, bell_fd):
        os.set_inheritable(fd, False)  # a child of a test must not hold the channel open
    write_whole_lines()
    faulthandler.enable(all_threads=False)  # a crash (SIGSEGV, SIGABRT) writes the frames of its thread into the log of the worker

    with gc_spared():  # torch as well
        import pytest  # only after the lines above: it takes time, in which the supervisor may die

        from gpu_acceptance.worker.group import answer_when_asked
        from gpu_acceptance.worker.leftovers import Leftovers
        from gpu_acceptance.worker.plugin import WorkerPlugin
        from gpu_acceptance.worker.threads import note_who_asks

    answer_when_asked(bell_fd, Path(os.environ["GPU_ACCEPTANCE_COLLECTIVES_FILE"]))
    note_who_asks(Path(next(one.removeprefix(_ROOTDIR) for one in arguments if one.startswith(_ROOTDIR))))
    plugin = WorkerPlugin(read_fd, write_fd, Leftovers())
    # tmp_path of each validation lies in a folder of this worker alone, and goes once it passed; the supervisor removes the folder.
    # All pytest of a user share pytest's own place: one that ends removes what older ones left there, for as long as that takes.
    scratch = Path(os.environ[SCRATCH])
    scratch.mkdir(mode=0o700)
    where = (f"--basetemp={scratch}/of_tests", "-otmp_path_retention_policy=failed")
    code = int(pytest.main([*arguments, *where], plugins=[plugin]))
    return 0 if plugin.said_bye and code in {0, 1} else code or 3  # 1: a validation failed, which was reported; 3: no goodbye


def run(ended: ProcessExit, arguments: list[str]) -> NoReturn:
    """Be a worker from here on to the end of this process."""
    die_with_parent(int(os.environ["GPU_ACCEPTANCE_SUPERVISOR"]))
    become_subreaper()  # a daemon that a validation leaves becomes our child, where leftovers.py finds it
    tell_stack_when_asked(Path(os.environ["GPU_ACCEPTANCE_STACK_FILE"]))
    ended.belong_to_this_process()
    ended.code = main(arguments)
    sys.exit(ended.code)


if __name__ == "__main__":
    run(ProcessExit(), sys.argv[1:])
