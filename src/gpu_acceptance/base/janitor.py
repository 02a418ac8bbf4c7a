"""The janitor: a small process that outlives its supervisor, kills the processes it left and removes its workers' folders.

The kernel kills a worker with its supervisor, but not what the worker started (data loaders, compilers, launchers of its own),
and a supervisor that was SIGKILLed cleans up nothing. Every process of a run inherits a mark in its environment, by which it is
found wherever it was reparented to. If a janitor is killed together with its supervisor, the next one does its work (scratch.py).
Standard library only: each rank starts a janitor.
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
PREFIX = "gpu-acceptance-"  # of the scratch folder of a rank
OWNER = ".owner"  # a file in it: the mark, locked while a supervisor or janitor looks after the folder
_SHM = Path("/dev/shm")  # noqa: S108 - looked at
_BEARS_PID = re.compile(r"(?:torch|__KMP_REGISTERED_LIB)_(\d+)_")  # of torch's libshm, of Intel's OpenMP
_MAPPED = re.compile(rf"^\S+ \S+ \S+ \S+ (\d+) +{_SHM}/", re.MULTILINE)  # of proc_pid_maps(5): the inode
_MOST_ANCESTORS = 64
_MOST_LISTINGS = 20  # some machines never cease to fork
_LOOK_S = 2.0  # a look takes a millisecond or two: a worker on a GPU has dozens of threads
_EXEC_MS = 500  # it may wait for a disk
_STOP_MS = 50  # a thread that stays in the kernel for longer is not awaited
_SEND_SIGNAL, _OPEN = 424, 434  # asm-generic/unistd.h; the same on x86-64 and on 64-bit Arm


def pidfd_open(pid: int) -> int:
    """Return a descriptor that can be read once the process has ended. Raises OSError.

    Stand-alone builds of Python are made with headers older than Linux 5.3, and lack the functions of pidfd_open(2) on any kernel.
    """
    return os.pidfd_open(pid) if hasattr(os, "pidfd_open") else _syscall(_OPEN, pid, 0)


def pidfd_send_signal(pidfd: int, number: int) -> None:
    """Send a signal to the process of a descriptor, and to no other that has its pid by now. Raises OSError."""
    if hasattr(signal, "pidfd_send_signal"):
        signal.pidfd_send_signal(pidfd, number)
    else:
        _syscall(_SEND_SIGNAL, pidfd, number, None, 0)


def _syscall(number: int, *arguments: int | None) -> int:
    import ctypes  # here: few Pythons need it

    libc = ctypes.CDLL(None, use_errno=True)
    if (result := int(libc.syscall(number, *arguments))) < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result


def find_unusable() -> str | None:
    """Return why this machine has no pidfds, which ranks and janitors need; None if it has."""
    try:
        os.close(pidfd_open(os.getpid()))
    except OSError as error:
        seen = f"this kernel ({os.uname().release}) or its container gives no descriptor of a process (pidfd_open: {error.strerror})"
        return f"{seen}; needed: Linux 5.3"
    return None


def start_janitor(mark: str, folders: Sequence[Path], locks: Sequence[int]) -> subprocess.Popen[bytes]:
    """Start the janitor of this process. When this process ends, it kills what carries `mark`, removes the folders, and ends.

    The janitor holds `locks` of these folders, too. No signal that can be blocked ends it, from its first instruction on.
    """
    isolated = [sys.executable, "-I", "-S", str(Path(__file__))]  # our folder must not shadow a standard module
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # a child inherits the mask
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
    """Yield the processes of this user whose environment carries the mark, also those that are forked meanwhile."""
    seen: set[str] = set()
    for _ in range(_MOST_LISTINGS):
        new = {entry.name for entry in proc.iterdir() if entry.name.isdecimal()} - seen
        if not new:  # else the parent of one of them may have ended before it was read itself
            return
        seen |= new
        yield from (int(name) for name in new if _carries(proc / name, mark))


def marks_of_run(run: str, proc: Path = Path("/proc")) -> set[str]:
    """Return the marks that begin so, of all processes that can be seen here: each rank with a worker has its own."""
    found = (_mark_of(Path(entry.path)) for entry in os.scandir(proc) if entry.name.isdecimal())
    return {mark for mark in found if mark.startswith(run)}


def belongs_to_run(pid: int, run: str, proc: Path = Path("/proc")) -> bool:
    """Return True if a process or an ancestor of it carries a mark that begins with `run`: it may have an environment of its own."""
    for _ in range(_MOST_ANCESTORS):
        if pid <= 1:
            return False
        if _mark_of(proc / str(pid)).startswith(run):
            return True
        try:
            pid = int(_stat_fields(proc / str(pid))[1])
        except (OSError, ValueError, IndexError):
            return False
    return False


def _carries(process: Path, mark: str) -> bool:
    return _mark_of(process) == mark


def _mark_of(process: Path) -> str:
    """Return the mark of a process, or an empty text: also where its environment is unreadable, as that of another user is.

    During exec(2) a process has no environment for a moment, which is waited for.
    """
    with contextlib.suppress(OSError):
        for _ in range(_EXEC_MS):
            content = (process / "environ").read_bytes()
            if content or not _may_have_one(process):
                variables = (one.partition(b"=") for one in content.split(b"\0"))
                return next((os.fsdecode(value) for name, _, value in variables if name == MARK.encode()), "")
            time.sleep(0.001)
    return ""


def _may_have_one(process: Path) -> bool:
    """Return False for a process without memory (kernel threads, the dead) and for one whose exec left it an empty environment.

    In load_elf_binary of Linux 6.18 the start of the code is set once the environment is there.
    """
    fields = _stat_fields(process)
    has_memory, start_code, env_start, env_end = fields[20] != b"0", fields[23], fields[47], fields[48]
    return has_memory and (start_code == b"0" or env_start != env_end)


def _stat_fields(process: Path) -> list[bytes]:
    """Return the fields of proc_pid_stat(5) from the third one on."""
    return (process / "stat").read_bytes().rpartition(b") ")[2].split()


def kill_marked(mark: str, rounds: int, spare: int = 0, note: Callable[[int], None] = lambda _pid: None) -> None:
    """SIGKILL every process with the mark except pid `spare`; look again every 0.1 s until no other is left.

    `note` gets each pid before. Processes that remove shared memory end by themselves; the last round kills them, too.
    """
    for number in range(rounds):
        found = False
        for pid in marked(mark):
            if pid != spare:
                found = True
                _kill(pid, note, is_last=number == rounds - 1)
        if not found:
            return
        time.sleep(0.1)


def _kill(pid: int, note: Callable[[int], None], *, is_last: bool = True) -> None:
    command = b""
    with contextlib.suppress(OSError):
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    # Python's resource tracker and torch_shm_manager: each knows the segments and semaphores of its users, and removes them.
    removes_shared_memory = b"multiprocessing.resource_tracker" in command or command.split(b"\0")[0].endswith(b"torch_shm_manager")
    is_to_end = is_last or not removes_shared_memory
    if is_to_end:
        stop(pid)
    note(pid)
    if is_to_end:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def stop(pid: int) -> None:
    """Stop a process before it is noted and killed, so that it makes nothing in between. Return once all its threads stand still."""
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGSTOP)
        for _ in range(_STOP_MS):
            if all(_state_of(Path(task)) in b"TtZX" for task in list(os.scandir(f"/proc/{pid}/task"))):  # stopped, traced or dead
                return
            time.sleep(0.001)


def _state_of(task: Path) -> bytes:
    """Return the letter of proc_pid_stat(5); X for one that is gone."""
    with contextlib.suppress(OSError):
        return _stat_fields(task)[0]
    return b"X"


class Offspring:
    """Processes that marked children of a supervisor started, also those with an environment of their own, which has no mark.

    Their origin is unknown once their parents are gone, so the janitor looks while those live. A process that starts after the last
    look is missed.
    """

    def __init__(self, supervisor_pid: int, mark: str) -> None:
        self._supervisor_pid = supervisor_pid
        self._mark = mark
        self._started: dict[int, bytes] = {}  # pid -> start, which the next process with this pid does not share

    def look(self) -> None:
        """Note the processes that exist now."""
        self._started = {pid: start for pid, start in self._started.items() if start_of(pid) == start}
        for child in _children(self._supervisor_pid):
            if child in self._started or _carries(Path(f"/proc/{child}"), self._mark):
                self._started |= {pid: start_of(pid) for pid in with_descendants(child)}

    def kill(self, note: Callable[[int], None]) -> None:
        """SIGKILL those that still run, with all that they have started since. `note` gets each pid before."""
        left = [pid for pid, start in self._started.items() if start_of(pid) == start]
        for pid in dict.fromkeys(one for root in left for one in with_descendants(root)):
            _kill(pid, note)


def with_descendants(pid: int) -> Iterator[int]:
    """Yield a process and all that descend from it."""
    yield pid
    for child in _children(pid):
        yield from with_descendants(child)


def _children(pid: int) -> list[int]:
    """Empty if the kernel does not tell (CONFIG_PROC_CHILDREN): reading every process of the machine would disturb the measurements."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in os.scandir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                found += map(int, Path(task.path, "children").read_bytes().split())
    return found


