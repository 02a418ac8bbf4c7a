"""Requirements of tests beside Python: `@pytest.mark.needs("iproute2", "privileged")`, by Debian package or by a name of OTHERS.

A test is left out where something that it needs is missing. The end of the output says how many tests that was, and how to get it.
With --nothing-left-out such a test fails instead, unless no machine of CI could have what it needs.
"""

import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tools.system_packages import APT_INSTALL, PACKAGES

_CAP_NET_ADMIN, _CAP_SYS_ADMIN = 12, 21  # capabilities(7)
INTEL_MPI = shutil.which("mpiexec.hydra", path=f"{os.environ.get('I_MPI_ROOT', 'nowhere')}/bin")
KUBECONFIG = os.environ.get("TEST_KUBECONFIG", "")
_LACKING = "lacking"


@dataclass(frozen=True)
class Other:
    """Something that is in no package. `in_ci`: CI has it, so that a test without it fails there."""

    is_here: Callable[[], object]
    hint: str
    in_ci: bool = False


def is_root() -> bool:
    return os.geteuid() == 0


def is_privileged() -> bool:
    """Return whether this process may mount file systems and make network namespaces: root of a plain container may not."""
    effective = int(re.search(r"^CapEff:\s+(\w+)$", Path("/proc/self/status").read_text(), re.MULTILINE)[1], 16)
    return all(effective >> capability & 1 for capability in (_CAP_NET_ADMIN, _CAP_SYS_ADMIN))


OTHERS = {
    "root": Other(is_root, "run as root", in_ci=True),
    "privileged": Other(is_privileged, "run as root, in a container with --privileged", in_ci=True),
    "a git checkout": Other((Path(__file__).parents[1] / ".git").exists, "run in a clone"),
    "/dev/fuse": Other(Path("/dev/fuse").exists, "load the kernel module fuse"),
    "/var/run": Other(lambda: Path("/var/run").samefile("/run"), "make it a link to /run, as distributions do"),
    "Intel MPI": Other(lambda: INTEL_MPI, "pip install impi-rt into an environment that I_MPI_ROOT names"),
    "kubectl": Other(lambda: shutil.which("kubectl"), "install a release of Kubernetes"),
    "Kubernetes": Other(lambda: KUBECONFIG, "TEST_KUBECONFIG=FILE, of a cluster that tests/kubernetes/control_plane.sh starts"),
}


def pytest_addoption(parser):
    text = "fail a test that lacks a package of `make test-system` or root rights, instead of leaving it out"
    parser.addoption("--nothing-left-out", action="store_true", help=text)


def pytest_configure(config):
    config.addinivalue_line("markers", "needs(*names): left out where one of these is missing, see tests/needs.py")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    names = {name: None for mark in item.iter_markers("needs") for name in mark.args}
    lacking = [name for name in names if not (PACKAGES[name]() if name in PACKAGES else OTHERS[name].is_here())]
    if not lacking:
        return
    text = f"needs {', '.join(lacking)}"
    if item.config.getoption("nothing_left_out") and any(name in PACKAGES or OTHERS[name].in_ci for name in lacking):
        pytest.fail(f"{text}: not here, and --nothing-left-out", pytrace=False)
    item.user_properties.append((_LACKING, lacking))
    pytest.skip(text)


def pytest_terminal_summary(terminalreporter):
    skipped = terminalreporter.stats.get("skipped", [])
    if skipped:
        terminalreporter.section(f"left out: {len(skipped)} tests")
        for line in left_out(skipped):
            terminalreporter.line(line)


def left_out(skipped) -> Iterator[str]:
    """Lines that count the skipped tests by what they lack. A test that lacks two things counts in two lines."""
    lacking = [dict(getattr(report, "user_properties", ())).get(_LACKING, []) for report in skipped]
    counts = Counter(name for names in lacking for name in names)
    packages = [name for name in PACKAGES if name in counts]
    if packages:
        yield "for want of packages: " + ", ".join(f"{name} {counts[name]}" for name in packages)
        yield f"  `make test-system` installs them: sudo {' '.join((*APT_INSTALL, *packages))}"
    for name in (name for name in OTHERS if name in counts):
        yield f"for want of {name}: {counts[name]} ({OTHERS[name].hint})"
    reasons = Counter(report.longrepr[2] for report, names in zip(skipped, lacking, strict=True) if not names)
    for reason, number in reasons.items():
        yield f"{number}: {reason.removeprefix('Skipped: ')}"
