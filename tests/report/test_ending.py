"""The files of a run at its end: all of them, or none that claims too much."""

import pytest
from journals import concluded, told
from report import samples

from gpu_acceptance.folder.files import read_results, write_results
from gpu_acceptance.report import ending
from gpu_acceptance.report.ending import broken, complete_ending, spoil, write_ending
from gpu_acceptance.report.exports import EXPORTS


def accepted():
    return concluded(told())


def rejected():
    return concluded(told(triad=(120.0, 120.0, 3.0, 120.0)))


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def break_it(monkeypatch, name, error):
    def fail(*_):
        raise error

    monkeypatch.setattr(ending, name, fail)


@pytest.mark.parametrize(("sample", "code"), [(samples.accepted, 0), (samples.rejected, 1), (samples.incomplete, 6)])
def test_all_is_written(tmp_path, sample, code):
    made = write_ending(tmp_path, sample())
    assert names(tmp_path) == sorted([*EXPORTS, "report.html", "results.json"])
    assert (made.exit_code, made.word, made.lines[0]) == (code, sample().conclusion.verdict, sample().conclusion.line)
    assert complete_ending(tmp_path, read_results(tmp_path)) == made


@pytest.mark.parametrize("lost", [("metrics.prom", "junit.xml"), (*EXPORTS, "report.html")])
def test_what_a_lost_reporter_no_longer_wrote_is_written_to_the_byte(tmp_path, lost):
    made = write_ending(tmp_path, samples.rejected())
    before = {name: (tmp_path / name).read_bytes() for name in lost}
    for name in lost:
        (tmp_path / name).unlink()
    assert complete_ending(tmp_path, read_results(tmp_path)) == made
    assert {name: (tmp_path / name).read_bytes() for name in lost} == before


@pytest.mark.parametrize("is_written", [False, True])
def test_a_page_that_cannot_be_built_or_not_any_more_loses_no_results_and_is_no_acceptance(tmp_path, monkeypatch, is_written):
    break_it(monkeypatch, "build_page", ZeroDivisionError("a bug"))
    if is_written:
        write_results(tmp_path, accepted())
    made = (complete_ending if is_written else write_ending)(tmp_path, accepted())
    problem = f"the report could not be written to {tmp_path}: ZeroDivisionError: a bug"
    assert "report.html" not in names(tmp_path)
    assert (made.exit_code, made.lines[0]) == (3, f"INCOMPLETE: {problem}")
    record = read_results(tmp_path)
    assert (record.conclusion.verdict, record.conclusion.line, record.conclusion.exit_code) == ("INCOMPLETE", f"INCOMPLETE: {problem}", 3)
    assert record.conclusion.reasons[0] == problem
    assert record.rows == accepted().rows


@pytest.mark.parametrize("name", ["write_results", "write_atomically"])
def test_a_full_disk_leaves_no_results_that_say_0(tmp_path, monkeypatch, name):
    break_it(monkeypatch, name, OSError(28, "No space left on device"))
    made = write_ending(tmp_path, accepted())
    assert made.exit_code == 3
    assert made.lines[0] == f"INCOMPLETE: the report could not be written to {tmp_path}: OSError: [Errno 28] No space left on device"
    left = names(tmp_path)
    assert "report.html" not in left
    assert left == [] or read_results(tmp_path).conclusion.exit_code == 3  # no file for other tools is left alone


def test_what_another_rank_wrote_stays(tmp_path):
    write_ending(tmp_path, rejected())
    before = (tmp_path / "results.json").read_bytes()
    made = write_ending(tmp_path, accepted())
    assert made.exit_code == 3
    assert made.lines == (f"no verdict: {tmp_path}/results.json exists already: another rank finished this run",)
    assert (tmp_path / "results.json").read_bytes() == before


def test_an_acceptance_is_taken_back(tmp_path):
    write_ending(tmp_path, accepted())
    made = spoil(tmp_path, accepted(), "a hook failed")
    assert (made.exit_code, made.word, made.lines[0]) == (3, "INCOMPLETE", "INCOMPLETE: a hook failed")
    assert read_results(tmp_path).conclusion.line == "INCOMPLETE: a hook failed"
    assert "a hook failed" in (tmp_path / "report.html").read_text()
    assert (tmp_path / "summary.txt").read_text().startswith("INCOMPLETE: a hook failed\n")


def test_a_rejection_stays_one(tmp_path):
    assert spoil(tmp_path, rejected(), "a hook failed").lines[0].endswith("a hook failed")
    conclusion = read_results(tmp_path).conclusion
    assert (conclusion.verdict, conclusion.exit_code) == ("REJECTED", 3)
    assert conclusion.line == f"{rejected().conclusion.line}, a hook failed"
    assert "a hook failed" in conclusion.reasons


def test_a_run_that_cannot_be_judged_has_no_verdict():
    made = broken(KeyError("a bug"))
    assert (made.exit_code, made.word) == (3, "")
    assert made.lines[0] == "no verdict: internal error while the run was judged: KeyError: 'a bug'"
