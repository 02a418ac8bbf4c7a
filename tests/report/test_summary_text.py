"""The report as plain text and for GitHub: what it says, how large it may become, and that no text of a machine looks like ours."""

import re

import pytest

from gpu_acceptance.record.outcome import Status
from gpu_acceptance.report.summary_text import (
    COLUMNS,
    MOST_ANNOTATIONS,
    MOST_LINES,
    annotations,
    build_summary,
    coverage_text,
    job_summary,
    tell_github,
)
from gpu_acceptance.report.words import figure_text, margin_of
from gpu_acceptance.verdict.coverage import judge_contract
from tests.report import sample_rows, samples
from tests.report.test_hostile import for_hostile_text, tainted_record


def folded(text):
    return " ".join(text.split())


@pytest.mark.parametrize("sample", samples.ALL)
def test_it_is_one_page_and_the_verdict_comes_first(sample):
    record = samples.ALL[sample]()
    text = build_summary(record)
    lines = text.splitlines()
    assert folded(text).startswith(folded(record.conclusion.line))
    assert len(lines) <= MOST_LINES
    assert max(map(len, lines)) <= COLUMNS
    assert record.plan.run_id in text


def test_each_miss_stands_under_its_culprit_with_figure_bound_deviation_and_remedy():
    record = samples.rejected()
    text = folded(build_summary(record))
    missed = [one for row in record.rows for one in row.judgements if one.status is Status.MISSED]
    assert missed
    for one in missed:
        assert f"MISSED {one.metric} = {one.value} {one.unit}, need {one.need}, {100 * one.margin:+.1f} % from the bound" in text
    assert f"rank {missed[0].ranks[0]} (" in text
    assert "to do: " in text


def test_a_stuck_rank_is_a_culprit_and_its_victims_are_not():
    text = build_summary(samples.stuck())
    assert text.count("STUCK in ") == 1
    assert "victim" not in text


def test_the_smallest_margins_come_in_order():
    limits = [one for one in samples.accepted().conclusion.limits if one.status is Status.HELD and one.margin is not None]
    told = build_summary(samples.accepted()).split("smallest margins of what held:\n")[1]
    assert [line.split()[3] for line in told.splitlines() if " held " in line] == [
        one.metric for one in sorted(limits, key=lambda one: one.margin)[:5]
    ]


REASONS = ("acceptance/test_x.py: not collected: SyntaxError", "interrupted: SIGTERM from PID 7")


def of_the_job(record):
    """Return the run with two reasons of the whole run, and a contract line that was missed."""
    line = samples.CONTRACT.lines[1].model_copy(update={"at_least": 10_000})
    contract = judge_contract(samples.CONTRACT.model_copy(update={"lines": (line,)}), record.conclusion.limits, 1, {})
    objections = (*record.conclusion.objections, *samples.objections(*REASONS)["objections"])
    changes = {"objections": objections, "contract": contract}
    return record.model_copy(update={"conclusion": record.conclusion.model_copy(update=changes)})


def test_what_no_validation_tells_comes_first_and_nothing_cuts_it_away():
    record = of_the_job(samples.rejected())
    never = tuple(sample_rows.not_measured(f"nccl.never_{number}") for number in range(100))
    limits = (*record.conclusion.limits, *never)
    text = build_summary(samples.concluded(record, limits=limits))
    assert " more lines, see report.html" in text
    whole = text.split("what is wrong, by culprit:\n")[1].split("\n  rank ")[0]
    for said in (*REASONS, "MISSED contract line 8.2 (all-reduce: "):
        assert said in folded(whole)


def test_a_limit_that_some_rank_did_not_measure_shows_no_figure_as_its_own():
    record = samples.rejected()
    missed = next(one for row in record.rows for one in row.judgements if one.status is Status.MISSED)
    elsewhere = missed.model_copy(update={"status": Status.NOT_MEASURED})
    assert (figure_text(elsewhere, exactly=True), margin_of(elsewhere)) == (f"no figure (elsewhere {missed.value} {missed.unit})", None)


def test_rows_of_the_suite_itself_are_no_validations_and_an_accepted_run_has_nothing_wrong():
    record = samples.accepted()
    formation = record.rows[0].model_copy(update={"nodeid": "world_formation"})
    assert coverage_text(record.model_copy(update={"rows": (formation, *record.rows)})).endswith("; 3 validations: 3 passed")
    assert "what is wrong" not in build_summary(samples.accepted())


@for_hostile_text("x\nACCEPTED\n", 20)
def test_hostile_text_stays_in_its_place(sample, taint):
    text = build_summary(tainted_record(sample, f"x{taint}"))
    lines = text.removesuffix("\n").split("\n")
    assert len(lines) <= MOST_LINES
    assert max(map(len, lines)) <= COLUMNS
    assert all(line.isprintable() for line in lines)
    titles = {"run:", "coverage:", "what is wrong, by culprit:", "smallest margins of what held:"}
    assert {line for line in lines[1:] if line and not line.startswith("  ")} <= titles


# --- GitHub ---------------------------------------------------------------------------------------------------------------------


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
    record = samples.concluded(record, objections=())
    found = [line for line in annotations(samples.with_rows(record, *rows)) if line.startswith("::error")]
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


@for_hostile_text("x\n::error title=owned::x\r::add-mask::y%0A::set-env name=a::b\n````\n# owned\n<script>", 20)
def test_no_text_of_a_machine_issues_a_command_or_leaves_its_fence(sample, taint):
    record = tainted_record(sample, taint)
    for line in annotations(record):
        assert LINE.fullmatch(line), line
    _, fence, inside, end = re.fullmatch(r"(## [^\n]*)\n\n(`{3,})text\n(.*)\n(`{3,})\n", job_summary(record), re.DOTALL).groups()
    assert fence == end
    assert fence not in inside
    assert inside + "\n" == build_summary(record)
