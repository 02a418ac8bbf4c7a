"""Nothing survives a run: a small process that outlives its supervisor for a moment, kills what it left and removes its workers' folders.

The kernel kills a worker with its supervisor, but not what the worker started (data loaders, compilers, launchers of its own),
and a supervisor that was SIGKILLed cleans up nothing. Every process of a run inherits a mark in its environment; that is how they are
found, wherever they were reparented to. Folders are found by names that nobody can guess. Standard library only: it is started for every
rank.
"""

import contextlib
import os
import select
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

MARK = "GPU_ACCEPTANCE_MARK"
_MOST_LISTINGS = 20  # there are machines that never cease to fork
_EXEC_MS = 500  # it may wait for a disk


def start_janitor(mark: str, stem: Path) -> int:
    """Starts the janitor of this process; it ends when this process does, after killing what carries `mark`. Returns its pid.

    Then it removes the folders whose paths begin with `stem`.
    """
    isolated = [sys.executable, "-I", "-S", str(Path(__file__))]  # our folder must not shadow a standard module
    janitor = subprocess.Popen(
        [*isolated, str(os.getpid()), mark, str(stem)],
        env={name: value for name, value in os.environ.items() if name != MARK},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # torchrun kills the sessions of its ranks
    )
    return janitor.pid


def marked(mark: str, proc: Path = Path("/proc")) -> Iterator[int]:
    """Processes of this user whose environment carries the mark, with those that are forked while we look."""
    wanted = f"{MARK}={mark}".encode()
    seen: set[str] = set()
    for _ in range(_MOST_LISTINGS):
        new = {entry.name for entry in proc.iterdir() if entry.name.isdecimal()} - seen
        if not new:  # else the parent of one of them may have ended before it was read itself
            return
        seen |= new
        yield from (int(name) for name in new if wanted in _environment(proc / name).split(b"\0"))


def _environment(process: Path) -> bytes:
    """Amid its exec(2) a process has none for a moment, which is waited for. Empty where we may not read it, and of what has ended."""
    content = b""
    with contextlib.suppress(OSError):
        for _ in range(_EXEC_MS):
            content = (process / "environ").read_bytes()
            if content or not _may_have_one(process):
                break
            time.sleep(0.001)
    return content


def _may_have_one(process: Path) -> bool:
    """Not what is without memory, as kernel threads and the dead are, nor what has one of no bytes since its exec is done.

    See proc_pid_stat(5); in load_elf_binary of Linux 6.18 the start of the code is set once the environment is there.
    """
    fields = (process / "stat").read_bytes().rpartition(b") ")[2].split()  # from the third one on
    has_memory, start_code, env_start, env_end = fields[20] != b"0", fields[23], fields[47], fields[48]
    return has_memory and (start_code == b"0" or env_start != env_end)


def kill_marked(mark: str, rounds: int, spare: int = 0) -> None:
    """SIGKILLs every process with the mark but one, by its pid, as it is found; looks again every 0.1 s until none is left."""
    for _ in range(rounds):
        found = False
        for pid in marked(mark):
            if pid != spare:
                found = True
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
        if not found:
            return
        time.sleep(0.1)


def remove_folder(folder: Path) -> None:
    """With all that is in it, where it is a folder of this user and no link. What links in it lead to stays, and what cannot be removed."""
    import shutil  # here: a janitor would have it read at its start, and needs it at its end

    with contextlib.suppress(OSError):
        status = folder.lstat()
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid():
            shutil.rmtree(folder, ignore_errors=True)


def main(supervisor_pid: int, mark: str, stem: Path) -> None:
    with contextlib.suppress(ProcessLookupError):
        pidfd = os.pidfd_open(supervisor_pid)
        select.select([pidfd], [], [])
    kill_marked(mark, rounds=20)
    with contextlib.suppress(OSError):
        for folder in stem.parent.iterdir():
            if folder.name.startswith(stem.name):
                remove_folder(folder)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
