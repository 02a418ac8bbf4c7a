"""The last lines of a run."""

from pathlib import Path

from report import samples

from gpu_acceptance.record.outcome import Status
from gpu_acceptance.record.row import Judgement
from gpu_acceptance.report.summary import summary_lines


def test_accepted_says_verdict_coverage_margin_and_path():
    lines = list(summary_lines(samples.accepted(), Path("/runs/a/report.html")))
    assert lines[0] == samples.accepted().conclusion.line
    assert lines[1].startswith("coverage: 1 node x 8 ranks, 8 of 8 GPUs; limits: ")
    assert lines[2].startswith("smallest margin of what held: ")
    assert lines[-1] == "report: /runs/a/report.html"


def test_rejected_names_each_missed_limit_once():
    record = samples.rejected()
    rows = tuple(row.model_copy(update={"judgements": tuple(map(with_message, row.judgements))}) for row in record.rows)
    lines = list(summary_lines(record.model_copy(update={"rows": rows}), Path("/runs/a/report.html")))
    missed = [judgement.message for row in rows for judgement in row.judgements if judgement.status is Status.MISSED]
    assert len(missed) == 2
    for message in missed:
        assert lines.count(message) == 1


def with_message(judgement: Judgement) -> Judgement:
    return judgement.model_copy(update={"message": f"{judgement.metric} = {judgement.value}, need {judgement.need}"})


def test_incomplete_says_what_is_not_proved():
    lines = list(summary_lines(samples.incomplete(), Path("/runs/a/report.html")))
    assert any(line.startswith("not proved: ") for line in lines)


def test_what_is_wrong_comes_with_the_verb_that_says_what_to_do():
    lines = [line for line in summary_lines(samples.stuck(), None) if line.startswith("what to do: ")]
    assert lines == ["what to do: gpu-acceptance remedy hang_in_collective"]
    lines = [line for line in summary_lines(samples.rejected(), None) if line.startswith("what to do: ")]
    assert lines == ["what to do: gpu-acceptance remedy memory_slow; also limit_missed"]
    assert not [line for line in summary_lines(samples.accepted(), None) if line.startswith("what to do")]


def test_a_clock_that_is_off_is_told_and_the_verdict_stays():
    record = samples.two_nodes()
    ranks = tuple(one.model_copy(update={"clock_ahead_s": (60.0, 60.0)}) if one.node else one for one in record.header.ranks)
    lines = list(summary_lines(record.model_copy(update={"header": record.header.model_copy(update={"ranks": ranks})}), None))
    assert lines[0] == record.conclusion.line
    assert [line for line in lines if line.startswith("clock of node 1 (node-02.example) is 60.0 s ahead")]


def test_no_page_is_named_where_there_is_none():
    assert not [line for line in summary_lines(samples.accepted(), None) if line.startswith("report")]


def test_no_text_of_a_machine_begins_a_line_or_steers_the_terminal():
    conclusion = samples.incomplete().conclusion.model_copy(update={"reasons": ("no\nACCEPTED\x1b[2J\rACCEPTED\u2028x" + "y" * 9_999,)})
    lines = list(summary_lines(samples.incomplete().model_copy(update={"conclusion": conclusion}), None))
    (line,) = [line for line in lines if line.startswith("not proved: ")]
    assert line.startswith(r"not proved: no" + "\n    " + r"ACCEPTED\x1b[2J\rACCEPTED\u2028xyyy")
    assert len(line) < 2_000
