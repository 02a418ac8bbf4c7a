"""A bundle of this tree, installed and run where there is no network: real wheels, only lo, no package of this machine but torch."""

import os
import re
import shutil
import subprocess
import sys
import venv

import pytest
from bundles import ROOT, closure, cluster_python, copy_of_this_tree, cut_off, make
from hosts import needs_hosts

pytestmark = [
    pytest.mark.launcher,
    needs_hosts,
    pytest.mark.needs("a git checkout", "git", "make"),
]


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """The wheels come from where pip finds them for `make test`."""
    folder = tmp_path_factory.mktemp("packing")
    done = make(copy_of_this_tree(folder / "tree"), "bundle")
    assert done.returncode == 0, done.stderr
    (archive,) = (folder / "tree" / "dist").iterdir()
    subprocess.run(["tar", "-xf", archive, "-C", folder], check=True)
    shutil.rmtree(folder / "tree")
    return folder / archive.name.removesuffix(".tar.gz")


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    return cluster_python(tmp_path_factory.mktemp("cluster") / "python")


def test_a_bundle_is_accepted_where_there_is_no_network(unpacked, python):
    done = cut_off(["make", "accept", "OFFLINE=1", f"PYTHON={python}", "RANKS=2", "ARGS=--level=health"], unpacked)
    assert done.returncode == 0, done.stdout
    interface, command, *_ = done.stdout.splitlines()
    assert interface.startswith("lo ")
    assert command == f"{python} tools/make_venv.py .venv debug,images,tensorboard wheels"
    assert "\nACCEPTED (health, cpu profile: no GPU was tested)\n" in done.stdout
    packed = {re.match(r"[^-]+", path.name)[0].lower() for path in (unpacked / "wheels").iterdir()}
    installed = {re.match(r"[^-]+", path.name)[0].lower() for path in unpacked.glob(".venv/lib/python*/site-packages/*.dist-info")}
    there = {name.replace("-", "_") for name in closure("torch")}
    assert installed == packed - {"pip", "setuptools"} - there | {"gpu_acceptance"}


def test_the_machine_is_cut_off(tmp_path):
    done = cut_off([sys.executable, "-c", "import socket; socket.create_connection(('192.0.2.1', 80), 5)"], tmp_path)
    assert done.stdout.endswith("OSError: [Errno 101] Network is unreachable\n")


@pytest.fixture
def small_python(tmp_path):
    """A python without pip, and with a stand-in for torch: enough until an installation."""
    venv.create(tmp_path / "small", symlinks=True)
    (site,) = (tmp_path / "small").glob("lib/python*/site-packages")
    (site / "torch.py").write_text('__version__ = "2.13.0"\n')
    return tmp_path / "small" / "bin" / "python"


def make_venv(python, *arguments, **env):
    command = [str(python), str(ROOT / "tools" / "make_venv.py"), *map(str, arguments)]
    return subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, check=False)


def test_a_wheel_that_is_not_packed_is_named_by_pip_and_not_looked_for(unpacked, small_python, tmp_path):
    (tmp_path / "wheels").mkdir()
    (pip,) = unpacked.glob("wheels/pip-*.whl")
    shutil.copy(pip, tmp_path / "wheels")
    done = make_venv(small_python, tmp_path / "venv", "html", tmp_path / "wheels", PIP_NO_INDEX="0")
    assert done.returncode == 1
    assert "No matching distribution found for setuptools>=77" in done.stderr
    assert done.stderr.endswith(f"OFFLINE=1: {tmp_path / 'wheels'} does not hold all that {ROOT}[html] needs here: see above\n")


def test_with_a_network_a_python_without_pip_uses_that_of_its_environment(small_python, tmp_path):
    """Seen by what pip says where it is told to look nowhere."""
    done = make_venv(small_python, tmp_path / "venv", "html", PIP_NO_INDEX="1", PIP_FIND_LINKS=str(tmp_path))
    assert done.returncode == 1
    assert "No matching distribution found for setuptools>=77" in done.stderr
