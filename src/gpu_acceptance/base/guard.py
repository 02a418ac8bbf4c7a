"""Small programs that a rank starts for work that may hang: they query file systems, remove files that a rank left, or end a launcher.

A file system whose server is dead blocks each process that queries it, and a thread that the kernel holds keeps its process from ending.
Standard library only. No symbolic link is followed, and only files that a run of ours has written are removed.
"""

import contextlib
import json
import os
import re
import secrets
import select
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ANSWER_S = 20.0  # an automounter may have to ask a server first; ranks are awaited for 60 s (run/joining.py)
LAUNCHER_S = 15.0  # a launcher that works ends within seconds of its first rank
_TORCHRUN = ("torchrun", "torch.distributed.run", "torch.distributed.launch", "gpu_acceptance.control.torchrun")
_OF_SHARED_FS = re.compile(r"(data-\d+|small-\d+-\d+|token|replaced|first|number)(\.new)?")  # what fixtures/shared_fs.py has ranks write
_FOLDERS_OF_SHARED_FS = re.compile(r"rank-\d+")
PREFIX = "gpu-acceptance-checkpoint-"
MARKER = ".gpu-acceptance-checkpoint"
WAYS = ("ddp", "fsdp", "lora")
_MOST_BYTES = 4096  # of a marker
# What torch.distributed.checkpoint and measure/train/checkpoint_files.py write.
_OF_A_CHECKPOINT = re.compile(r"__\d+_\d+\.distcp|\.metadata(\.tmp)?|(part-\d+|manifest|losses)\.json(\.tmp)?")


def _start(program: str, *arguments: str, stdout: int = subprocess.DEVNULL) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, program, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # torchrun kills the sessions of its ranks
        text=True,
        errors="backslashreplace",
    )


def ask(program: str, argument: Path, patience_s: float = ANSWER_S) -> str:
    """Return the output of a program below, or that there is no answer in time: the program is then killed, or left to the kernel."""
    asker = _start(program, str(argument), stdout=subprocess.PIPE)
    try:
        said, _ = asker.communicate(timeout=patience_s)
    except subprocess.TimeoutExpired:
        asker.kill()
        asker.returncode = 0  # not awaited: a kill may not reach it
        assert asker.stdout
        asker.stdout.close()
        return f"no answer within {patience_s:g} s: is its server there? (findmnt -T DIR)"
    return said.strip() if asker.returncode == 0 else f"no answer: exit code {asker.returncode}"


# --- folders that may not answer -----------------------------------------------------------------------------------------------


def _wrong_with(name: str) -> str:
    """Return why this folder cannot be written to; an empty text if it can be used."""
    folder = Path(name)
    try:
        mode = folder.stat().st_mode
        flags = os.statvfs(folder).f_flag  # a mode may be remembered; this asks the server
    except OSError as error:
        return f"{error.strerror}; name a folder that is there on every node"
    if not stat.S_ISDIR(mode):
        return "not a folder; name one that is there on every node"
    if not os.access(folder, os.W_OK | os.X_OK):
        is_mapped = os.geteuid() == 0 and not flags & os.ST_RDONLY
        whom = " by root, which its server may map to another user (exports(5), root_squash)" if is_mapped else ""
        return f"not writable{whom}; name a folder that is, on every node"
    return ""


def _asked(name: str) -> str:
    """Return an empty text once this path answers, also with an error."""
    with contextlib.suppress(OSError):
        os.statvfs(name)
    return ""


# --- what killed workers left in --shared-dir ------------------------------------------------------------------------------------


def new_mark() -> str:
    """Return the random part of folder names; rank 0 creates it once per run and sends it to all others."""
    return secrets.token_hex(8)


def stem_in(parent: Path, run_id: str, mark: str) -> Path:
    """Return the common beginning of the paths of all folders of this run: its name and 64 random bits."""
    return parent / f".gpu-acceptance-shared-{run_id}-{mark}-"


def remove_shared(stem: Path) -> str:
    """Remove all folders with this beginning; return the first that stays and why, or an empty text."""
    try:
        folders = sorted(path for path in stem.parent.iterdir() if path.name.startswith(stem.name))
    except OSError as error:
        return f"{stem.parent}: {error.strerror}"
    return next(filter(None, map(_remove_shared_folder, folders)), "")


