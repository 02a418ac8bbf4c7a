"""`make bundle` and `make accept OFFLINE=1` on a small project of one wheel: what is packed, and what is refused in which words."""

import hashlib
import itertools
import re
import shutil
import subprocess
import tarfile
import venv

import pytest
from bundles import ROOT, closure, commit_all, make, write_wheel
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

pytestmark = [pytest.mark.slow, pytest.mark.needs("git", "make")]

NAMES = "deploy/air-gapped/wheels.txt"
TOOLS = ("Makefile", "tools/make_bundle.py", "tools/check_bundle.py", "tools/make_venv.py")
EXTRAS = ("", "debug", "images", "tensorboard")


def names_of(path):
    return {canonicalize_name(Requirement(line).name) for line in path.read_text().splitlines() if line and not line.startswith("#")}


# --- what is to be packed ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("python", "machine"), [*itertools.product(("3.11", "3.12", "3.13", "3.14"), ("x86_64", "aarch64"))])
def test_the_list_is_what_the_suite_needs_on_each_python_and_platform(python, machine):
    environment = {"python_version": python, "python_full_version": f"{python}.0", "platform_machine": machine}
    needed = closure("gpu-acceptance", EXTRAS, environment, without={"torch"}) - {"gpu-acceptance"}
    assert names_of(ROOT / NAMES) == needed | {"pip", "setuptools"}


