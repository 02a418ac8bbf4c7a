"""A line of a contract is met only where that is proved; and what a line that is not met does to the verdict."""

from dataclasses import replace

import pytest

from gpu_acceptance.record.outcome import Status
from gpu_acceptance.record.row import Judgement
from gpu_acceptance.thresholds.contract import Contract, ContractLine, LineState
from gpu_acceptance.verdict.coverage import judge_contract
from gpu_acceptance.verdict.rows import make_row
from gpu_acceptance.verdict.verdict import conclude
from tests.judging import NODEID, all_equal, make_attempt, make_job, make_limit, make_plan, make_profile

TRIAD = "hbm.triad.bandwidth"
COPY = "hbm.copy.bandwidth"


def judgement(metric=TRIAD, status=Status.HELD, value=120.0, bound="at_least", unit="GB/s", need=">= 100"):
    return Judgement(metric=metric, status=status, value=value, bound=bound, unit=unit, need=need, message=f"{metric}: {status}")


def made_of(line):
    return line if isinstance(line, ContractLine) else ContractLine(number="8.2", text="memory", **line)


def contract_of(*lines):
    return Contract(file="c.yaml", sha256="ab" * 32, lines=tuple(map(made_of, lines)))


def judged(line, *limits, num_nodes=1, not_applicable=None):
    (found,) = judge_contract(contract_of(line), limits, num_nodes, not_applicable or {}).lines
    return found.state, found.reasons


def test_a_line_is_met_where_each_of_its_globs_names_a_limit_that_held():
    assert judged({"metrics": (TRIAD, "hbm.copy.*")}, judgement(), judgement(COPY)) == (LineState.MET, ())


def test_one_miss_is_a_miss_whatever_else_is_open():
    limits = judgement(), judgement(COPY, Status.MISSED), judgement("hbm.read.bandwidth", Status.NOT_MEASURED)
    assert judged({"metrics": ("hbm.*", "gemm.*")}, *limits) == (LineState.MISSED, (f"{COPY}: missed",))


@pytest.mark.parametrize("status", sorted(set(Status) - {Status.HELD, Status.MISSED, Status.NOT_APPLICABLE}))
def test_what_is_open_beside_what_held_is_not_tested(status):
    assert judged({"metrics": ("hbm.*",)}, judgement(), judgement(COPY, status)) == (LineState.NOT_TESTED, (f"{COPY}: {status}",))


def test_what_does_not_apply_is_no_answer_and_beside_one_no_obstacle():
    aside = judgement(COPY, Status.NOT_APPLICABLE, None)
    assert judged({"metrics": ("hbm.*",)}, judgement(), aside) == (LineState.MET, ())
    assert judged({"metrics": (TRIAD, COPY)}, judgement(), aside) == (LineState.NOT_TESTED, (f"{COPY}: not applicable",))


def test_a_glob_of_which_nothing_was_judged_is_named_with_the_reason_where_there_is_one():
    line = {"metrics": (TRIAD, "nic.*", "storage.read.*")}
    assert judged(line, judgement(), not_applicable={"nic.*": "no cards", "*.read.a": "of another"}) == (
        LineState.NOT_TESTED,
        ("nic.*: not applicable: no cards", "storage.read.* is not part of this run"),
    )


def test_the_first_of_many_reasons_are_listed():
    metrics = [f"hbm.m{number}.bandwidth" for number in range(9)]
    _, reasons = judged({"metrics": ("hbm.*",)}, *(judgement(metric, Status.MISSED) for metric in metrics))
    assert reasons == (*(f"{metric}: missed" for metric in metrics[:4]), "and 5 more")


@pytest.mark.parametrize(("asked", "state"), [(119.0, LineState.MET), (120.0, LineState.MET), (120.001, LineState.MISSED)])
def test_a_bound_of_the_contract_is_compared_with_the_figure_that_held_its_limit(asked, state):
    found, reasons = judged({"metrics": (TRIAD,), "at_least": asked, "unit": "GB/s"}, judgement())
    assert found is state
    if reasons:
        assert reasons == (f"{TRIAD} = 120 GB/s, the contract asks for >= 120.001 GB/s; its limit, >= 100, held",)


@pytest.mark.parametrize(
    ("metric", "value", "unit"), [(TRIAD, 120.0, "°C"), (TRIAD, 120.0, "GB / s"), (TRIAD, 2**63, "GB/s"), ("a b", 120.0, "GB/s")]
)
def test_a_record_that_was_written_by_hand_is_compared_as_well(metric, value, unit):
    held = judgement(metric, value=value, unit=unit)
    assert judged({"metrics": (metric,), "at_least": 110, "unit": unit}, held)[0] is LineState.MET
    assert judged({"metrics": (metric,), "at_least": 2.0**64, "unit": unit}, held)[0] is LineState.MISSED


def test_an_upper_bound_of_the_contract():
    limit = judgement("hbm.read.latency", value=2.5, bound="at_most", unit="us", need="<= 3")
    assert judged({"metrics": ("hbm.read.latency",), "at_most": 2.5, "unit": "us"}, limit)[0] is LineState.MET
    assert judged({"metrics": ("hbm.read.latency",), "at_most": 2, "unit": "us"}, limit) == (
        LineState.MISSED,
        ("hbm.read.latency = 2.5 us, the contract asks for <= 2 us; its limit, <= 3, held",),
    )


