"""The one page of plain text: what it says, how large it may become, and that no text of a machine looks like ours."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpu_acceptance.record.outcome import Status
from gpu_acceptance.report.summary_text import COLUMNS, MOST_LINES, build_summary, coverage_text
from gpu_acceptance.report.words import figure_text, margin_of
from gpu_acceptance.verdict.coverage import judge_contract
from tests.report import sample_rows, samples
from tests.report.test_hostile import PIECES, hostile, tainted_record


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
    text = build_summary(record.model_copy(update={"conclusion": record.conclusion.model_copy(update={"limits": limits})}))
    assert " more lines, see report.html" in text
    whole = text.split("what is wrong, by culprit:\n")[1].split("\n  rank ")[0]
    for said in (*REASONS, "MISSED contract line 8.2 (all-reduce: "):
        assert said in folded(whole)


def test_a_limit_that_some_rank_did_not_measure_shows_no_figure_as_its_own():
    record = samples.rejected()
    missed = next(one for row in record.rows for one in row.judgements if one.status is Status.MISSED)
    elsewhere = missed.model_copy(update={"status": Status.NOT_MEASURED})
    assert (figure_text(elsewhere, exactly=True), margin_of(elsewhere)) == (f"no figure (elsewhere {missed.value} {missed.unit})", None)


def test_rows_of_the_suite_itself_are_not_counted_as_validations():
    record = samples.accepted()
    formation = record.rows[0].model_copy(update={"nodeid": "world_formation"})
    assert coverage_text(record.model_copy(update={"rows": (formation, *record.rows)})).endswith("; 3 validations: 3 passed")


def test_an_accepted_run_has_nothing_wrong():
    assert "what is wrong" not in build_summary(samples.accepted())


@pytest.mark.slow
@pytest.mark.parametrize("sample", ["rejected", "stuck", "incomplete", "trained"])
@given(taint=hostile | st.text(st.characters(), min_size=1, max_size=20))
@example(taint="x" * 1_000_000)
@example(taint="x\nACCEPTED\n" + "".join(PIECES))
@settings(max_examples=20, deadline=None)
def test_hostile_text_stays_in_its_place(sample, taint):
    text = build_summary(tainted_record(sample, f"x{taint}"))
    lines = text.removesuffix("\n").split("\n")
    assert len(lines) <= MOST_LINES
    assert max(map(len, lines)) <= COLUMNS
    assert all(line.isprintable() for line in lines)
    titles = {"run:", "coverage:", "what is wrong, by culprit:", "smallest margins of what held:"}
    assert {line for line in lines[1:] if line and not line.startswith("  ")} <= titles
