"""Nothing survives a run: a small process that outlives its supervisor for a moment, kills what it left and removes its workers' folders.

The kernel kills a worker with its supervisor, but not what the worker started (data loaders, compilers, launchers of its own),
and a supervisor that was SIGKILLed cleans up nothing. Every process of a run inherits a mark in its environment; that is how they are
found, wherever they were reparented to. Where a janitor was killed together with its supervisor, the next one does its work (scratch.py).
Standard library only: it is started for every rank.
"""

import contextlib
import fcntl
import os
import re
import select
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

MARK = "GPU_ACCEPTANCE_MARK"
PREFIX = "gpu-acceptance-"  # of the folder of a rank for what nobody keeps
OWNER = ".owner"  # a file in it: the mark, locked while anybody looks after it
_SHM = Path("/dev/shm")  # noqa: S108 - looked at
_BEARS_PID = re.compile(r"(?:torch|__KMP_REGISTERED_LIB)_(\d+)_")  # of torch's libshm, of Intel's OpenMP
_MAPPED = re.compile(rf"^\S+ \S+ \S+ \S+ (\d+) +{_SHM}/", re.MULTILINE)  # of proc_pid_maps(5): the inode
_MOST_LISTINGS = 20  # there are machines that never cease to fork
_LOOK_S = 2.0  # a look takes a millisecond or two: a worker on a GPU has dozens of threads
_EXEC_MS = 500  # it may wait for a disk
_STOP_MS = 50  # of a thread that is in the kernel for longer, nothing is awaited


def start_janitor(mark: str, folders: Sequence[Path], locks: Sequence[int]) -> subprocess.Popen[bytes]:
    """Starts the janitor of this process; it ends when this process does, after killing what carries `mark` and removing the folders.

    `locks`: of these folders; it holds them, too. No signal that can be blocked ends it, from its first instruction on.
    """
    isolated = [sys.executable, "-I", "-S", str(Path(__file__))]  # our folder must not shadow a standard module
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # which a child inherits
    try:
        return subprocess.Popen(
            [*isolated, str(os.getpid()), mark, *map(str, folders)],
            env={name: value for name, value in os.environ.items() if name != MARK},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # torchrun kills the sessions of its ranks
            pass_fds=locks,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


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


def kill_marked(mark: str, rounds: int, spare: int = 0, note: Callable[[int], None] = lambda _pid: None) -> None:
    """SIGKILLs every process with the mark but one, by its pid, as it is found; looks again every 0.1 s until none is left.

    `note` is told each pid before. Who removes shared memory once its users are gone ends by itself; the last round kills it, too.
    """
    for number in range(rounds):
        found = False
        for pid in marked(mark):
            if pid != spare:
                found = True
                is_to_end = number == rounds - 1 or not _removes_shared_memory(pid)
                if is_to_end:
                    stop(pid)
                note(pid)
                if is_to_end:
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, signal.SIGKILL)
        if not found:
            return
        time.sleep(0.1)


def stop(pid: int) -> None:
    """Before it is noted and killed: what it made between the two, nobody would know to be of this run. Returns once it stands still."""
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGSTOP)
        for _ in range(_STOP_MS):
            if all(map(_stands_still, list(os.scandir(f"/proc/{pid}/task")))):
                return
            time.sleep(0.001)


def _stands_still(task: os.DirEntry[str]) -> bool:
    """Stopped, traced or dead: proc_pid_stat(5)."""
    with contextlib.suppress(OSError):
        return Path(task.path, "stat").read_bytes().rpartition(b") ")[2][:1] in b"TtZX"
    return True  # it is gone


def _removes_shared_memory(pid: int) -> bool:
    """Python's resource tracker, and torch_shm_manager: each knows the segments and semaphores of its users."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return b"multiprocessing.resource_tracker" in command or command.split(b"\0")[0].endswith(b"torch_shm_manager")


class Offspring:
    """What marked processes under a supervisor have started, also with an environment of its own, which has no mark.

    Nobody can tell that once their parents are gone, so they are looked at while those live. What starts after the last look is missed.
    """

    def __init__(self, supervisor_pid: int, mark: str) -> None:
        self._supervisor_pid = supervisor_pid
        self._wanted = f"{MARK}={mark}".encode()
        self._started: dict[int, bytes] = {}  # pid -> start, which the next process with this pid does not share

    def look(self) -> None:
        """Notes who is there."""
        self._started = {pid: start for pid, start in self._started.items() if _start_of(pid) == start}
        for child in _children(self._supervisor_pid):
            if child in self._started or self._wanted in _environment(Path(f"/proc/{child}")).split(b"\0"):
                self._started |= {pid: _start_of(pid) for pid in _with_descendants(child)}

    def kill(self, note: Callable[[int], None]) -> None:
        """SIGKILLs those that are still there, with all that they have started since. `note` is told each pid before."""
        left = [pid for pid, start in self._started.items() if _start_of(pid) == start]
        for pid in dict.fromkeys(one for root in left for one in _with_descendants(root)):
            stop(pid)
            note(pid)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _with_descendants(pid: int) -> Iterator[int]:
    yield pid
    for child in _children(pid):
        yield from _with_descendants(child)


def _children(pid: int) -> list[int]:
    """None where the kernel does not tell (CONFIG_PROC_CHILDREN): to ask every process of the machine would disturb what is measured."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in os.scandir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                found += map(int, Path(task.path, "children").read_bytes().split())
    return found