def start_of(pid: int) -> bytes:
    """Return the start in ticks since the machine's boot; empty for a process that is gone or a zombie."""
    with contextlib.suppress(OSError):
        fields = _stat_fields(Path(f"/proc/{pid}"))
        return b"" if fields[0] in b"ZX" else fields[19]
    return b""


class Segments:
    """Named shared memory and semaphores in /dev/shm that processes of this run made: new ones that they hold, or that bear their pid.

    Segments that any other process holds stay, as do those of another user and those that existed before.
    """

    def __init__(self) -> None:
        self._before = set(_segments())
        self._pids: set[str] = set()
        self._held: set[int] = set()

    def note(self, pid: int) -> None:
        """Note a process of this run before it is killed."""
        self._pids.add(str(pid))
        self._held |= _held_by(pid)

    def remove(self) -> None:
        """Remove the segments. Call it once all noted processes have ended."""
        found = {name: inode for name, inode in _segments() if (name, inode) not in self._before}
        bearers = {name: bears[1] for name in found if (bears := _BEARS_PID.match(name))}
        ours = {name for name, inode in found.items() if inode in self._held or bearers.get(name) in self._pids}
        pids = [entry.name for entry in os.scandir("/proc") if entry.name.isdecimal()] if ours else []
        in_use = set().union(*map(_held_by, pids))
        for name in ours:
            if found[name] not in in_use:
                with contextlib.suppress(OSError):
                    (_SHM / name).unlink()
        self._held.clear()


