"""Bundles for tests: this tree as a commit of its own, a python that has torch and little else, and a machine that is cut off."""

import shlex
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import torch
from clean_environment import clean_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from suite import PYTHON

ROOT = Path(__file__).parents[1]
GIT = ["git", "-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "init.defaultBranch=main"]


def commit_all(folder):
    """This folder's files as a repository of one commit."""
    for command in (["init", "-q"], ["add", "--force", "--all"], ["commit", "-q", "-m", "first"]):
        subprocess.run([*GIT, *command], cwd=folder, check=True)
    return folder


def write_wheel(folder, name, version) -> Path:
    """A wheel of one empty module."""
    folder.mkdir(exist_ok=True)
    path, info = folder / f"{name}-{version}-py3-none-any.whl", f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{name}.py", "")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path


def copy_of_this_tree(folder):
    """Copy the files that git would commit here now, and commit them."""
    listed = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in filter(None, subprocess.run(listed, check=True, capture_output=True, text=True).stdout.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return commit_all(folder)


def requirements_of(name, extras=("",), environment=None):
    """Requirements of this installed distribution by its own metadata; `environment` replaces markers of this python."""
    for requirement in map(Requirement, distribution(name).requires or ()):
        marker = requirement.marker
        if marker is None or any(marker.evaluate({**(environment or {}), "extra": extra}) for extra in extras):
            yield requirement


def closure(name, extras=("",), environment=None, without=()) -> set[str]:
    """Canonical names of a distribution and of all that it needs."""
    todo, seen = [(canonicalize_name(name), frozenset(extras))], set()
    while todo:
        entry = todo.pop()
        if entry not in seen and entry[0] not in without:
            seen.add(entry)
            needed = requirements_of(entry[0], entry[1], environment)
            todo += [(canonicalize_name(requirement.name), frozenset(["", *requirement.extras])) for requirement in needed]
    return {name for name, _ in seen}


def cluster_python(folder, *packages) -> Path:
    """A python with torch and these packages, what they need, and no more: not even pip."""
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for name in {needed for package in ("torch", *packages) for needed in closure(package)}:
        found = distribution(name)
        for top in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            if not (site / top).is_symlink():
                (site / top).symlink_to(Path(found.locate_file(top)).resolve())
    return folder / "bin" / "python"


def cut_off(command, cwd) -> subprocess.CompletedProcess[str]:
    """Runs it where there is no interface but lo, for torchrun, and no package of the python below us but the torch that it may hold."""
    hidden = " && ".join(f"mount -t tmpfs none {shlex.quote(folder)}" for folder in _packages_below()) or "true"
    script = f'{hidden} && ip link set lo up && ip -brief link show up && exec "$@"'
    env = {name: value for name, value in clean_environment().items() if name != "PYTHONPATH"}
    return subprocess.run(
        ["unshare", "--net", "--mount", "sh", "-c", script, "sh", *command],
        cwd=cwd,
        env={**env, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=800,
        check=False,
    )


def _packages_below() -> Iterator[str]:
    base = {"base": sys.base_prefix, "platbase": sys.base_prefix}
    debian = Path(sys.base_prefix, "lib", "python3", "dist-packages")
    for folder in {*(Path(sysconfig.get_path(name, vars=base)) for name in ("purelib", "platlib")), debian}:
        if folder.is_dir() and folder not in Path(torch.__file__).parents:
            yield str(folder)


def make(folder, *arguments) -> subprocess.CompletedProcess[str]:
    command = ["make", f"PYTHON={PYTHON}", *arguments]
    return subprocess.run(command, cwd=folder, env=clean_environment(), capture_output=True, text=True, check=False, timeout=800)