def _start_of(pid: int) -> bytes:
    """In ticks since the machine's boot; empty where it is gone or a zombie. See proc_pid_stat(5)."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2].split()  # from the third one on
        return b"" if fields[0] in b"ZX" else fields[19]
    return b""


class Segments:
    """Named shared memory and semaphores in /dev/shm that processes of this run made: what is new, and which they hold or bears their pid.

    Whatever any other process holds stays, and so does whatever was there before, or is of another user.
    """

    def __init__(self) -> None:
        self._before = set(_segments())
        self._pids: set[str] = set()
        self._held: set[int] = set()

    def note(self, pid: int) -> None:
        """A process of this run, before it is killed."""
        self._pids.add(str(pid))
        self._held |= _held_by(pid)

    def remove(self) -> None:
        """Once none of these processes is left."""
        found = {name: inode for name, inode in _segments() if (name, inode) not in self._before}
        ours = {name for name, inode in found.items() if inode in self._held or self._bears_pid(name)}
        in_use = set().union(*map(_held_by, _all_pids())) if ours else set()
        for name in ours:
            if found[name] not in in_use:
                with contextlib.suppress(OSError):
                    (_SHM / name).unlink()
        self._held.clear()

    def _bears_pid(self, name: str) -> bool:
        named = _BEARS_PID.match(name)
        return named is not None and named[1] in self._pids


def _segments() -> Iterator[tuple[str, int]]:
    """Files of this user there, by name and inode."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(_SHM):
            with contextlib.suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
                    yield entry.name, status.st_ino


def _held_by(pid: int) -> set[int]:
    """Inodes in /dev/shm that a process has open or mapped: glibc maps a semaphore under another name than its own (sem_open(3)).

    Descriptors first: what is closed meanwhile is mapped by then.
    """
    held = set()
    with contextlib.suppress(OSError):
        for fd in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                if str(Path(fd.path).readlink()).startswith(f"{_SHM}/"):
                    held.add(fd.stat().st_ino)
    with contextlib.suppress(OSError):
        found = _MAPPED.findall(Path(f"/proc/{pid}/maps").read_text(errors="replace"))
        held |= set(map(int, found))
    return held


def _all_pids() -> Iterator[int]:
    return (int(entry.name) for entry in os.scandir("/proc") if entry.name.isdecimal())


def remove_abandoned(place: Path) -> None:
    """Ends the processes and removes the folders of ranks of this user, in one place, whose supervisor and janitor were both killed."""
    with contextlib.suppress(OSError):
        for folder in [Path(entry.path) for entry in os.scandir(place) if entry.name.startswith(PREFIX)]:
            if mark := _mark_of_abandoned(folder):
                kill_marked(mark, rounds=20)
                remove_folder(folder)


def _mark_of_abandoned(folder: Path) -> str:
    """The mark, where the folder is ours and its lock is free; else nothing."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            return ""
        fd = os.open(folder / OWNER, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return os.read(fd, 1000).decode()
        finally:
            os.close(fd)
    return ""


def remove_folder(folder: Path) -> None:
    """With all that is in it, where it is a folder of this user and no link. What links in it lead to stays, and what cannot be removed."""
    import shutil  # here: a janitor would have it read at its start, and needs it at its end

    with contextlib.suppress(OSError):
        status = folder.lstat()
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid():
            shutil.rmtree(folder, ignore_errors=True)


def main(supervisor_pid: int, mark: str, folders: Sequence[Path]) -> None:
    from gpu_acceptance.base.pidfd import pidfd_open  # here: the line at the end of this file finds it

    segments, offspring, places = Segments(), Offspring(supervisor_pid, mark), {folder.parent for folder in folders}
    with contextlib.suppress(ProcessLookupError):
        pidfd = pidfd_open(supervisor_pid)
        for place in places:
            remove_abandoned(place)
        while not select.select([pidfd], [], [], _LOOK_S)[0]:
            offspring.look()
    kill_marked(mark, rounds=20, note=segments.note)
    offspring.kill(segments.note)
    segments.remove()
    for folder in folders:
        remove_folder(folder)
    for place in places:
        remove_abandoned(place)


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parents[2]))  # last: our folder must not shadow a standard module
    main(int(sys.argv[1]), sys.argv[2], [Path(folder) for folder in sys.argv[3:]])
