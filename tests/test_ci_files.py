"""The workflows for GitHub and the job for GitLab: they are what their schemas allow, and all that they name is there."""

import json
import os
import re
import subprocess
import sys
from importlib import resources
from pathlib import Path

import jsonschema
import pytest
import yaml

from tests.judging import shipped_profile

pytestmark = pytest.mark.repository

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
FILES = {
    ".github/workflows/ci.yml": "github-workflows",
    ".github/workflows/acceptance.yml": "github-workflows",
    ".github/workflows/pages.yml": "github-workflows",
    "deploy/ci/gitlab-ci.yml": "gitlab-ci",
}
each_file = pytest.mark.parametrize("name", FILES)


def read(name):
    """As the services read it: by YAML 1.2, in which `on` is a word."""
    found = yaml.safe_load((ROOT / name).read_text())
    return {("on" if key is True else key): value for key, value in found.items()}


@each_file
def test_it_is_what_its_schema_allows(name):
    folder = resources.files("check_jsonschema") / "builtin_schemas" / "vendor"
    schema = json.loads((folder / f"{FILES[name]}.json").read_text())
    jsonschema.validators.validator_for(schema)(schema).validate(read(name))


@each_file
def test_what_it_names_is_there(name):
    text = (ROOT / name).read_text()
    targets = set(re.findall(r"\bmake ([a-z-]+)", text))
    assert targets <= set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert all((ROOT / path).exists() for path in re.findall(r"\.ci/run|deploy/[a-zA-Z/]+file", text))


@each_file
def test_nothing_is_run_again_until_it_passes(name):
    assert not re.search(r"retry: [1-9]|continue-on-error|allow_failure|\|\| true", (ROOT / name).read_text())


def scripts():
    """Each shell script of a workflow or job, and those that CI and launchers start, by a name."""
    for name in FILES:
        for key, job in (read(name).get("jobs") or read(name)).items():
            parts = [step["run"] for step in job.get("steps", []) if "run" in step] if "steps" in job else job.get("script", [])
            yield from ((f"{name}:{key}:{number}", text) for number, text in enumerate(parts))
    for path in (".ci/run", *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "deploy").rglob("*.s[hb]*")))):
        yield path, (ROOT / path).read_text()


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in scripts()])
def test_a_script_is_one_that_shellcheck_passes(text):
    done = subprocess.run([BIN / "shellcheck", "--shell=bash", "-"], input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_workflows_pass_zizmor():
    """zizmor knows attacks on workflows: text that reaches a shell, exposed tokens, needless rights."""
    command = [BIN / "zizmor", "--offline", "--no-progress", "--format=plain", ".github/workflows"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def script_with(word, name):
    """The one script of a file that has this word."""
    (found,) = [text for place, text in scripts() if place.startswith(name) and word in text]
    return found


def run_script(text, folder, **env):
    """Run a script as GitHub does, and return its result: arguments of gpu-acceptance, one on each line."""
    program = folder / ".venv" / "bin" / "gpu-acceptance"
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\nexit 6\n')
    program.chmod(0o755)
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", text]
    return subprocess.run(command, cwd=folder, env={"PATH": os.environ["PATH"], **env}, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", [".github/workflows/acceptance.yml", "deploy/ci/gitlab-ci.yml"])
@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--level=quick", "--limits=site-nvls-off"],
        ["--waive=nic.*=the card is on order"],
        ["--site=$(touch made)", "`touch made`", "$(shell touch made)", "'; touch made; '", '"', "END", "\\", "*", "-"],
    ],
    ids=["none", "two", "blanks", "hostile"],
)
def test_options_reach_the_program_as_they_are(tmp_path, name, options):
    """One a line, blank lines left out; no shell and no make reads them; the exit code is the program's own."""
    done = run_script(script_with("OPTIONS", name), tmp_path, OPTIONS="\n".join([*options, "", ""]))
    assert done.stdout.splitlines() == ["run", *options]
    assert done.returncode == 6, done.stderr
    assert not (tmp_path / "made").exists()


def test_an_image_has_the_name_of_the_repository_in_small_letters(tmp_path):
    text = script_with("GITHUB_ENV", ".github/workflows/ci.yml")
    run_script(text, tmp_path, GITHUB_REPOSITORY="Some-Lab/GPU-Acceptance", GITHUB_ENV=str(tmp_path / "env"))
    assert (tmp_path / "env").read_text() == "IMAGE=ghcr.io/some-lab/gpu-acceptance\n"


def test_the_report_is_kept_however_it_went():
    for name in list(FILES)[:2]:
        steps = [step for job in read(name)["jobs"].values() for step in job["steps"] if "upload-artifact" in step.get("uses", "")]
        assert steps
        assert all((step["if"], step["with"]["if-no-files-found"]) == ("always()", "error") for step in steps)
    assert read("deploy/ci/gitlab-ci.yml")["acceptance"]["artifacts"]["when"] == "always"


def test_the_steps_of_a_handoff_are_the_phases_of_a_run():
    told = re.findall(r"^\| phase \[`([a-z]+)`\]", (ROOT / "docs" / "handoff.md").read_text(), re.MULTILINE)
    assert told == list(shipped_profile("base").phases)
