"""Files of pytest and torchrun."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpu_acceptance.folder.files import RunFiles
from gpu_acceptance.record.outcome import Outcome, Status
from gpu_acceptance.record.row import Judgement, Row
from gpu_acceptance.report.exports import figure_properties
from gpu_acceptance.run.outputs import direct_outputs, find_unwritable, reports, write_error_file


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


def test_torchrun_finds_the_last_screen_and_prints_it_last(tmp_path, monkeypatch):
    path = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    write_error_file("REJECTED: 1 limit missed", ["REJECTED: 1 limit missed", "coverage: µ", "report: there"])
    message = json.loads(path.read_text(encoding="utf-8"))["message"]
    assert message["message"] == "REJECTED: 1 limit missed"
    assert message["extraInfo"]["py_callstack"].lstrip("\n") == "REJECTED: 1 limit missed\ncoverage: µ\nreport: there"
    assert message["extraInfo"]["py_callstack"].count("\n") == 14, "what torchrun says of the rank is out of sight"
    with path.open(encoding="utf-8") as half_read:
        write_error_file("REJECTED: 1 limit missed")
        assert json.load(half_read)["message"] == message, "torchrun may read while it is written, and ends by a file that is not whole"
    other = json.loads(path.read_text(encoding="utf-8"))["message"]["extraInfo"]
    assert other["py_callstack"] == "REJECTED: 1 limit missed"
    assert int(other["timestamp"]) > int(message["extraInfo"]["timestamp"]), "torchrun prints the earliest one last"


@pytest.mark.parametrize("value", [None, ""])
def test_without_torchrun_nothing_is_written(tmp_path, monkeypatch, value):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE", raising=False)
    if value is not None:
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", value)
    write_error_file("REJECTED")
    assert list(tmp_path.iterdir()) == []


def test_a_torchrun_that_is_gone_took_its_folder_along(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "gone" / "error.json"))
    write_error_file("REJECTED")
    assert list(tmp_path.iterdir()) == []


NODEID = "acceptance/test_hbm.py::test_triad"
ITEM = SimpleNamespace(
    nodeid=NODEID, location=("acceptance/test_hbm.py", 3, "test_triad"), keywords={"test_triad": 1}, path=Path("test_hbm.py")
)


PASSES, FAILS = ([("setup", "passed"), ("call", result), ("teardown", "passed")] for result in ("passed", "failed"))
SKIPS, ERRS = ([("setup", result), ("teardown", "passed")] for result in ("skipped", "failed"))
PHASES = {
    **dict.fromkeys(Outcome, ERRS),
    **dict.fromkeys([Outcome.FAILED, Outcome.DIED, Outcome.STUCK], FAILS),
    Outcome.PASSED: PASSES,
    Outcome.NOT_APPLICABLE: SKIPS,
}


@pytest.mark.parametrize("outcome", Outcome)
def test_only_what_passed_passes_and_what_has_no_proof_is_an_error(outcome):
    found = list(reports(ITEM, outcome, "what happened", 2.5, {}))
    assert [(report.when, report.outcome) for report in found] == PHASES[outcome]
    if outcome is Outcome.NOT_APPLICABLE:
        assert found[0].longrepr == ("test_hbm.py", 0, "Skipped: not applicable: what happened")


def test_the_text_begins_with_the_outcome_once():
    texts = [next(reports(ITEM, Outcome.LOST, message, 0.0, {})).longreprtext for message in ("rank 1 is gone", "lost: rank 1 is gone")]
    assert texts == ["lost: rank 1 is gone", "lost: rank 1 is gone"]


def test_figures_duration_and_place_go_along():
    properties = {"hbm.triad.bandwidth at_least": "4300 GB/s, need >= 4150: held"}
    setup, call, teardown = reports(ITEM, Outcome.PASSED, "", 2.5, properties)
    assert (call.nodeid, call.location, call.duration) == (NODEID, ITEM.location, 2.5)
    assert setup.duration == 0.0
    assert call.user_properties == teardown.user_properties == list(properties.items())


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.ERROR, Outcome.NOT_APPLICABLE])
def test_text_of_a_machine_cannot_steer_the_terminal_and_keeps_its_lines(outcome):
    texts = [str(report.longrepr) for report in reports(ITEM, outcome, "first\n\x1b[2Jsecond", 0.0, {}) if report.longrepr]
    assert texts
    assert all("\x1b" not in text and "[2Jsecond" in text for text in texts)
    assert outcome is Outcome.NOT_APPLICABLE or texts[0] == f"{outcome}: first\n" + r"\x1b[2Jsecond"
