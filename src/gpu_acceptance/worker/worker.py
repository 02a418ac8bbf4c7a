"""The rank worker: a second pytest on the same rootdir that owns CUDA, the process group, the fixtures and the test bodies.

Started by a supervisor alone, or forked by its fork server (fork_server.py). It may hang, crash or be killed at any time;
nothing that must survive lives here.
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

# What shows, stores or selects is the supervisor's; a worker only runs what it is told to run.
_PLUGINS_OFF = ("terminal", "cacheprovider", "junitxml", "faulthandler", "pastebin", "stepwise")
_ROOTDIR = "--rootdir="
_IOLBF = 1  # stdio.h of glibc and musl


def worker_command(python: str, rootdir: Path, ini: Path, files: list[str]) -> list[str]:
    """The command of a worker that collects `files`."""
    off = [f"-pno:{name}" for name in _PLUGINS_OFF]
    return [*_command_of(python), f"{_ROOTDIR}{rootdir}", f"-c{ini}", "--capture=no", *off, *files]


def is_worker(command: list[str]) -> bool:
    """Whether this Python would be started as a worker."""
    return command[:3] == _command_of(sys.executable)


def _command_of(python: str) -> list[str]:
    return [python, "-m", "gpu_acceptance.worker.worker"]


def worker_environment(base: dict[str, str], channel_fds: tuple[int, int], stack_file: Path, inquiry: tuple[int, Path]) -> dict[str, str]:
    """The environment of a worker: `base` without what would change pytest, and with how to reach its supervisor."""
    return {
        **common_environment(base),
        **descriptor_environment(*channel_fds, inquiry[0]),
        "GPU_ACCEPTANCE_STACK_FILE": str(stack_file),
        "GPU_ACCEPTANCE_COLLECTIVES_FILE": str(inquiry[1]),
    }


def descriptor_environment(read_fd: int, write_fd: int, bell_fd: int) -> dict[str, str]:
    """What tells a worker its descriptors."""
    return {"GPU_ACCEPTANCE_CHANNEL": f"{read_fd},{write_fd}", "GPU_ACCEPTANCE_BELL": str(bell_fd)}


def common_environment(base: dict[str, str]) -> dict[str, str]:
    """What all workers of this process have in their environment, and the fork server has in its own."""
    ours = {"PYTEST_ADDOPTS", "PYTEST_PLUGINS"}  # for the supervisor; and nothing in a worker is a rank of torchrun's any more
    kept = {name: value for name, value in base.items() if name not in ours and not name.startswith("TORCHELASTIC_")}
    return {
        **finding_package(kept),
        **_nccl_log(base),
        "HF_HUB_OFFLINE": "1",  # transformers and peft ask a hub for what they miss; nothing is downloaded here, whatever is missing
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "GPU_ACCEPTANCE_SUPERVISOR": str(os.getpid()),
    }


def _nccl_log(base: dict[str, str]) -> dict[str, str]:
    """NCCL warns, and in the rank's own log, where its supervisor looks: an empty file name is stdout (its src/debug.cc)."""
    level = base.get("NCCL_DEBUG", "")
    return {"NCCL_DEBUG": level if level.upper() in {"INFO", "ABORT", "TRACE"} else "WARN", "NCCL_DEBUG_FILE": ""}


def _tmp_path_in(scratch: Path) -> tuple[str, ...]:
    """Has tmp_path of each validation in a folder of this worker alone, and removed once it passed. The supervisor removes the folder.

    Pytest's own place is shared by all pytest of a user: who leaves clears away there what older ones left, for as long as that takes.
    """
    scratch.mkdir(mode=0o700)
    return f"--basetemp={scratch}/of_tests", "-otmp_path_retention_policy=failed"


def write_whole_lines() -> None:
    """C's stdout, where NCCL logs, holds 4 KiB back where it is a file: a warning would come late, or never where the worker is killed."""
    libc = ctypes.CDLL(None)
    libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, _IOLBF, 0)


def tell_stack_when_asked(path: Path) -> None:
    """SIGUSR1 has the stack of the main thread written to the end of `path`, though it may be stuck in C, or hold the GIL.

    Of that thread alone: to show all, faulthandler walks frames of threads that run on meanwhile, and crashes (1 in 10, CPython 3.11.7).
    """
    file = path.open("a")  # for as long as the process lives
    faulthandler.register(signal.SIGUSR1, file=file, all_threads=False)


def tell_stack_of_a_crash() -> None:
    """SIGSEGV, SIGABRT and their kin write the Python frames of the thread that crashed into the log of the worker."""
    faulthandler.enable(all_threads=False)


def main(arguments: list[str]) -> int:
    read_fd, write_fd = map(int, os.environ["GPU_ACCEPTANCE_CHANNEL"].split(","))
    bell_fd = int(os.environ["GPU_ACCEPTANCE_BELL"])
    for fd in (read_fd, write_fd, bell_fd):
        os.set_inheritable(fd, False)  # a child of a test must not hold the channel open
    write_whole_lines()
    tell_stack_when_asked(Path(os.environ["GPU_ACCEPTANCE_STACK_FILE"]))
    tell_stack_of_a_crash()

    with gc_spared():  # torch as well
        import pytest  # only after the lines above: it takes time, in which the supervisor may die

        from gpu_acceptance.worker.group import answer_when_asked
        from gpu_acceptance.worker.leftovers import Leftovers
        from gpu_acceptance.worker.plugin import WorkerPlugin
        from gpu_acceptance.worker.threads import note_who_asks

    answer_when_asked(bell_fd, Path(os.environ["GPU_ACCEPTANCE_COLLECTIVES_FILE"]))
    note_who_asks(Path(next(one.removeprefix(_ROOTDIR) for one in arguments if one.startswith(_ROOTDIR))))
    plugin = WorkerPlugin(read_fd, write_fd, Leftovers())
    scratch = Path(os.environ[SCRATCH])
    code = int(pytest.main([*arguments, *_tmp_path_in(scratch)], plugins=[plugin]))
    return 0 if plugin.said_bye and code in {0, 1} else code or 3  # 1: a validation failed, which has been told; 3: no goodbye


def run(ended: ProcessExit, arguments: list[str]) -> NoReturn:
    """This process is a worker from here on to its end."""
    die_with_parent(int(os.environ["GPU_ACCEPTANCE_SUPERVISOR"]))
    become_subreaper()  # a daemon that a validation leaves becomes our child, where leftovers.py finds it
    ended.code = main(arguments)
    sys.exit(ended.code)


if __name__ == "__main__":
    run(ProcessExit(), sys.argv[1:])