def _segments() -> Iterator[tuple[str, int]]:
    """Yield the files of this user in /dev/shm by name and inode."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(_SHM):
            with contextlib.suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
                    yield entry.name, status.st_ino


def _held_by(pid: int | str) -> set[int]:
    """Return inodes in /dev/shm that a process has open or mapped: glibc maps a semaphore under another name than its own (sem_open(3)).

    Descriptors are read first: a file that is closed meanwhile is mapped by then.
    """
    held = set()
    with contextlib.suppress(OSError):
        for fd in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                if str(Path(fd.path).readlink()).startswith(f"{_SHM}/"):
                    held.add(fd.stat().st_ino)
    with contextlib.suppress(OSError):
        held |= set(map(int, _MAPPED.findall(Path(f"/proc/{pid}/maps").read_text(errors="replace"))))
    return held


def remove_abandoned(place: Path) -> None:
    """End the processes and remove the folders of this user's ranks in `place` whose supervisor and janitor were both killed."""
    with contextlib.suppress(OSError):
        for folder in [Path(entry.path) for entry in os.scandir(place) if entry.name.startswith(PREFIX)]:
            if mark := _mark_of_abandoned(folder):
                kill_marked(mark, rounds=20)
                remove_folder(folder)


def _mark_of_abandoned(folder: Path) -> str:
    """Return the mark of our own folder if its lock is free; else an empty text."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if not _is_own_folder(folder) or folder.lstat().st_mode & 0o077:
            return ""
        with os.fdopen(os.open(folder / OWNER, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file.read(1000).decode()
    return ""


def _is_own_folder(folder: Path) -> bool:
    status = folder.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()


def remove_folder(folder: Path) -> None:
    """Remove a folder of this user that is no link, with its content. Targets of links stay, as does what cannot be removed."""
    import shutil  # here: a janitor needs it only at its end

    with contextlib.suppress(OSError):
        if _is_own_folder(folder):
            shutil.rmtree(folder, ignore_errors=True)


def main(supervisor_pid: int, mark: str, folders: Sequence[Path]) -> None:
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
    main(int(sys.argv[1]), sys.argv[2], [Path(folder) for folder in sys.argv[3:]])
