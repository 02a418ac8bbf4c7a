"""deploy/container in step with the repository: what is copied is all that the entry point needs, by the steps of the file itself."""

import json
import os
import re
import shlex
import shutil
import subprocess
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest
from clean_environment import clean_environment
from suite import PYTHON

pytestmark = pytest.mark.repository

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "deploy" / "container"
README = (FOLDER / "README.md").read_text()


def instructions():
    """Each instruction of the Dockerfile with its arguments on one line, comments left out."""
    lines = [line for line in (FOLDER / "Dockerfile").read_text().splitlines() if not line.startswith("#")]
    return [tuple(line.split(None, 1)) for line in "\n".join(lines).replace("\\\n", " ").splitlines() if line]


def arguments_of(instruction):
    return [arguments for name, arguments in instructions() if name == instruction]


def copies():
    """Each source of a COPY, and where it goes below the work directory."""
    for *sources, target in map(str.split, arguments_of("COPY")):
        for source in sources:
            yield source, target + Path(source).name if target.endswith("/") else target


def exceptions():
    first, *lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    assert first == "*"
    return [line[1:] for line in lines if line.startswith("!")], [line for line in lines if not line.startswith("!")]


def test_what_is_copied_is_there_and_nothing_else_is_sent_to_the_builder():
    sources = [source for source, _ in copies()]
    assert [source for source in sources if not (ROOT / source).exists()] == []
    sent, ignored = exceptions()
    assert sorted(sent) == sorted(sources)
    assert [source for source in sources if any(fnmatch(source, glob) for glob in ignored)] == []


@pytest.fixture
def image(tmp_path):
    """The work directory of the image: what is copied, and an environment that is ready."""
    folder = tmp_path / "opt" / "gpu-acceptance"
    for source, target in copies():
        (folder / target).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
        copy(ROOT / source, folder / target)
    (folder / ".venv" / "bin").mkdir(parents=True)
    for name, words in (("python", [PYTHON]), ("gpu-acceptance", [PYTHON, "-m", "gpu_acceptance"])):
        program = folder / ".venv" / "bin" / name
        program.write_text(f'#!/bin/sh\nexport PYTHONPATH={shlex.quote(str(folder / "src"))}\nexec {shlex.join(words)} "$@"\n')
        program.chmod(0o755)
    for name in ("pyproject.toml", "setup.py"):
        os.utime(folder / name)
    (folder / ".venv" / ".ready").touch()
    return folder


@pytest.mark.needs("make")
def test_the_entry_point_plans_with_what_is_copied(image, tmp_path):
    (entry,), (command,) = arguments_of("ENTRYPOINT"), arguments_of("CMD")
    assert json.loads(command) == ["accept"]
    assert "RUN make plan > /dev/null" in (FOLDER / "Dockerfile").read_text().splitlines()
    words = [word.replace("=/opt/", f"={tmp_path}/opt/").replace("=/reports", f"={tmp_path}/reports") for word in json.loads(entry)]
    done = subprocess.run(
        [*words, "plan", "RANKS=1"], cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, check=False, timeout=200
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "acceptance/test_environment.py" in done.stdout
    assert "make_venv.py" not in done.stdout
    assert not (tmp_path / "reports").exists()


def test_labels_are_those_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    labels = dict(re.findall(r'org\.opencontainers\.image\.([\w.]+)="([^"]*)"', " ".join(arguments_of("LABEL"))))
    assert labels == {
        "title": project["name"],
        "description": project["description"],
        "version": project["version"],
        "licenses": project["license"],
        "revision": "${REVISION}",
        "base.name": "${BASE}",
    }


def test_the_base_is_one_release_and_may_be_another_one():
    before_from = [arguments for name, arguments in instructions()[:2]]
    assert re.fullmatch(r"BASE=[\w./-]+:\d\d\.\d\d-py3", before_from[0])
    assert before_from[1] == "${BASE}"
    release = before_from[0].partition(":")[2].removesuffix("-py3")
    assert f"release {release}" in README


def test_it_does_not_run_as_root_and_has_no_health_check_that_would_disturb_what_is_measured():
    *_, user = arguments_of("USER")
    assert re.fullmatch(r"[1-9]\d+", user)
    assert any(f"useradd --uid {user} " in command for command in arguments_of("RUN"))
    assert arguments_of("HEALTHCHECK") == ["NONE"]


def test_the_versions_are_those_of_constraints_but_for_what_the_base_brings(tmp_path):
    """The file names no version itself; its own command is run on constraints.txt."""
    (install,) = [command for command in arguments_of("RUN") if "make_venv.py" in command]
    assert "==" not in re.sub(r"'[^']*'", "", (FOLDER / "Dockerfile").read_text())
    (keep,) = [step.strip() for step in install.split("&&") if step.strip().startswith("grep")]
    command = shlex.split(keep)
    assert command[-2:] == [">", "/tmp/versions.txt"]
    kept = subprocess.run(command[:-2], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    left_out = {line.partition("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines()} - {
        line.partition("==")[0] for line in kept
    }
    assert left_out == {"torch", "numpy"}
    assert "PIP_CONSTRAINT=/tmp/versions.txt " in install
    (extras,) = re.findall(r"^EVERY_EXTRA = (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert f"make_venv.py .venv {extras} " in install


def test_it_brings_what_its_readme_says():
    (packages,) = [
        command.rpartition("--no-install-recommends")[2].partition("&&")[0].split()
        for command in arguments_of("RUN")
        if "apt-get" in command
    ]
    assert packages == sorted(packages)
    wanted = {"g++", "infiniband-diags", "iproute2", "perftest", "python3-dev"}
    assert wanted <= set(packages)
    assert [name for name in wanted if f"`{name}`" not in README] == []
    arguments = {line.partition("=")[0] for line in arguments_of("ARG")}
    assert arguments == set(re.findall(r"^\| `([A-Z]+)` \|", README, re.MULTILINE))