@pytest.mark.parametrize(
    "other", [judgement(bound="peers", value=500.0), judgement(bound="at_most", value=500.0), judgement(unit="MB/s", value=500.0)]
)
def test_a_bound_without_the_worst_figure_is_not_tested(other):
    """The largest of all, or the one furthest from its peers, is not the smallest."""
    assert judged({"metrics": (TRIAD,), "at_least": 400, "unit": "GB/s"}, other) == (
        LineState.NOT_TESTED,
        (f"{TRIAD}: no figure in GB/s was judged by at_least",),
    )


@pytest.mark.parametrize(
    ("nodes", "num_nodes", "says"),
    [
        ("several", 1, "it asks for a run of several nodes, and this one is of 1 node"),
        ("one", 4, "it asks for a run of one node, and this one is of 4 nodes"),
        ("several", 4, None),
        ("one", 1, None),
        ("any", 4, None),
    ],
)
def test_a_line_of_another_size_is_not_tested(nodes, num_nodes, says):
    state, reasons = judged({"metrics": (TRIAD,), "nodes": nodes}, judgement(), num_nodes=num_nodes)
    assert (state, reasons) == ((LineState.NOT_TESTED, (says,)) if says else (LineState.MET, ()))


def test_the_lines_are_counted():
    contract = judge_contract(contract_of({"metrics": (TRIAD,)}, {"not_tested": "later"}, {"not_tested": "never"}), (judgement(),), 1, {})
    assert contract.counts == "3 lines: 1 met, 0 missed, 2 not tested"


# --- the verdict ---------------------------------------------------------------------------------------------------------------

PROFILE = make_profile(make_limit(TRIAD))
ASKS_MORE = {"metrics": (TRIAD,), "at_least": 130, "unit": "GB/s"}


def verdict_of(*lines, profile=PROFILE, waivers=None, value=120.0, **more):
    job, waivers = make_job(4), waivers or {}
    row = make_row(NODEID, (make_attempt(all_equal(value)),), profile, job, waivers, 60.0, measure_only=more.get("measure_only", False))
    return conclude(make_plan(profile, waivers=waivers, contract=contract_of(*lines), **more), job, [row])


def test_a_contract_that_is_met_changes_nothing():
    conclusion = verdict_of({"metrics": (TRIAD,), "at_least": 110, "unit": "GB/s"})
    assert (conclusion.line, conclusion.exit_code, conclusion.reasons) == ("ACCEPTED", 0, ())
    assert [one.state for one in conclusion.contract.lines] == [LineState.MET]


def test_a_missed_line_rejects_though_every_limit_held():
    conclusion = verdict_of(ASKS_MORE)
    assert (conclusion.line, conclusion.exit_code) == ("REJECTED: 1 contract line missed", 1)
    assert conclusion.reasons == (
        f"contract line 8.2 (memory) missed: {TRIAD} = 120 GB/s, the contract asks for >= 130 GB/s; its limit, >= 100, held",
    )
    assert (conclusion.coverage.limits_held, conclusion.coverage.limits_expected) == (1, 1)


def test_a_missed_limit_rejects_by_itself_and_by_the_lines_that_name_it():
    """A contract that asks for less takes nothing back."""
    conclusion = verdict_of({"metrics": (TRIAD,), "at_least": 40, "unit": "GB/s"}, {"metrics": ("hbm.*",)}, value=50.0)
    assert conclusion.line == "REJECTED: 1 limit missed in 1 of 1 validation, 2 contract lines missed"


def test_a_line_that_was_not_tested_leaves_the_run_incomplete():
    conclusion = verdict_of({"metrics": (TRIAD, "nccl.*")})
    assert (conclusion.line, conclusion.exit_code) == ("INCOMPLETE: 1 contract line not tested", 6)
    assert conclusion.reasons == ("contract line 8.2 (memory) not tested: nccl.* is not part of this run",)


def test_neither_a_waiver_nor_the_profile_excuses_a_line():
    two = make_profile(make_limit(TRIAD), make_limit(COPY))
    waived = verdict_of({"metrics": ("hbm.*",)}, profile=two, waivers={COPY: "agreed"})
    assert waived.line == "INCOMPLETE: 1 contract line not tested (1 waived)"
    assert waived.reasons == (f"contract line 8.2 (memory) not tested: waived (agreed): {COPY}: never measured",)
    declared = verdict_of({"metrics": (COPY,)}, profile=replace(two, not_applicable={COPY: "no copies here"}))
    assert declared.line == "INCOMPLETE: 1 contract line not tested"
    assert declared.reasons == (f"contract line 8.2 (memory) not tested: {COPY}: not applicable: no copies here",)


def test_the_contract_itself_excuses_its_lines_and_the_verdict_line_says_so():
    conclusion = verdict_of({"metrics": (TRIAD,)}, {"not_tested": "next week"}, {"metrics": ("nccl.*",), "nodes": "several"})
    assert (conclusion.line, conclusion.exit_code) == ("ACCEPTED (2 of 3 lines of c.yaml not tested)", 0)


def test_a_contract_of_excuses_is_no_proof_less():
    conclusion = verdict_of({"not_tested": "next week"}, value=50.0)
    assert conclusion.line == "REJECTED: 1 limit missed in 1 of 1 validation (1 of 1 line of c.yaml not tested)"


def test_without_judgement_no_line_is_met_and_the_reason_is_given_once():
    conclusion = verdict_of(ASKS_MORE, measure_only=True)
    assert conclusion.line == "INCOMPLETE: measured only, not judged"
    assert [one.state for one in conclusion.contract.lines] == [LineState.NOT_TESTED]
