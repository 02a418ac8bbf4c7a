"""The folder of the suite, the digests that ranks compare, and what it is compared with: a commit, a bundle, or nothing."""

import json
import subprocess
import threading
from pathlib import Path

import pytest
from bundles import GIT, commit_all
from suite import make_suite

from gpu_acceptance.record.run_record import SuiteState
from gpu_acceptance.run import suite as suite_module
from gpu_acceptance.run.suite import find_suite, is_installed, is_suite, look_at_suite, profile_digest, suite_digest, suite_for
from gpu_acceptance.verdict.verdict import suite_notes
from tests.judging import shipped_profile
from tools import check_bundle

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
    profile = shipped_profile("cpu")
    found = parts(profile_digest(profile))
    assert found.pop("") == profile.digest[:12]
    assert found == {file.file: file.sha256[:8] for file in profile.files}
    assert list(found) == ["base.yaml", "cpu.yaml"]


@pytest.fixture
def root(tmp_path):
    for name in ("acceptance/test_a.py", "fixtures/ranks.py", "thresholds/cpu.yaml", "conftest.py", "src/gpu_acceptance/__init__.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"# {name}\n")
    (tmp_path / "README.md").write_text("not of the suite\n")
    return tmp_path


def look(root):
    return look_at_suite(root, [], {}, {}, is_whole=True)


def edit(root):
    (root / "thresholds" / "cpu.yaml").write_text("limits: {}\n")
    (root / "fixtures" / "ranks.py").unlink()
    (root / "acceptance" / "test_b.py").touch()
    (root / "acceptance" / "notes.txt").touch()
    (root / "README.md").write_text("changed\n")
    (root / "reports").mkdir()
    (root / "reports" / "a.py").touch()


EDITED = ("acceptance/test_b.py", "fixtures/ranks.py", "thresholds/cpu.yaml")


@pytest.mark.needs("git")
def test_a_checkout(root):
    commit_all(root)
    state = look(root)
    assert (state.source, state.changed, len(state.commit)) == ("checkout", (), 40)
    edit(root)
    for told in ("--assume-unchanged", "--skip-worktree"):  # git status would not look at it
        subprocess.run([*GIT, "update-index", told, "thresholds/cpu.yaml"], cwd=root, check=True)
    assert look(root) == state.model_copy(update={"changed": EDITED, "num_changed": 3})


@pytest.mark.needs("git")
def test_a_checkout_that_git_does_not_know_is_unknown(root, monkeypatch):
    commit_all(root)
    monkeypatch.setenv("PATH", "/nowhere")
    assert look(root) == SuiteState()
    monkeypatch.undo()
    (root / ".git" / "HEAD").write_text("ref: refs/heads/none\n")
    assert look(root) == SuiteState()


def test_a_bundle(root):
    commit = "0123456789abcdef0123456789abcdef01234567"
    (root / "bundle.json").write_text(json.dumps({"commit": commit, "python": "3.11", "platform": "linux-x86_64"}))
    check_bundle.write_sums(root)
    assert look(root) == SuiteState(source="bundle", commit=commit)
    edit(root)
    assert look(root) == SuiteState(source="bundle", commit=commit, changed=EDITED, num_changed=3)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"commit": 5}', '{"commit": "HEAD"}', "\ufffd"])
def test_a_bundle_that_does_not_say_of_what(root, content):
    (root / "bundle.json").write_text(content)
    assert look(root) == SuiteState()


def test_words_are_few_and_visible():
    many = tuple(f"acceptance/test_{number}\n.py" for number in range(5))
    state = SuiteState(source="wheel", changed=(*many, "gpu_acceptance/profiles/h200-sxm.yaml"), num_changed=60, conftests=many[:2])
    assert list(suite_notes(state)) == [
        "limits file h200-sxm.yaml not as installed",
        "59 files of the suite not as installed: acceptance/test_0\\n.py, acceptance/test_1\\n.py and 3 more",
        "conftests acceptance/test_0\\n.py, acceptance/test_1\\n.py beside the suite's own",
    ]
    assert list(suite_notes(None)) == list(suite_notes(SuiteState())) == []


def test_a_thread_that_python_would_wait_for_is_named_with_its_module(tmp_path):
    (root := tmp_path / "suite").mkdir()
    ends = threading.Event()
    threads = [threading.Thread(target=ends.wait, name="stays"), threading.Thread(target=ends.wait, name="does not", daemon=True)]
    try:
        for thread in threads:
            thread.start()
        (named,) = [name for name in look(root).threads if name.startswith("stays of ")]
    finally:
        ends.set()
    assert list(suite_notes(SuiteState(threads=(named,)))) == [f"1 thread started by an import: {named}"]
