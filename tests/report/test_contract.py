"""The run by contract line: the contract of the run, else the questions of a bring-up, and what is behind each line."""

import re

from gpu_acceptance.record.outcome import Status
from gpu_acceptance.report.build import build_page
from gpu_acceptance.report.contract import BRING_UP_FILE, contract_view
from gpu_acceptance.report.exports import build_metrics
from gpu_acceptance.report.summary_text import annotations, build_summary, summary_lines
from gpu_acceptance.report.untested import caveats
from gpu_acceptance.thresholds.contract import ContractLine
from gpu_acceptance.thresholds.contract_file import read_contract
from tests.report import sample_rows, samples
from tests.report.pages import parse
from tests.report.sample_pages import section_of
from tests.verdict.judged_anew import judged_anew


def section(record):
    return section_of(build_page(record), "contract")


def test_each_line_of_the_contract_is_shown_with_its_state_and_why():
    view = contract_view(samples.rejected())
    assert [(line.judged.line.number, line.mark.word, line.judged.line.asks) for line in view.lines] == [
        ("8.1", "met", ""),
        ("8.2", "MISSED", ">= 350 GB/s"),
        ("8.3", "NOT TESTED", ""),
        ("8.4", "NOT TESTED", ""),
        ("8.5", "NOT TESTED", ""),
    ]
    text = section(samples.rejected())
    assert "contract.yaml, annex B, sha256 7a8b7a8b" in text
    assert "5 lines: 1 met, 1 missed, 3 not tested. A line is met where what it names was judged and held, " in text
    assert "8.2 all-reduceasks for >= 350 GB/s ✗ MISSED ✗ MISSED nccl.all_reduce.busbw_ring 262.5 GB/s >= 347 " in text
    assert "8.4 service within 4 hours ○ NOT TESTED none no matter of a test" in text
    assert "8.5 network ○ NOT TESTED none infiniband.* is not part of this run" in text
    assert "Questions of a bring-up" not in text


def test_a_bound_of_the_contract_has_every_digit_that_it_takes():
    asked = ContractLine(number="8.2", text="all-reduce", metrics=("nccl.*",), at_least=350.0000004, at_most=400, unit="GB/s")
    assert asked.asks == ">= 350.0000004 GB/s, <= 400 GB/s"


def test_what_missed_stands_before_what_held_and_what_is_too_much_is_counted():
    record = samples.rejected()
    many = tuple(sample_rows.held(f"gemm.m{number}.rate", 1.0, "TFLOP/s", ">= 0.5", number / 10) for number in range(8))
    shown = samples.concluded(record, limits=(*record.conclusion.limits, *many))
    first = contract_view(shown).lines[0]
    assert [one.metric for one in first.figures][:3] == ["gemm.m0.rate", "gemm.bf16.tflops", "gemm.m1.rate"]
    assert len(first.figures) == 10
    assert "and 4 more" in section(shown)
    assert [one.metric for one in contract_view(record).lines[1].figures] == ["nccl.all_reduce.busbw_ring", "nccl.all_reduce.wrong"]


def test_a_limit_that_some_rank_did_not_measure_shows_the_figure_of_others_as_theirs():
    record = samples.rejected()
    limits = [one.model_copy(update={"status": Status.NOT_MEASURED}) for one in record.conclusion.limits]
    assert "nccl.all_reduce.busbw_ring no figure (elsewhere 262.5 GB/s) >= 347 " in section(samples.concluded(record, limits=tuple(limits)))


def test_without_a_contract_the_questions_of_a_bring_up_are_folded_and_decide_nothing():
    record = samples.accepted()
    view = contract_view(record)
    assert record.conclusion.contract is None
    assert [line.judged.line.number for line in view.lines] == [line.number for line in read_contract(BRING_UP_FILE).lines]
    text = section(record)
    assert "Questions of a bring-up 17 questions: 14 not tested, 1 partly, 2 needs two nodes They change no verdict." in text
    assert "Is the shared file system shared? ○ not tested none shared_fs.missing is not part of this run" in text


def answers(*held, not_at_level=(), levels=None, nodes=1):
    """Number of a question -> how a run answers it in which these held."""
    record = judged_anew(samples.accepted(), profile={"levels": levels or {}})
    limits = tuple(sample_rows.held(metric, 0, "count", "<= 0", None) for metric in held)
    coverage = record.conclusion.coverage.model_copy(update={"nodes": nodes})
    plan = record.plan.model_copy(update={"not_at_level": dict.fromkeys(not_at_level, 1)})
    view = contract_view(samples.concluded(record.model_copy(update={"plan": plan}), limits=limits, coverage=coverage))
    return {line.judged.line.number: line.mark.word for line in view.lines}


def test_a_question_is_answered_by_what_was_judged_or_says_what_it_needs():
    found = answers("environment.world.mismatch", "binding.gpu.unexpected")
    assert (found["2.1"], found["1.1"], found["2.2"]) == ("answered", "partly", "not tested")
    assert (found["5.2"], found["5.3"]) == ("not tested", "needs two nodes")
    assert (answers(nodes=2)["5.2"], answers(nodes=2)["5.3"]) == ("needs one node", "not tested")
    levels = {"full": {"ddp": 1.0, "fsdp": 1.0}, "soak": {"ddp": 1.0, "fsdp": 1.0, "checkpoint": 1.0}}
    asked = answers(not_at_level=("ddp", "checkpoint"), levels=levels)
    assert (asked["5.2"], asked["3.2"]) == ("needs --level=full", "needs --level=soak")


def test_what_is_not_proved_of_a_contract_is_told_wherever_failures_are():
    """A run may be rejected by its contract alone, with no validation that failed."""
    record = samples.rejected()
    errors = [line for line in annotations(record) if line.startswith("::error")]
    assert errors[0].startswith("::error title=MISSED contract line 8.2::all-reduce: ")
    assert errors[1] == "::error title=NOT TESTED contract line 8.5::network: infiniband.* is not part of this run"
    text = re.sub(r"\s+", " ", build_summary(record))
    assert "NOT TESTED contract line 8.5 (network: infiniband.* is not part of this run)" in text
    assert "contract line 8.4" not in text


def test_monitoring_and_the_terminal_count_lines_and_what_a_contract_excuses_weakens_the_verdict():
    lines = [line for line in build_metrics(samples.rejected()).splitlines() if line.startswith("gpu_acceptance_contract_lines")]
    assert lines == [f'gpu_acceptance_contract_lines{{state="{state}"}} {n}' for state, n in (("met", 1), ("missed", 1), ("not tested", 3))]
    assert "contract" not in build_metrics(samples.accepted())
    header = next(one.text for one in parse(build_page(samples.rejected())).all("header"))
    assert "2 of 5 lines of contract.yaml not tested, as it says itself" in header
    assert not any("lines of" in one.text for one in caveats(samples.accepted()))
    assert "contract contract.yaml: 5 lines: 1 met, 1 missed, 3 not tested" in list(summary_lines(samples.rejected()))
    assert not any(line.startswith("contract") for line in summary_lines(samples.accepted()))


def test_a_run_without_a_gpu_answers_no_question_of_a_bring_up():
    limits = (sample_rows.held("nccl.all_reduce.busbw", 0.4, "GB/s", ">= 1e-05", None),)
    coverage = samples.accepted().conclusion.coverage.model_copy(update={"gpus_existing": 0})
    lines = contract_view(samples.concluded(samples.accepted(), limits=limits, coverage=coverage)).lines
    assert {line.mark.word for line in lines} == {"not tested"}
    assert {line.judged.reasons for line in lines if line.judged.line.number == "4.2"} == {("no GPU was tested",)}
