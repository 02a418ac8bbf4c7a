"""The folder of the suite, and the digests that ranks compare."""

from pathlib import Path

import pytest
from suite import make_suite

from gpu_acceptance.run import suite as suite_module
from gpu_acceptance.run.suite import find_suite, is_installed, is_suite, profile_digest, suite_digest, suite_for
from gpu_acceptance.thresholds.profile import load_profile, shipped_dir

ROOT = Path(__file__).parents[2]


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A package outside any checkout that carries a suite."""
    package = tmp_path / "site-packages" / "gpu_acceptance"
    monkeypatch.setattr(suite_module, "_PACKAGE", package)
    monkeypatch.setattr(suite_module, "INSTALLED", package / "suite")
    return make_suite(package / "suite", "passes")


def test_a_package_in_a_checkout_has_the_checkout_for_its_suite():
    assert find_suite().samefile(ROOT)
    assert not is_installed(ROOT)


def test_an_installed_package_has_the_copy_that_it_carries(installed):
    assert find_suite() == installed
    assert is_installed(installed)


def test_the_folder_that_a_run_is_started_in_comes_first_where_it_is_a_suite(installed, tmp_path):
    own = make_suite(tmp_path / "own", "passes")
    assert suite_for(own) == own
    assert suite_for(tmp_path) == installed


@pytest.mark.parametrize("lacks", ["acceptance", "conftest.py", "plugin"])
def test_a_folder_that_lacks_a_part_is_no_suite(tmp_path, lacks):
    suite = make_suite(tmp_path)
    assert is_suite(suite)
    if lacks == "acceptance":
        (suite / lacks).rmdir()
    else:
        (suite / "conftest.py").unlink()
        if lacks == "plugin":
            (suite / "conftest.py").write_text("collect_ignore = []\n")  # tests of something else
    assert not is_suite(suite)


def test_a_package_without_any_suite_says_what_to_do(installed):
    (installed / "conftest.py").unlink()
    with pytest.raises(FileNotFoundError, match="this package is in no checkout: install it with pip"):
        find_suite()


def parts(digest):
    whole, _, listed = digest.partition(": ")
    return {"": whole, **dict(part.split(" ") for part in listed.split(", "))}


def test_two_copies_of_a_suite_are_the_same(tmp_path):
    first, second = (make_suite(tmp_path / name, "passes", "skips") for name in ("a", "b"))
    assert suite_digest(first) == suite_digest(second)
    assert parts(suite_digest(first)).keys() == {"", "acceptance", "conftest.py", "fixtures", "pytest.ini", "gpu_acceptance"}


@pytest.mark.parametrize("change", ["edit", "add", "add a table", "remove", "rename"])
def test_a_change_of_a_validation_shows_in_its_part_alone(tmp_path, change):
    suite = make_suite(tmp_path, "passes", "skips")
    before, file = parts(suite_digest(suite)), suite / "acceptance" / "test_passes.py"
    match change:
        case "edit":
            file.write_text(file.read_text() + "\n")
        case "add":
            (suite / "acceptance" / "helper.py").touch()
        case "add a table":
            (suite / "acceptance" / "table.yaml").touch()
        case "remove":
            file.unlink()
        case "rename":
            file.rename(file.with_name("test_other.py"))
    after = parts(suite_digest(suite))
    assert {name for name in before if before[name] != after[name]} == {"", "acceptance"}


def test_a_part_that_is_not_there_is_none(tmp_path):
    assert parts(suite_digest(tmp_path))["acceptance"] == "none"


def test_the_digest_of_a_profile_names_the_digests_of_its_files():
    profile = load_profile("cpu", shipped_dir())
    found = parts(profile_digest(profile))
    assert found.pop("") == profile.digest[:12]
    assert found == {file.file: file.sha256[:8] for file in profile.files}
    assert list(found) == ["base.yaml", "cpu.yaml"]