def _remove_shared_folder(folder: Path) -> str:
    try:
        if not stat.S_ISDIR(folder.lstat().st_mode):
            return ""
        for _, folders, names, fd in os.fwalk(folder, topdown=False):
            for name in names:
                if _OF_SHARED_FS.fullmatch(name) and stat.S_ISREG(os.lstat(name, dir_fd=fd).st_mode):
                    os.unlink(name, dir_fd=fd)
            for name in filter(_FOLDERS_OF_SHARED_FS.fullmatch, folders):
                with contextlib.suppress(OSError):  # a link, or something is in it that is not ours
                    os.rmdir(name, dir_fd=fd)
        folder.rmdir()
    except OSError as error:
        return f"{folder}: {error.strerror}"
    return ""


# --- checkpoints -----------------------------------------------------------------------------------------------------------------


def remove_checkpoint(folder: Path) -> None:
    """Delete the files of a run there, and the folder if nothing else is left in it. A folder without our marker stays as it is."""
    if not is_ours(folder):
        return
    for inner in (folder / way for way in WAYS):
        if _is(inner, stat.S_ISDIR):
            for path in inner.iterdir():
                if _OF_A_CHECKPOINT.fullmatch(path.name) and _is(path, stat.S_ISREG):
                    path.unlink()
            with contextlib.suppress(OSError):  # something is in it that is not ours
                inner.rmdir()
    if [path.name for path in folder.iterdir()] == [MARKER]:
        (folder / MARKER).unlink()
        folder.rmdir()


def remove_within(folder: Path, patience_s: float) -> None:
    """Remove a checkpoint as `remove_checkpoint` does, in a process of its own, which is awaited no longer than this."""
    remover = _start("checkpoint", str(folder))
    try:
        remover.wait(patience_s)
    except subprocess.TimeoutExpired:
        remover.returncode = 0  # not awaited any longer


def is_ours(folder: Path) -> bool:
    """Return True if a run has named the folder after itself and put its marker there."""
    is_named = folder.name.startswith(PREFIX) and _is(folder, stat.S_ISDIR)
    return is_named and marker_of(folder).get("run_id") == folder.name.removeprefix(PREFIX)


def _is(path: Path, kind: Callable[[int], bool]) -> bool:
    try:
        return kind(path.lstat().st_mode)
    except OSError:
        return False


def marker_of(folder: Path) -> dict[str, object]:
    """Return the content of its marker; empty without one of ours."""
    path, found = folder / MARKER, None
    if _is(path, stat.S_ISREG):
        with contextlib.suppress(OSError, ValueError), path.open("rb") as file:
            found = json.loads(file.read(_MOST_BYTES))
    return found if isinstance(found, dict) else {}


# --- a launcher that does not notice the end of its ranks -------------------------------------------------------------------------


def end_launcher_later(launcher_pid: int, patience_s: float = LAUNCHER_S) -> None:
    """Send the launcher a SIGTERM if it still runs after `patience_s`, and a SIGKILL after as long again.

    torchrun 2.13 with c10d rendezvous, on a node that was cut off, outlived its only rank by 16 minutes: it waits for a store that no
    longer answers until the kernel gives up on the connection. Only a torchrun is ended: the parent of a rank can be a shell that has
    more to do, or a process that adopted the orphans of a launcher that is gone.
    """
    _start("launcher", str(launcher_pid), str(patience_s))


def end_launcher(launcher_pid: int, patience_s: float) -> None:
    """Wait `patience_s` before each of the two signals, SIGTERM and SIGKILL."""
    from gpu_acceptance.base.janitor import pidfd_open, pidfd_send_signal  # here: the line at the end of this file finds it

    with contextlib.suppress(ProcessLookupError):
        pidfd = pidfd_open(launcher_pid)
        if not is_torchrun(launcher_pid):
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            if not select.select([pidfd], [], [], patience_s)[0]:
                pidfd_send_signal(pidfd, number)


def is_torchrun(pid: int, proc: Path = Path("/proc")) -> bool:
    """Return True if the command line is that of torchrun: `torchrun ...`, `python torchrun ...`, `python -m ...`."""
    try:
        command, *arguments = (proc / str(pid) / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return False
    program = next((argument for argument in arguments if not argument.startswith("-")), "") if "python" in Path(command).name else command
    return Path(program).name in _TORCHRUN


PROGRAMS: dict[str, Callable[..., object]] = {
    "folder": _wrong_with,
    "answer": _asked,
    "shared": lambda stem: remove_shared(Path(stem)),
    "checkpoint": lambda folder: remove_checkpoint(Path(folder)),
    "launcher": lambda pid, patience_s: end_launcher(int(pid), float(patience_s)),
}


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parents[2]))  # last: our folder must not shadow a standard module
    print(PROGRAMS[sys.argv[1]](*sys.argv[2:]) or "")
