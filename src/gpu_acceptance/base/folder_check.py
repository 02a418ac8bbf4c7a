"""Whether what somebody named is there, asked by a process of its own: a file system whose server is dead holds whoever asks it something.

A thread would not do: held in the kernel it keeps its process from ending. Standard library only.
"""

import contextlib
import os
import stat
import subprocess
import sys
from pathlib import Path

PATIENCE_S = 20.0  # an automounter may have to ask a server first; ranks are awaited for 60 s (run/joining.py)


def find_wrong(folder: Path, patience_s: float = PATIENCE_S) -> str:
    """Why nobody can write into this folder, or that it does not answer; nothing where it can be used."""
    return ask(__file__, "folder", str(folder), patience_s=patience_s)


def find_silent(path: Path, patience_s: float = PATIENCE_S) -> str:
    """That this path does not answer, where it does not; whether anything is there is for others to find out."""
    return ask(__file__, "answer", str(path), patience_s=patience_s)


def ask(script: str, *arguments: str, patience_s: float) -> str:
    """What a script of ours says, or that it was not through within this time: it is ended then, or left to the kernel."""
    asker = subprocess.Popen(
        [sys.executable, "-I", "-S", script, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # torchrun kills the sessions of its ranks
        text=True,
        errors="backslashreplace",
    )
    try:
        said, _ = asker.communicate(timeout=patience_s)
    except subprocess.TimeoutExpired:
        asker.kill()
        asker.returncode = 0  # it is left alone: a kill may not reach it
        assert asker.stdout
        asker.stdout.close()
        return f"no answer within {patience_s:g} s: is its server there? (findmnt -T DIR)"
    return said.strip() if asker.returncode == 0 else f"no answer: exit code {asker.returncode}"


def _wrong_with(folder: Path) -> str:
    try:
        mode = folder.stat().st_mode
        flags = os.statvfs(folder).f_flag  # a mode may be remembered; this asks the server
    except OSError as error:
        return f"{error.strerror}; name a folder that is there on every node"
    if not stat.S_ISDIR(mode):
        return "not a folder; name one that is there on every node"
    if not os.access(folder, os.W_OK | os.X_OK):
        is_mapped = os.geteuid() == 0 and not flags & os.ST_RDONLY
        whom = " by root, which its server may take for somebody else (exports(5), root_squash)" if is_mapped else ""
        return f"not writable{whom}; name a folder that is, on every node"
    return ""


def _asked(path: Path) -> str:
    with contextlib.suppress(OSError):  # an answer as well
        os.statvfs(path)
    return ""


if __name__ == "__main__":
    print({"folder": _wrong_with, "answer": _asked}[sys.argv[1]](Path(sys.argv[2])))
