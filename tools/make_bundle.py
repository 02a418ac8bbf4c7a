"""Packs the commit and all wheels that it needs into one archive: `make_bundle.py FOLDER [--python=3.12] [--platform=linux-aarch64]`.

Standard library and pip. torch is never packed: it is the cluster's own. What is packed twice by one Python is the same to the last bit.
"""

import argparse
import gzip
import os
import re
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from check_bundle import HERE, ROOT, WHEELS, Target, digest, write_about, write_sums

NAMES = "deploy/air-gapped/wheels.txt"
PLATFORMS = ("linux-x86_64", "linux-aarch64")
# glibc 2.28: RHEL 8, Ubuntu 20.04 and newer. pip takes each older tag only where it is named (its issue 10760).
_GLIBC = [f"manylinux_2_{minor}" for minor in range(28, 16, -1)] + ["manylinux2014", "manylinux2010", "manylinux_2_5", "manylinux1"]


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bundle", description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", default=HERE.python)
    parser.add_argument("--platform", default=HERE.platform)
    options = parser.parse_args()
    target = Target(options.python, options.platform)
    try:
        archive = pack(options.folder, target)
    except ValueError as error:
        sys.exit(f"make bundle: {error}")
    print(
        f"{archive}: {archive.stat().st_size / 1e6:.0f} MB for {target}; torch is the cluster's own\n"
        f"sha256 {digest(archive)}: compare it over there, by another way than the archive takes"
    )


def pack(folder: Path, target: Target) -> Path:
    """The archive. Raises ValueError where the target is none, the tree is not a commit, or pip has no wheel."""
    _check_target(target)
    commit = _commit()
    name = f"gpu-acceptance-{_version()}-{commit[:12]}-py{target.python}-{target.platform}"
    with TemporaryDirectory() as temporary:
        stage = Path(temporary) / name
        _unpack_commit(stage, commit)
        _fetch_wheels(stage, target)
        write_about(stage, commit, target)
        write_sums(stage)
        folder.mkdir(parents=True, exist_ok=True)
        archive, unfinished = folder / f"{name}.tar.gz", folder / f".{name}.tar.gz"
        _write_archive(unfinished, stage, int(_git("show", "--no-patch", "--format=%ct", commit)))
        unfinished.replace(archive)
    return archive


def _check_target(target: Target) -> None:
    if not re.fullmatch(r"3\.\d{1,2}", target.python):
        raise ValueError(f"PY={target.python} is not a version of Python such as 3.12")
    if target.platform not in PLATFORMS:
        raise ValueError(f"PLATFORM={target.platform}: known are {', '.join(PLATFORMS)}, the cluster's, not this machine's")


def _commit() -> str:
    """HEAD, of which the tree is a copy: what is not committed would silently not be packed."""
    if not (ROOT / ".git").exists():
        raise ValueError(f"{ROOT} is no git checkout: a bundle is of a commit")
    changed = _git("status", "--porcelain").splitlines()
    if changed:
        raise ValueError(
            f"{len(changed)} files are not as in HEAD, the first is {changed[0][3:]}: a bundle is of a commit, commit or stash them"
        )
    return _git("rev-parse", "HEAD").strip()


def _git(*arguments: str) -> str:
    answer = subprocess.run(["git", "-C", str(ROOT), *arguments], check=False, capture_output=True, text=True)
    if answer.returncode:
        raise ValueError(f"git {arguments[0]}: {answer.stderr.strip()}")
    return answer.stdout


def _version() -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project["version"])


def _unpack_commit(stage: Path, commit: str) -> None:
    """With the same modes everywhere; by tar(1), as Python has filters only from 3.11.4 on (Debian 12 has 3.11.2)."""
    command = ["git", "-C", str(ROOT), "-c", "tar.umask=0022", "archive", "--format=tar", commit]
    packed = subprocess.run(command, check=True, capture_output=True).stdout
    stage.mkdir()
    subprocess.run(["tar", "--extract", "--no-same-owner", "--directory", str(stage)], input=packed, check=True)


def _fetch_wheels(stage: Path, target: Target) -> None:
    """By the names and versions of the commit. Not what pip would resolve: its markers are those of the Python that runs it."""
    machine = target.platform.removeprefix("linux-")
    wanted = ["--only-binary=:all:", "--implementation=cp", f"--python-version={target.python}", *_tags(machine)]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", f"--dest={stage / WHEELS}", *wanted, *_requirements(stage)]
    if subprocess.run(command, check=False).returncode:
        raise ValueError(f"pip did not find each wheel of {NAMES} for {target}: see above")


def _requirements(stage: Path) -> Iterator[str]:
    pins = {line.partition("==")[0]: line for line in (stage / "constraints.txt").read_text(encoding="utf-8").splitlines()}
    names = (stage / NAMES).read_text(encoding="utf-8").splitlines()
    return (pins[name] for name in names if not name.startswith("#"))


def _tags(machine: str) -> Iterator[str]:
    return (f"--platform={glibc}_{machine}" for glibc in _GLIBC)


def _write_archive(path: Path, stage: Path, time: int) -> None:
    """Sorted, owned by nobody in particular, everything as old as the commit."""
    with path.open("wb") as file, gzip.GzipFile("", "wb", 6, file, mtime=time) as packed, tarfile.open(fileobj=packed, mode="w") as tar:
        for member in sorted(path for path in stage.rglob("*") if not path.is_dir()):
            info = tarfile.TarInfo(f"{stage.name}/{member.relative_to(stage).as_posix()}")
            info.size, info.mtime = member.stat().st_size, time
            info.mode = 0o755 if os.access(member, os.X_OK) else 0o644
            with member.open("rb") as content:
                tar.addfile(info, content)


if __name__ == "__main__":
    main()
