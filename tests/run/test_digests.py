"""Digests of the suite and of the profile: the same where the files are, and what differs shows in its part."""

import pytest
from suite import make_suite

from gpu_acceptance.run.suite import profile_digest, suite_digest
from gpu_acceptance.thresholds.profile import load_profile, shipped_dir


def parts(digest):
    whole, _, listed = digest.partition(": ")
    return {"": whole, **dict(part.split(" ") for part in listed.split(", "))}


def test_two_copies_of_a_suite_are_the_same(tmp_path):
    first, second = (make_suite(tmp_path / name, "passes", "skips") for name in ("a", "b"))
    assert suite_digest(first) == suite_digest(second)
    assert parts(suite_digest(first)).keys() == {"", "acceptance", "conftest.py", "fixtures", "pytest.ini", "gpu_acceptance"}


@pytest.mark.parametrize("change", ["edit", "add", "remove", "rename"])
def test_a_change_of_a_validation_shows_in_its_part_alone(tmp_path, change):
    suite = make_suite(tmp_path, "passes", "skips")
    before, file = parts(suite_digest(suite)), suite / "acceptance" / "test_passes.py"
    match change:
        case "edit":
            file.write_text(file.read_text() + "\n")
        case "add":
            (suite / "acceptance" / "helper.py").touch()
        case "remove":
            file.unlink()
        case "rename":
            file.rename(file.with_name("test_other.py"))
    after = parts(suite_digest(suite))
    assert {name for name in before if before[name] != after[name]} == {"", "acceptance"}


def test_a_part_that_is_not_there_is_none(tmp_path):
    assert parts(suite_digest(tmp_path))["acceptance"] == "none"


def test_a_profile_is_told_by_the_digest_of_the_report_and_by_its_files():
    profile = load_profile("cpu", shipped_dir())
    found = parts(profile_digest(profile))
    assert found.pop("") == profile.digest[:12]
    assert found == {file.file: file.sha256[:8] for file in profile.files}
    assert list(found) == ["base.yaml", "cpu.yaml"]
