"""`tools/make_venv.py`: what is installed goes into the environment, whatever a site has set for pip; of which python that one is."""

import shutil
import subprocess
import sys
import venv
import zipfile

import pytest

from tools.make_venv import OWN, ROOT, install, make_venv

NAME = "of_a_site-1"


@pytest.fixture
def wheel(tmp_path):
    path = tmp_path / f"{NAME}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr("of_a_site.py", "")
        packed.writestr(f"{NAME}.dist-info/METADATA", "Metadata-Version: 2.1\nName: of-a-site\nVersion: 1\n")
        packed.writestr(f"{NAME}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        packed.writestr(f"{NAME}.dist-info/RECORD", "")
    return path


def test_a_site_that_installs_into_homes_changes_nothing(tmp_path, wheel, monkeypatch):
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PIP_USER", "1")
    venv.create(tmp_path / "made", system_site_packages=True)
    install(tmp_path / "made" / "bin" / "python", ["--no-index", "--no-deps", str(wheel)])
    assert list((tmp_path / "made").glob("lib/python*/site-packages/of_a_site.py"))
    assert list(home.rglob("of_a_site*")) == []


@pytest.fixture
def checkout(tmp_path):
    """With an environment that this python made, and that is ready."""
    (tmp_path / "tools").mkdir()
    for name in ("Makefile", "pyproject.toml", "setup.py", "constraints.txt", "tools/make_venv.py"):
        shutil.copy(ROOT / name, tmp_path / name)
    make_venv(tmp_path / ".venv", with_own_packages=True, with_pip=False)
    (tmp_path / ".venv" / ".ready").touch()
    return tmp_path


@pytest.mark.parametrize("target", ["accept", "plan"])
def test_a_python_that_the_environment_is_not_of_is_refused(checkout, target):
    """Else what is tested would be the torch of the other one, without a word."""
    venv.create(checkout / "other", with_pip=False)
    other = checkout / "other" / "bin" / "python"
    done = subprocess.run(["make", target, f"PYTHON={other}"], cwd=checkout, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    is_of = f"{OWN.partition(' in ')[0]} in {checkout}/other"
    assert done.stderr.startswith(f".venv was made with {OWN}, and PYTHON is {is_of}: `make clean` removes it, or leave PYTHON out\n")


@pytest.mark.parametrize("python", [sys.executable, ".venv/bin/python"])
def test_the_python_that_the_environment_is_of_is_taken_and_its_own(checkout, python):
    done = subprocess.run([python, "tools/make_venv.py", ".venv"], cwd=checkout, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
