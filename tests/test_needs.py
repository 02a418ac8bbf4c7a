"""Tests that need what this machine lacks are left out and counted, or fail where nothing may be left out."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools import system_packages

pytestmark = pytest.mark.slow

TESTS = Path(__file__).parent
SUITE = """
import pytest

def test_plain():
    pass

@pytest.mark.needs("git")
@pytest.mark.parametrize("number", [1, 2])
def test_git(number):
    assert False

@pytest.mark.needs("git", "openssl", "kubectl")
def test_three():
    assert False

@pytest.mark.needs("Kubernetes")
def test_cluster():
    assert False

def test_own_reason():
    pytest.skip("no IPv6")
"""
APT = "sudo apt-get install --yes --no-install-recommends git openssl"


@pytest.fixture
def run(tmp_path):
    """Runs the suite on a machine that has no programs at all; gives exit code and output."""
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["needs"]\n')
    (tmp_path / "test_some.py").write_text(SUITE)
    (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = {TESTS} {TESTS.parent}\naddopts = --strict-markers -rfE\n")

    def run(*arguments):
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments, str(tmp_path)]
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "TEST_KUBECONFIG"))}
        done = subprocess.run(
            command, env={**environment, "PATH": str(tmp_path), "COLUMNS": "300"}, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout

    return run


@pytest.mark.parametrize("workers", [(), ("-n2",)], ids=["alone", "with workers"])
def test_what_is_left_out_is_counted_by_what_it_lacks(run, workers):
    code, output = run(*workers)
    assert code == 0, output
    _, _, end = output.partition("= left out: 5 tests =")
    lines = end.splitlines()[1:]
    assert lines[: lines.index("1: no IPv6") + 1] == [
        "for want of packages: git 3, openssl 1",
        f"  `make test-system` installs them: {APT}",
        "for want of kubectl: 1 (install a release of Kubernetes)",
        "for want of Kubernetes: 1 (TEST_KUBECONFIG=FILE, of a cluster that tests/kubernetes/control_plane.sh starts)",
        "1: no IPv6",
    ]


def test_where_nothing_may_be_left_out_a_lack_is_a_failure_and_what_ci_cannot_have_is_not(run):
    code, output = run("--nothing-left-out")
    assert code == 1
    assert "1 passed, 2 skipped, 3 errors" in output, output
    assert "test_some.py::test_git[1] - Failed: needs git: not here, and --nothing-left-out\n" in output
    assert "test_some.py::test_three - Failed: needs git, openssl, kubectl: not here, and --nothing-left-out\n" in output


APT_GET = """#!/bin/sh
echo "$*" >> {log}
case "$*" in
*--simulate*chromium) exit 100;;
*--simulate*) exit 0;;
*install*) for name; do [ "$name" = git ] && printf '#!/bin/sh\\n' > {bin}/git && {chmod} +x {bin}/git; done;;
esac
"""


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine without programs but an apt-get of a distribution that has no package chromium; gives what apt-get was told."""
    log, programs = tmp_path / "log", tmp_path / "bin"
    programs.mkdir()
    (programs / "apt-get").write_text(APT_GET.format(log=log, bin=programs, chmod=system_packages.shutil.which("chmod")))
    (programs / "apt-get").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setattr(system_packages, "PACKAGES", {name: system_packages.PACKAGES[name] for name in ("chromium", "git")})
    return programs, log


@pytest.mark.needs("root")
def test_what_the_distribution_has_is_installed_and_the_rest_is_named(machine):
    _, log = machine
    with pytest.raises(SystemExit) as ended:
        system_packages.main()
    assert ended.value.code == "apt-get did not bring these packages: chromium. Tests that need one of them will be left out."
    assert log.read_text().splitlines() == [
        "update -qq",
        "install --simulate chromium",
        "install --simulate git",
        "install --yes --no-install-recommends -qq git",
    ]
    assert system_packages.missing() == ["chromium"]


def test_where_nothing_is_missing_apt_is_not_asked(machine):
    programs, log = machine
    for name in ("google-chrome", "git"):
        (programs / name).write_text("#!/bin/sh\n")
        (programs / name).chmod(0o755)
    system_packages.main()
    assert not log.exists()


def test_a_browser_that_is_a_snap_does_not_count(machine):
    """As Ubuntu's chromium-browser is: a script that starts the snap, which sees no file in /tmp."""
    programs, _ = machine
    (programs / "chromium-browser").write_text("#!/bin/sh\nexec /snap/bin/chromium\n")
    (programs / "chromium-browser").chmod(0o755)
    assert system_packages.browser() is None


def test_without_apt_or_root_rights_it_says_what_to_do(machine, monkeypatch):
    programs, log = machine
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(SystemExit, match=r"^Only root can install packages: sudo apt-get install \S+ \S+ chromium git$"):
        system_packages.main()
    (programs / "apt-get").unlink()
    with pytest.raises(SystemExit, match=r"^This machine has no apt-get\. Install what Debian has in these packages: chromium git$"):
        system_packages.main()
    assert not log.exists()