def test_each_wheel_has_a_tested_version():
    pinned = {line.partition("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines()}
    assert [line for line in (ROOT / NAMES).read_text().splitlines() if not line.startswith("#") and line not in pinned] == []


def test_offline_installs_every_extra_that_is_packed():
    (extras,) = re.findall(r"^EVERY_EXTRA = (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert ("", *extras.split(",")) == EXTRAS


# --- packing -------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A repository with our tools, of which pip needs one wheel, and no index but a folder with that wheel."""
    folder = tmp_path / "project"
    for name in TOOLS:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    (folder / NAMES).parent.mkdir(parents=True)
    (folder / NAMES).write_text("tiny\n")
    (folder / "constraints.txt").write_text("tiny==1.0\n")
    (folder / "pyproject.toml").write_text('[project]\nname = "gpu-acceptance"\nversion = "0.1.0"\n')
    (folder / "setup.py").touch()
    (folder / ".gitignore").write_text("/dist/\n__pycache__/\n")
    for version in ("1.0", "2.0"):
        write_wheel(tmp_path / "index", "tiny", version)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    return commit_all(folder)


def packed(project, *arguments):
    done = make(project, "bundle", *arguments)
    assert done.returncode == 0, done.stderr
    (archive,) = (project / "dist").iterdir()
    return archive, done.stdout


def test_a_bundle_is_a_commit_its_wheels_and_a_digest_of_each_file_the_same_every_time(project):
    archive, said = packed(project, "PY=3.12", "PLATFORM=linux-aarch64")
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=project, check=True, capture_output=True, text=True).stdout.strip()
    name = f"gpu-acceptance-0.1.0-{commit[:12]}-py3.12-linux-aarch64"
    assert archive.name == f"{name}.tar.gz"
    first = archive.read_bytes()
    assert said.splitlines() == [
        f"dist/{archive.name}: 0 MB for Python 3.12 on linux-aarch64; torch is the cluster's own",
        f"sha256 {hashlib.sha256(first).hexdigest()}: compare it over there, by another way than the archive takes",
    ]
    with tarfile.open(archive) as tar:
        members = tar.getmembers()
    subprocess.run(["tar", "-xf", archive, "-C", project.parent], check=True)
    held = {member.name.removeprefix(f"{name}/") for member in members}
    assert held == {
        *TOOLS,
        NAMES,
        "constraints.txt",
        "pyproject.toml",
        "setup.py",
        ".gitignore",
        "wheels/tiny-1.0-py3-none-any.whl",
        "bundle.json",
        "SHA256SUMS",
    }
    assert {(member.uid, member.gid, member.mode) for member in members} == {(0, 0, 0o644)}
    told = subprocess.run(
        ["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=project.parent / name, capture_output=True, text=True, check=True
    )
    assert told.stdout == ""
    archive.unlink()
    assert packed(project, "PY=3.12", "PLATFORM=linux-aarch64")[0].read_bytes() == first


def refused(project, *arguments):
    done = make(project, "bundle", *arguments)
    assert done.returncode == 2
    assert not (project / "dist").exists()
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("make bundle: ")]
    return line


def test_a_tree_that_is_no_commit_is_not_packed(project):
    (project / "tools" / "new.py").touch()
    (project / "Makefile").write_text((project / "Makefile").read_text() + "\n")
    assert refused(project) == (
        "make bundle: 2 files are not as in HEAD, the first is Makefile: a bundle is of a commit, commit or stash them"
    )
    shutil.rmtree(project / ".git")
    assert refused(project) == f"make bundle: {project} is no git checkout: a bundle is of a commit"


def test_a_repository_that_git_does_not_read_is_said_in_its_own_words(project):
    (project / ".git" / "HEAD").write_text("x")
    assert re.fullmatch(r"make bundle: git status: fatal: not a git repository.*", refused(project))


def test_what_is_no_python_or_no_known_platform_is_refused(project):
    assert refused(project, "PY=3.12.1") == "make bundle: PY=3.12.1 is not a version of Python such as 3.12"
    assert refused(project, "PLATFORM=macosx-14.0-arm64") == (
        "make bundle: PLATFORM=macosx-14.0-arm64: known are linux-x86_64, linux-aarch64, the cluster's, not this machine's"
    )


def test_a_wheel_that_is_in_no_index_is_named_by_pip(project, tmp_path):
    (tmp_path / "index" / "tiny-1.0-py3-none-any.whl").unlink()
    done = make(project, "bundle", "PY=3.12", "PLATFORM=linux-x86_64")
    assert "No matching distribution found for tiny==1.0" in done.stderr
    assert f"\nmake bundle: pip did not find each wheel of {NAMES} for Python 3.12 on linux-x86_64: see above\n" in done.stderr


# --- using it ------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def unpacked(project):
    archive, _ = packed(project)
    subprocess.run(["tar", "-xf", archive, "-C", project.parent], check=True)
    return project.parent / archive.name.removesuffix(".tar.gz")


def told(folder, *arguments):
    """Return the last words of make about a bundle that it refuses; nothing was made."""
    done = make(folder, "accept", "OFFLINE=1", *arguments)
    assert done.returncode == 2
    assert not (folder / ".venv").exists()
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("OFFLINE=1: ")]
    return line.removeprefix("OFFLINE=1: ")


def test_a_folder_without_a_bundle_is_told_how_to_get_one(project):
    assert told(project) == (
        f"no bundle here: {project} has no SHA256SUMS. `make bundle` packs one where there is a network; unpack it and run there"
    )


WHEEL = "wheels/tiny-1.0-py3-none-any.whl"


def test_what_is_missing_extra_or_changed_is_named(unpacked):
    (unpacked / "wheels" / "torch\x1b.whl").touch()
    assert told(unpacked) == r"wheels/torch\x1b.whl is not in SHA256SUMS: remove what the bundle did not bring"
    (unpacked / "wheels" / "torch\x1b.whl").unlink()
    (unpacked / "constraints.txt").write_text("tiny==2.0\n")
    assert told(unpacked) == "constraints.txt is not as packed, by SHA256SUMS: unpack the bundle anew"
    (unpacked / WHEEL).write_bytes(b"")
    assert told(unpacked) == "constraints.txt and 1 more are not as packed, by SHA256SUMS: unpack the bundle anew"
    (unpacked / WHEEL).unlink()
    assert told(unpacked) == f"{WHEEL} is missing: unpack the bundle anew"


def test_an_invalid_list_of_digests_is_refused(unpacked):
    sums = unpacked / "SHA256SUMS"
    whole = sums.read_text()
    number = len(whole.splitlines()) + 1
    for line in ("x", "0" * 64 + "  /etc/passwd", "0" * 64 + "  wheels/../../x", "0" * 63 + "g  x"):
        sums.write_text(f"{whole}{line}\n")
        assert (
            told(unpacked) == f"line {number} of SHA256SUMS is not '<64 hexadecimal digits>  <file in this folder>': unpack the bundle anew"
        )


def say_of_bundle(folder, text):
    """Another `bundle.json`, and its digest."""
    (folder / "bundle.json").write_text(text)
    kept = [line for line in (folder / "SHA256SUMS").read_text().splitlines() if not line.endswith("  bundle.json")]
    (folder / "SHA256SUMS").write_text("\n".join([*kept, f"{hashlib.sha256(text.encode()).hexdigest()}  bundle.json"]) + "\n")


def test_wheels_for_another_python_or_platform_are_refused(unpacked):
    here = (unpacked / "bundle.json").read_text()
    python, platform = (re.search(rf'"{name}": "(.*)"', here)[1] for name in ("python", "platform"))
    say_of_bundle(unpacked, here.replace(f'"{python}"', '"3.99"'))
    said = told(unpacked)
    assert said.startswith(f"the wheels are for Python 3.99 on {platform}, ")
    again = f"`make bundle PY={python} PLATFORM={platform}`"
    assert said.endswith(f" is Python {python} on {platform}: name another one with PYTHON=..., or pack anew with {again}")
    for text in ("{", "[]", "{}"):
        say_of_bundle(unpacked, text)
        assert told(unpacked) == "bundle.json does not say python and platform: unpack the bundle anew"


def test_a_python_without_torch_is_refused(unpacked, tmp_path):
    venv.create(tmp_path / "bare", symlinks=True)
    python = tmp_path / "bare" / "bin" / "python"
    assert told(unpacked, f"PYTHON={python}") == (
        f"{python} cannot import torch, and a bundle holds none: name the cluster's python with PYTHON=..."
    )


def test_offline_is_1_and_not_for_our_own_tests(project):
    assert make(project, "accept", "OFFLINE=no").stderr.endswith("OFFLINE=no: it is 1, or not given.  Stop.\n")
    said = make(project, "test", "OFFLINE=1").stderr
    assert "OFFLINE=1 is for `make accept`, `make plan` and `make bench`: a bundle does not hold the tools of our own tests" in said
