"""`report compare`: what a repair has changed, and nothing that was not tested in both runs."""

import math
import re
from dataclasses import replace

import pytest

from gpu_acceptance.record.outcome import Outcome, Status
from gpu_acceptance.thresholds.contract import ContractLine
from gpu_acceptance.thresholds.limit import FileDigest
from gpu_acceptance.verdict.comparison import compare
from tests.report import sample_rows, samples
from tests.verdict.comparisons import GEMM, HBM, LATER, later, not_run, scaled, with_row, with_slow_memory


def with_other_limit():
    """A later run that asks next to nothing of HBM."""
    rows = sample_rows.gemm_row(), sample_rows.hbm_row(need=1), sample_rows.nccl_row()
    return samples.record(rows, map(samples.identity, range(8)), run_id=LATER)


def of_half_the_gpus():
    rows = sample_rows.gemm_row(4), sample_rows.hbm_row(ranks=4), sample_rows.nccl_row(ranks=4)
    ranks = [samples.identity(rank, local_world_size=4) for rank in range(4)]
    return samples.record(rows, ranks, run_id=LATER, declared_gpus=4)


def judged(**update):
    return lambda row: row.model_copy(update={"judgements": tuple(one.model_copy(update=update) for one in row.judgements)})


def ended(outcome, *ranks):
    """The validation ended so on these ranks."""

    def change(row):
        attempt = row.attempts[-1]
        records = [one.model_copy(update={"outcome": outcome, "message": "boom"}) if one.rank in ranks else one for one in attempt.ranks]
        return row.model_copy(update={"outcome": outcome, "attempts": (attempt.model_copy(update={"ranks": tuple(records)}),)})

    return change


def row_of(record, nodeid):
    return next(row for row in record.rows if row.nodeid == nodeid)


def test_a_failure_that_was_repaired_is_gone(bad, good):
    found = compare(bad, good)
    (gone,) = found.failures.gone
    assert gone.nodeid == HBM
    assert gone.where == "node-01.example, GPU 5"
    assert str(gone).startswith(f"{HBM}: ")
    assert (found.failures.new, found.failures.still, found.failures.not_compared) == ((), (), ())
    assert [(one.metric, one.place, one.direction) for one in found.figures] == [
        ("hbm.triad.bandwidth", "node-01.example, GPU 5", "better")
    ]
    assert found.exit_code == 0
    assert re.fullmatch(r"NOTHING WORSE: 1 failure gone, 1 figure better; \d+ validations and \d+ figures compared", found.line)


def test_the_other_way_round_it_is_new_and_worse(bad, good):
    found = compare(good, later(bad))
    assert [one.nodeid for one in found.failures.new] == [HBM]
    assert [one.metric for one in found.in_direction("worse")] == ["hbm.triad.bandwidth"]
    assert found.exit_code == 1
    assert found.line.startswith("SOMETHING WORSE: 1 failure new, 1 figure worse; ")


def test_what_is_still_there_is_no_worse(bad):
    found = compare(bad, later(bad))
    assert [one.nodeid for one in found.failures.still] == [HBM]
    assert found.exit_code == 0
    assert found.line.startswith("NOTHING WORSE: 1 failure still there; ")


def test_in_another_slot_it_is_gone_and_new(bad):
    found = compare(bad, later(with_slow_memory(2)))
    assert [one.where for one in found.failures.gone] == ["node-01.example, GPU 5"]
    assert [one.where for one in found.failures.new] == ["node-01.example, GPU 2"]
    assert found.exit_code == 1


@pytest.mark.parametrize("change", [lambda _: None, not_run, judged(status=Status.NOT_MEASURED)], ids=["no row", "not run", "not measured"])
def test_what_was_not_tested_again_is_not_gone(bad, good, change):
    found = compare(bad, with_row(good, HBM, change))
    assert [(one.nodeid, one.reason) for one in found.failures.not_compared] == [(HBM, "not tested again")]
    assert found.exit_code == 6
    assert found.line.startswith("NOT COMPARABLE: 1 failure not compared")


def test_a_figure_of_a_few_operations_has_not_moved(good):
    brief, whole = (with_row(good, HBM, scaled("hbm.triad.bandwidth", 2.0, 5, is_cut=is_cut)) for is_cut in (True, False))
    assert compare(samples.accepted(), brief).figures == compare(later(brief), whole).figures == ()
    assert [one.direction for one in compare(samples.accepted(), whole).figures] == ["better"]


