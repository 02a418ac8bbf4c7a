"""The workflows for GitHub and the job for GitLab: they are what their schemas allow, and all that they name is there."""

import json
import re
from importlib import resources
from pathlib import Path

import jsonschema
import pytest
import yaml

ROOT = Path(__file__).parents[1]
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


@each_file
def test_text_from_outside_is_no_part_of_a_command(name):
    """`${{ }}` in `run:` would paste what somebody wrote into a shell."""
    for job in read(name).get("jobs", {}).values():
        assert not any("${{" in step.get("run", "") for step in job["steps"])


def test_the_report_is_kept_however_it_went():
    for name in list(FILES)[:2]:
        steps = [step for job in read(name)["jobs"].values() for step in job["steps"] if "upload-artifact" in step.get("uses", "")]
        assert steps
        assert all((step["if"], step["with"]["if-no-files-found"]) == ("always()", "error") for step in steps)
    assert read("deploy/ci/gitlab-ci.yml")["acceptance"]["artifacts"]["when"] == "always"


def test_every_file_of_a_phase_is_a_subject():
    named = set(re.findall(r"acceptance/test_[a-z0-9_]+\.py", (ROOT / "docs" / "handoff.md").read_text()))
    assert named
    assert all((ROOT / path).exists() for path in named)
