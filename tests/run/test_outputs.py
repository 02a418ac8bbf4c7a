"""The files that pytest and its plugins write of a run."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from gpu_acceptance.folder.files import RunFiles
from gpu_acceptance.record.outcome import Outcome, Status
from gpu_acceptance.record.row import Judgement, Row
from gpu_acceptance.report.exports import figure_properties
from gpu_acceptance.run.outputs import direct_outputs, find_unwritable


def config(**options):
    return SimpleNamespace(option=SimpleNamespace(**{"xmlpath": None, **options}))


@pytest.mark.parametrize("name", ["junit.xml", "new/folder/junit.xml", "there.xml"])
def test_a_file_that_can_be_written(tmp_path, monkeypatch, name):
    (tmp_path / "there.xml").touch()
    monkeypatch.chdir(tmp_path)
    assert find_unwritable(config(xmlpath=name)) is None
    assert not (tmp_path / "new").exists()


def test_nothing_asked_for():
    assert find_unwritable(config()) is None


@pytest.mark.parametrize(
    ("name", "problem"),
    [("folder", "is a folder"), ("file/below/junit.xml", "{}/file is not a folder"), ("x" * 300, "File name too long")],
)
def test_a_file_that_cannot_be_written(tmp_path, name, problem):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    path = tmp_path / name
    assert find_unwritable(config(xmlpath=str(path))) == f"--junitxml={path}: {problem.format(tmp_path)}; name a file that can be written"


def test_pytest_itself_writes_no_junit_since_it_has_no_verdict(tmp_path):
    ours, theirs = config(), config(xmlpath="a.xml")
    wanted = [direct_outputs(one, RunFiles(tmp_path, 0), 0) for one in (ours, theirs)]
    assert wanted == [None, Path.cwd() / "a.xml"]
    assert (ours.option.xmlpath, theirs.option.xmlpath) == (None, None)


@pytest.mark.parametrize("has_folder", [True, False])
def test_another_rank_writes_its_terminal_alone_or_nowhere(tmp_path, monkeypatch, has_folder):
    monkeypatch.setattr("sys.stdout", None)
    if has_folder:
        RunFiles(tmp_path, 1).make_folders()
    one = config(xmlpath="a.xml")
    direct_outputs(one, RunFiles(tmp_path, 1), 1)
    import sys

    sys.stdout.close()
    assert one.option.xmlpath is None
    assert (tmp_path / "logs" / "rank-00001.pytest.txt").exists() == has_folder


def test_no_text_of_a_figure_steers_a_terminal():
    judgement = Judgement(metric="a\x1b[2J", status=Status.WAIVED, value="\x1b[1m", unit="text", bound="equals", message="\u202ewhy")
    row = Row(nodeid="a", subject="a", outcome=Outcome.PASSED, judgements=(judgement,))
    ((name, said),) = figure_properties(row).items()
    assert name == r"a\x1b[2J equals"
    assert said.isprintable()
    assert r"\u202ewhy" in said
