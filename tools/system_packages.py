"""Debian and Ubuntu packages that our own tests use. `make test-system` installs those that are missing. Standard library only."""

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

BROWSERS = ("chromium", "google-chrome", "google-chrome-stable", "chromium-browser")
APT_INSTALL = ("apt-get", "install", "--yes", "--no-install-recommends")


def browser() -> str | None:
    """Path of a Chromium or a Chrome. One from a snap does not count: it cannot read the files of a test, which are in /tmp."""
    found = filter(None, map(shutil.which, BROWSERS))
    return next((path for path in found if not path.startswith("/snap/") and b"/snap/" not in Path(path).read_bytes()[:4096]), None)


def faketime_library() -> Path | None:
    """Path of the library that gives a process another wall clock."""
    return next(iter(sorted(Path("/usr/lib").glob("*-linux-gnu/faketime/libfaketimeMT.so.1"))), None)


def sshd() -> str | None:
    """Absolute path of the daemon, which refuses to be started by its name alone."""
    return shutil.which("sshd", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")


def _programs(*names: str) -> Callable[[], bool]:
    return lambda: all(map(shutil.which, names))


PACKAGES: dict[str, Callable[[], object]] = {  # package -> says whether that is here which tests use of it
    "chromium": browser,
    "gcc": _programs("gcc"),
    "git": _programs("git"),
    "iproute2": _programs("ip", "tc"),
    "iptables": _programs("iptables"),
    "libfaketime": faketime_library,
    "make": _programs("make"),
    "mpich": _programs("mpiexec.hydra"),
    "munge": _programs("munged"),
    "openmpi-bin": _programs("mpirun.openmpi"),
    "openssh-client": _programs("ssh", "ssh-keygen"),
    "openssh-server": sshd,
    "openssl": _programs("openssl"),
    "python3-dev": Path(sysconfig.get_paths("posix_prefix")["include"], "Python.h").exists,
    "slurm-wlm": _programs("slurmctld", "slurmd", "sbatch"),
    "sshfs": _programs("sshfs"),
    "util-linux": _programs("setpriv", "unshare"),
}


def missing() -> list[str]:
    """Packages whose programs this machine does not have."""
    return [name for name, is_here in PACKAGES.items() if not is_here()]


def is_offered(name: str) -> bool:
    """Return whether apt can install a package: Ubuntu has no package chromium, for example."""
    return subprocess.run(["apt-get", "install", "--simulate", name], capture_output=True, check=False).returncode == 0


def main() -> None:
    """Installs what is missing; exit code 1 where something is missing afterwards."""
    if not (names := missing()):
        return
    if not shutil.which("apt-get"):
        sys.exit(f"This machine has no apt-get. Install what Debian has in these packages: {' '.join(names)}")
    if os.geteuid() != 0:
        sys.exit(f"Only root can install packages: sudo {' '.join((*APT_INSTALL, *names))}")
    subprocess.run(["apt-get", "update", "-qq"], check=True)
    if offered := [name for name in names if is_offered(name)]:
        subprocess.run([*APT_INSTALL, "-qq", *offered], env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"}, check=True)
    if left := missing():
        sys.exit(f"apt-get did not bring these packages: {' '.join(left)}. Tests that need one of them will be left out.")


if __name__ == "__main__":
    main()
