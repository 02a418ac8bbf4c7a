"""A suite is compared with a commit, a bundle, or nothing."""

import json
import subprocess
import threading

import pytest
from bundles import GIT, commit_all

from gpu_acceptance.record.run_record import SuiteState
from gpu_acceptance.run.suite_state import look_at_suite
from gpu_acceptance.verdict.verdict import suite_notes
from tools import check_bundle


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