def test_what_was_not_tested_before_is_not_new(bad, good):
    assert not_compared(with_row(good, HBM, lambda _: None), bad) == ["not tested before"]


def not_compared(before, after):
    found = compare(before, after)
    assert found.exit_code == 6
    return [one.reason for one in found.failures.not_compared]


def test_a_limit_that_was_lowered_repairs_nothing_and_neither_does_a_waiver(bad, good):
    assert not_compared(bad, with_other_limit()) == ["judged by another limit: >= 4150, then >= 1"]
    assert not_compared(bad, later(good, waivers={"hbm.*": "agreed"})) == ["not tested again"]


@pytest.mark.parametrize(
    ("change", "reason"), [(lambda _: None, "passed, and the later run does not have it"), (not_run, "passed, then not run")]
)
def test_a_run_that_tests_nothing_is_not_found_to_be_no_worse(good, change, reason):
    found = compare(samples.accepted(), with_row(good, HBM, change))
    assert (list(map(str, found.lost)), found.exit_code) == ([f"{HBM}: {reason}"], 6)
    assert found.line.startswith("NOT COMPARABLE: 1 right before and not tested again; ")


@pytest.mark.parametrize(
    ("update", "lost"),
    [
        ({"status": Status.NOT_MEASURED}, "held, then not measured"),
        ({"status": Status.WAIVED}, "held, then waived"),
        (None, "held, and the later run has no such limit"),
        ({"status": Status.MISSED}, ""),
    ],
)
def test_a_limit_that_held_is_judged_again_and_by_the_same(good, update, lost):
    limits = [
        one.model_copy(update=update or {}) if one.metric == "hbm.triad.bandwidth" else one
        for one in good.conclusion.limits
        if update is not None or one.metric != "hbm.triad.bandwidth"
    ]
    after = good.model_copy(update={"conclusion": good.conclusion.model_copy(update={"limits": tuple(limits)})})
    found = compare(samples.accepted(), after)
    assert list(map(str, found.lost)) == ([f"hbm.triad.bandwidth >= 4150: {lost}"] if lost else [])
    assert found.exit_code == (6 if lost else 0)


def test_a_limit_that_held_and_was_lowered_was_not_judged_again():
    found = compare(samples.accepted(), with_other_limit())
    assert list(map(str, found.lost)) == ["hbm.triad.bandwidth >= 4150: held, then by another limit: >= 1"]
    assert found.exit_code == 6


def test_a_line_of_the_report_is_no_other_parameter_of_a_measurement(bad, good):
    found = compare(
        bad, later(good, profile={"parameters": {**good.plan.profile.parameters, "nccl.latency_reference": "all_reduce 8 8b 5"}})
    )
    assert found.failures.not_compared == ()
    assert len(found.failures.gone) == 1
    assert found.num_figures == compare(bad, good).num_figures


def test_other_sizes_are_not_compared(bad, good):
    parameters = {**good.plan.profile.parameters, "hbm.size": 7}
    found = compare(bad, later(good, profile={"parameters": parameters}))
    assert [one.reason for one in found.failures.not_compared] == ["with other parameters"]
    assert "parameter hbm.size: none -> 7" in map(str, found.differing)
    assert not [one for one in found.figures if one.metric.startswith("hbm.")]


@pytest.mark.parametrize("outcome", [Outcome.DIED, Outcome.STUCK, Outcome.ERROR, Outcome.FAILED, Outcome.LOST])
def test_how_a_validation_ended_is_a_failure_too(good, outcome):
    first = with_row(samples.accepted(), GEMM, ended(outcome, 3))
    assert [str(one) for one in compare(first, good).failures.gone] == [f"{GEMM}: {outcome}: boom | node-01.example, GPU 3"]
    assert [one.nodeid for one in compare(samples.accepted(), later(first)).failures.new] == [GEMM]
    other = later(with_row(samples.accepted(), GEMM, ended(Outcome.DIED, 3)))
    assert [one.nodeid for one in compare(first, other).failures.still] == [GEMM]


