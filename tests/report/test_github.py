"""Output for GitHub Actions: lines to which no text of a machine can add, and a summary whose fence nothing closes."""

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpu_acceptance.report.summary_text import MOST_ANNOTATIONS, annotations, build_summary, job_summary, tell_github
from tests.report import samples
from tests.report.test_hostile import PIECES, hostile, tainted_record
from tests.report.test_summary_text import REASONS, of_the_job

LINE = re.compile(r"::(error|warning|notice) title=[^:,\r\n]+::[^\r\n]*")


def kinds(record):
    return [LINE.fullmatch(line)[1] for line in annotations(record)]


@pytest.mark.parametrize("sample", samples.ALL)
def test_each_line_is_one_command_and_the_verdict_is_the_last(sample):
    record = samples.ALL[sample]()
    *_, last = annotations(record)
    assert kinds(record)[-1] == "notice"
    assert last == f"::notice title={record.conclusion.verdict}::{record.conclusion.line.replace('%', '%25')}"


def test_what_is_wrong_is_told_with_figure_and_bound():
    found = [line for line in annotations(samples.rejected()) if line.startswith("::error")]
    assert any(line.startswith("::error title=FAILED acceptance/test_hbm.py%3A%3Atest_hbm_triad::") for line in found)
    assert kinds(samples.accepted()).count("error") == 0


def test_what_no_validation_tells_is_told_first():
    found = [line for line in annotations(of_the_job(samples.rejected())) if line.startswith("::error")]
    lines = [next(n for n, line in enumerate(found) if text in line) for text in (*REASONS, "contract line 8.2", "test_hbm_triad")]
    assert lines == sorted(lines)
    assert found[lines[1]] == f"::error title=what speaks against the whole run::{REASONS[1]}"


def test_what_github_would_not_show_is_counted():
    record = samples.rejected()
    rows = tuple(
        record.rows[1].model_copy(update={"nodeid": f"acceptance/test_hbm.py::test_{number}", "message": str(number)})
        for number in range(25)
    )
    record = record.model_copy(update={"conclusion": record.conclusion.model_copy(update={"objections": ()})})
    found = [line for line in annotations(record.model_copy(update={"rows": rows})) if line.startswith("::error")]
    assert len(found) == MOST_ANNOTATIONS
    assert found[-1] == "::error title=and 18 more problems::see report.html"


def test_only_github_is_told_and_a_summary_is_added_to_what_is_there(tmp_path):
    path, record = tmp_path / "summary.md", samples.rejected()
    path.write_text("before\n")
    assert list(tell_github(record, {"GITHUB_STEP_SUMMARY": str(path)})) == []
    assert path.read_text() == "before\n"
    lines = list(tell_github(record, {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(path)}))
    assert lines == list(annotations(record)) == list(tell_github(record, {"GITHUB_ACTIONS": "true"}))
    assert path.read_text() == "before\n" + job_summary(record)


@pytest.mark.slow
@pytest.mark.parametrize("sample", ["rejected", "stuck", "incomplete"])
@given(taint=hostile | st.text(st.characters(), min_size=1, max_size=20))
@example(taint="x\n::error title=owned::x\r::add-mask::y%0A::set-env name=a::b")
@example(taint="````\n# owned\n<script>" + "".join(PIECES))
@settings(max_examples=20, deadline=None)
def test_no_text_of_a_machine_issues_a_command_or_leaves_its_fence(sample, taint):
    record = tainted_record(sample, taint)
    for line in annotations(record):
        assert LINE.fullmatch(line), line
    _, fence, inside, end = re.fullmatch(r"(## [^\n]*)\n\n(`{3,})text\n(.*)\n(`{3,})\n", job_summary(record), re.DOTALL).groups()
    assert fence == end
    assert fence not in inside
    assert inside + "\n" == build_summary(record)
