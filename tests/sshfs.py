"""A folder behind a network: sshfs over a real sshd on 127.0.0.1. Its caches of names and attributes are the kernel's, and can be set.

A process that waits for a server which has stopped is in the kernel and cannot be killed (fuse(4)), as with a hard mount of NFS.
"""

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from sshd import CLIENT, make_key, start_sshd

needs_sshfs = pytest.mark.needs("privileged", "/dev/fuse", "openssh-client", "openssh-server", "sshfs")


class Export:
    """One folder, `served`, and its mounts, each with a client of its own."""

    def __init__(self, folder: Path) -> None:
        self.served = folder / "served"
        self.served.mkdir()
        self._folder, self._key = folder, make_key(folder)
        self._daemon, self._port = start_sshd(self._key)
        self._mounts: list[Path] = []

    def mount(self, cached_s: int = 0) -> Path:
        """A new mount, which believes what it knows of names and attributes for so long, also that a file is not there."""
        point = self._folder / f"mount-{len(self._mounts)}"
        point.mkdir()
        believed = (f"{kind}_timeout={cached_s}" for kind in ("attr", "entry", "negative"))
        dir_cache = ("dir_cache=yes", f"dcache_timeout={cached_s}") if cached_s else ("dir_cache=no",)
        options = ",".join((f"IdentityFile={self._key}", *CLIENT, *believed, *dir_cache))
        subprocess.run(
            ["sshfs", "-p", str(self._port), "-o", options, f"root@127.0.0.1:{self.served}", str(point)],
            stdin=subprocess.DEVNULL,
            check=True,
            timeout=60,
        )
        self._mounts.append(point)
        return point

    def freeze(self) -> None:
        """From now on the server answers no client, and no connection ends."""
        self._signal(signal.SIGSTOP)

    def drop(self) -> None:
        """The server is gone, and so is every connection to it."""
        self._signal(signal.SIGKILL)

    def close(self) -> None:
        self.drop()
        self._daemon.kill()
        self._daemon.wait()
        for point in self._mounts:
            subprocess.run(["umount", "--lazy", str(point)], check=False, capture_output=True)

    def _signal(self, number: int) -> None:
        for session in psutil.Process(self._daemon.pid).children(recursive=True):
            session.send_signal(number)


@contextmanager
def exported(folder: Path) -> Iterator[Export]:
    """Whatever happened before: no daemon and no mount is left, and no process waits for one."""
    export = Export(folder)
    try:
        yield export
    finally:
        export.close()