def test_slots_that_fared_alike_are_one_line(good):
    found = compare(with_row(samples.accepted(), GEMM, ended(Outcome.DIED, *range(8))), good)
    assert [one.where for one in found.failures.gone] == ["node-01.example, GPU 0 and 7 more"]


@pytest.mark.parametrize(
    ("factor", "spread", "direction"),
    [(0.985, 0.1, None), (0.975, 0.1, "worse"), (1.025, 0.1, "better"), (0.975, 0.9, None), (0.95, 1.0, "worse"), (0.95, 2.0, None)],
)
def test_a_figure_moves_by_more_than_three_spreads_and_two_percent(good, factor, spread, direction):
    found = compare(samples.accepted(), with_row(good, GEMM, scaled("gemm.bf16.tflops", factor, 3, spread=spread)))
    assert [one.direction for one in found.figures] == ([direction] if direction else [])
    assert found.exit_code == (direction == "worse")


def on_rank_3(value, spread=None, unit="TFLOP/s"):
    """The figure of a product on one rank."""

    def change(row):
        attempt = row.attempts[-1]
        told = tuple(replace(one, value=value, spread_percent=spread, unit=unit) for one in attempt.ranks[3].figures[:1])
        ranks = tuple(one.model_copy(update={"figures": told}) if one.rank == 3 else one for one in attempt.ranks)
        return judged(bound="")(row.model_copy(update={"attempts": (attempt.model_copy(update={"ranks": ranks}),)}))

    return change


@pytest.mark.parametrize(
    ("old", "new", "percent", "direction"),
    [
        (on_rank_3(700.0, 0.1), on_rank_3(0.0), -100, "worse"),
        (on_rank_3(700.0, 0.1), on_rank_3(350.0), -50, "worse"),
        (on_rank_3(0.0, unit="s"), on_rank_3(0.5, 0.1, "s"), math.inf, "worse"),
        (on_rank_3(-5.0, 0.1), on_rank_3(-10.0, 0.1), -100, "worse"),
    ],
    ids=["fell to zero", "half, without a spread", "rose from zero", "negative"],
)
def test_a_figure_of_which_one_run_has_a_spread_never_drops_out(good, old, new, percent, direction):
    found = compare(with_row(samples.accepted(), GEMM, old), with_row(good, GEMM, new)).figures
    assert [(one.percent, one.place, one.direction) for one in found] == [(percent, "node-01.example, GPU 3", direction)]


def test_a_figure_names_where_it_moved_most(good):
    changed = with_row(good, GEMM, scaled("gemm.bf16.tflops", 0.9, 1, 2))
    changed = with_row(changed, GEMM, scaled("gemm.bf16.tflops", 0.8, 2))
    (worse,) = compare(samples.accepted(), changed).in_direction("worse")
    assert re.fullmatch(
        rf"{re.escape(GEMM)}: gemm\.bf16\.tflops = 731\.\d+ -> 526\.\d+ TFLOP/s "
        r"\(-28\.0 %, noise 2\.0 %\) \| node-01\.example, GPU 2 and 1 more",
        str(worse),
    )


@pytest.mark.parametrize(
    ("unit", "bound", "direction"),
    [("s", "", "worse"), ("GB/s", "", "better"), ("C", "", "moved"), ("C", "at_most", "worse"), ("s", "at_least at_most", "moved")],
)
def test_which_way_is_better(good, unit, bound, direction):
    def change(row):
        attempt = row.attempts[-1]
        figures = [replace(record.figures[0], unit=unit) for record in attempt.ranks]
        records = [record.model_copy(update={"figures": (figure,)}) for record, figure in zip(attempt.ranks, figures, strict=True)]
        row = row.model_copy(update={"attempts": (attempt.model_copy(update={"ranks": tuple(records)}),)})
        return row.model_copy(update={"judgements": tuple(row.judgements[0].model_copy(update={"bound": one}) for one in bound.split(" "))})

    first = with_row(samples.accepted(), GEMM, change)
    second = with_row(with_row(good, GEMM, change), GEMM, scaled("gemm.bf16.tflops", 1.5, 0))
    assert [one.direction for one in compare(first, second).figures] == [direction]


@pytest.mark.parametrize(
    ("after", "line"),
    [
        (lambda good: later(good, profile={"name": "h100-sxm"}), "NOT COMPARABLE: other profile"),
        (lambda good: later(good, measure_only=True), "NOT COMPARABLE: other profile"),
        (lambda _: of_half_the_gpus(), "NOT COMPARABLE: other job"),
        (
            lambda good: later(good, ranks=[one.model_copy(update={"host": "elsewhere"}) for one in good.ranks]),
            "NOT COMPARABLE: other nodes",
        ),
    ],
)
def test_what_forbids_a_comparison(bad, good, after, line):
    found = compare(bad, after(good))
    assert (found.line, found.exit_code) == (line, 6)
    assert found.differing[0].forbids


def test_runs_that_tested_nothing_in_common(good):
    found = compare(with_row(samples.accepted(), GEMM, lambda _: None), good.model_copy(update={"rows": (row_of(good, GEMM),)}))
    assert (found.line, found.exit_code) == ("NOT COMPARABLE: no validation was tested in both runs", 6)


def test_settings_that_differ_are_listed(good):
    first = good.ranks[0]
    gpus = (first.gpus[0].model_copy(update={"serial": "1659999999999"}), *first.gpus[1:])
    ranks = [one.model_copy(update={"gpus": gpus, "versions": {**one.versions, "driver": "999.1"}}) for one in good.ranks]
    profile = {"level": "quick", "files": (FileDigest("site.yaml", "f" * 64),)}
    after = later(good, ranks=ranks, profile=profile, gpu_acceptance_version="9", waivers={"hbm.*": "agreed"})
    told = list(map(str, compare(samples.accepted(), after).differing))
    for line in (
        f"serial of node-01.example, GPU 0: {first.gpus[0].serial} -> 1659999999999",
        "limits of site.yaml: none -> ffffffffffff",
        "waiver hbm.*: none -> agreed",
    ):
        assert line in told
    assert [line for line in told if line.startswith("version of driver: ") and line.endswith(" -> 999.1")]
    assert [line for line in told if line.startswith("level: ")] == ["level: full -> quick"]
    assert [line for line in told if line.startswith("gpu-acceptance: ") and line.endswith(" -> 9")]


def with_contract(*lines, worst=4312.0):
    """The run whose slowest memory is as fast as that, under a contract of these lines."""
    rows = sample_rows.gemm_row(), sample_rows.hbm_row(worst), sample_rows.nccl_row()
    contract = samples.CONTRACT.model_copy(update={"lines": lines})
    return samples.record(rows, map(samples.identity, range(8)), contract=contract)


def of_memory(at_least):
    return ContractLine(number="8.1", text="memory", metrics=("hbm.triad.bandwidth",), at_least=at_least, unit="GB/s")


@pytest.mark.parametrize(
    ("before", "after", "exit_code", "says"),
    [
        ((of_memory(4200),), (of_memory(4200),), 0, ()),
        ((of_memory(4400),), (of_memory(4400),), 0, ("still",)),
        ((of_memory(4200),), (of_memory(4400),), 6, ("not_compared",)),
        ((of_memory(4400),), (of_memory(4200),), 6, ("not_compared",)),
        ((), (of_memory(4400),), 6, ("not_compared",)),
        ((of_memory(4400),), (), 6, ("not_compared",)),
    ],
)
def test_a_contract_line_that_was_missed_is_a_failure_though_every_limit_held(before, after, exit_code, says):
    comparison = compare(with_contract(*before), with_contract(*after))
    assert comparison.exit_code == exit_code, comparison.line
    found = {kind: getattr(comparison.failures, kind) for kind in ("gone", "new", "still", "not_compared")}
    assert tuple(kind for kind, failures in found.items() if failures) == says
    for (failure,) in filter(None, found.values()):
        assert str(failure).startswith(
            "contract line 8.1: hbm.triad.bandwidth = 4312 GB/s, the contract asks for >= 4400 GB/s; its limit, "
        )


def test_a_contract_line_is_new_or_gone_where_the_same_line_was_met_in_the_other_run():
    met, missed = with_contract(of_memory(4200)), with_contract(of_memory(4200), worst=4190.0)
    worse, better = compare(met, missed), compare(missed, met)
    assert (worse.exit_code, [one.nodeid for one in worse.failures.new]) == (1, ["contract line 8.1"])
    assert (better.exit_code, [one.nodeid for one in better.failures.gone]) == (0, ["contract line 8.1"])
