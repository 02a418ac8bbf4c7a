"""Phases: which validations are of which, in which order they run, and what runs where only some were asked for."""

from collections import Counter
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_acceptance.record.figure import make_figure
from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.record.run_record import WHOLE, PlannedValidation
from gpu_acceptance.run.collecting import Collected, in_order
from gpu_acceptance.supervisor.leader import Leader, Validation
from gpu_acceptance.thresholds.levels import phase_of, place_in_run
from gpu_acceptance.thresholds.limit import subject_of
from gpu_acceptance.verdict.verdict import conclude
from tests.judging import make_job, make_limit, make_plan, make_profile, make_record

PHASES = {"inventory": ("environment",), "transport": ("nccl.physics",), "gpu": ("hbm", "memory"), "collectives": ("nccl",)}
SECONDS = {"environment": 1.0, "memory": 9.0, "hbm": 3.0, "nccl": 2.0, "own": 0.1}
PROFILE = make_profile(phases=PHASES, expected_s=SECONDS)


def item(nodeid, *, own_worker=False):
    return SimpleNamespace(nodeid=f"acceptance/test_{nodeid}", get_closest_marker=lambda name: (own_worker and name == "worker") or None)


ALPHABETICAL = [
    item("environment.py::test_versions"),
    item("hbm.py::test_copy"),
    item("hbm.py::test_pinned", own_worker=True),
    item("memory.py::test_fill"),
    item("nccl.py::test_bandwidth[all_reduce]"),
    item("nccl.py::test_physics", own_worker=True),
    item("own.py::test_it"),
]
IN_ORDER = [
    "environment.py::test_versions",
    "nccl.py::test_physics",
    "hbm.py::test_copy",
    "memory.py::test_fill",
    "hbm.py::test_pinned",
    "nccl.py::test_bandwidth[all_reduce]",
    "own.py::test_it",
]


def names(items):
    return [one.nodeid.removeprefix("acceptance/test_") for one in items]


@given(st.permutations(ALPHABETICAL))
def test_phases_decide_the_order_then_own_workers_then_seconds(items):
    """Whatever pytest collected first: a validation that its phase names by itself, and last what no phase lists."""
    assert names(in_order(items, PROFILE)) == IN_ORDER


def test_without_phases_the_cheapest_subject_is_first_and_equal_ones_stay():
    items = [item("b.py::test_2"), item("b.py::test_1"), item("a.py::test_it")]
    assert names(in_order(items, make_profile())) == names(items)
    assert names(in_order(items, make_profile(expected_s={"a": 1.0, "b": 2.0}))) == names([items[2], *items[:2]])


@pytest.mark.parametrize(
    ("nodeid", "phase"),
    [
        ("acceptance/test_nccl.py::test_physics[a-b]", "transport"),
        ("acceptance/test_nccl.py::test_bandwidth", "collectives"),
        ("acceptance/test_own.py::test_physics", ""),
    ],
)
def test_a_validation_that_a_phase_names_is_not_in_that_of_its_subject(nodeid, phase):
    assert phase_of(PROFILE, nodeid) == phase
    assert place_in_run(PROFILE, nodeid)[0] == [*PHASES, ""].index(phase)


@pytest.mark.parametrize(
    ("asked", "kept", "selection"),
    [
        ((), IN_ORDER, "only a.py was asked for"),
        (("gpu",), IN_ORDER[2:5], "only a.py was asked for, only phase gpu asked for"),
        (("collectives", "transport"), [IN_ORDER[1], IN_ORDER[5]], "only a.py was asked for, only phases collectives, transport asked for"),
    ],
)
def test_some_phases_alone_are_a_selection_that_the_verdict_states(asked, kept, selection):
    found = Collected(items=ALPHABETICAL, num_deselected=2, selection="only a.py was asked for").of_run(PROFILE, asked)
    assert names(found.items) == kept
    assert (found.num_deselected, found.selection) == (2 + len(ALPHABETICAL) - len(kept), selection)


# --- no phase is dropped --------------------------------------------------------------------------------------------------------


class Supervisors:
    """All ranks of a run: each attempt ends as it was drawn, and workers always form."""

    def __init__(self, outcomes):
        self.outcomes, self.stopping, self.ended, self.attempt_state, self.control = outcomes, "", None, None, Mock()
        self.formed = []

    def lead_attempt(self, go):
        self.formed += [go] if go.kind == "form" else []
        ends = self.outcomes.get(go.nodeid, [Outcome.PASSED] * RANKS) if go.kind == "run" else [Outcome.PASSED] * RANKS
        about = {"nodeid": go.nodeid, "attempt": go.attempt, "generation": go.generation, "figures": figures_of(go)}
        records = tuple(make_record(rank, end, phase=PHASE_OF.get(end, ""), **about) for rank, end in enumerate(ends))
        return SimpleNamespace(facts={}, records=lambda: records)

    def follow(self):
        """Nobody else is there to tell."""


RANKS = 2
PHASE_OF = {Outcome.ERROR: "call", Outcome.FAILED: "call", Outcome.DIED: "call", Outcome.STUCK: "call", Outcome.VICTIM: "call"}
ENDS = st.sampled_from([Outcome.PASSED, Outcome.FAILED, Outcome.DIED, Outcome.STUCK, Outcome.ERROR, Outcome.SKIPPED, Outcome.NOT_RUN])
ORDER = [f"acceptance/test_{nodeid}" for nodeid in IN_ORDER]


def figures_of(go):
    return (make_figure(f"{subject_of(go.nodeid)}.x.value", 5.0, "GB/s", judged=True),) if go.kind == "run" else ()


@given(st.dictionaries(st.sampled_from(ORDER), st.lists(ENDS, min_size=RANKS, max_size=RANKS)))
def test_every_phase_runs_whatever_those_before_it_ended_in_and_accepted_needs_all(outcomes):
    limits = [make_limit(f"{subject}.x.value", at_least=1) for subject in SECONDS]
    profile = make_profile(*limits, phases=PHASES, expected_s=SECONDS, requires=frozenset(SECONDS))
    order = {nodeid: Validation(nodeid=nodeid, deadline_s=60.0) for nodeid in ORDER}
    leader = Leader(Supervisors(outcomes), profile, make_job(RANKS), {}, print, order)
    for validation in order.values():
        leader.run(validation)
    rows = [row for row in leader.finished_rows() if row.nodeid in order]
    assert [row.nodeid for row in rows] == ORDER
    spoiled = Counter(row.subject for row in rows if {Outcome.DIED, Outcome.STUCK, Outcome.ERROR} & set(outcomes.get(row.nodeid, ())))
    for row in rows:
        assert row.attempts or (spoiled[row.subject] >= 3 and "the rest of it is left out" in row.message)
    plan = make_plan(profile, validations=tuple(PlannedValidation(nodeid=nodeid, deadline_s=60.0) for nodeid in ORDER))
    conclusion = conclude(plan, make_job(RANKS), leader.finished_rows(), WHOLE)
    all_passed = all(end is Outcome.PASSED for ends in outcomes.values() for end in ends)
    assert (conclusion.verdict == "ACCEPTED") == all_passed, conclusion.line
    for row in rows if all_passed else ():
        assert conclude(plan, make_job(RANKS), [one for one in rows if one is not row], WHOLE).verdict != "ACCEPTED"


def test_validations_with_the_same_variables_share_workers_and_what_is_declared_away_costs_none():
    """As NCCL's own log is read for a small message and for large ones, and a loopback is declared away where there are no cards."""
    supervisors = Supervisors({})
    log, ring, cards = {"NCCL_DEBUG": "INFO"}, {"NCCL_ALGO": "Ring"}, {"NCCL_NET": "IB"}
    wanted = [("nccl", {}), ("way", log), ("physics", log), ("nic", cards), ("hbm", {}), ("ring", ring), ("ring_log", ring), ("gemm", {})]
    order = {f"acceptance/test_{name}.py::test_it": env for name, env in wanted}
    needs = {"acceptance/test_hbm.py::test_it": ("numpy",), "acceptance/test_ring.py::test_it": ("peft",)}
    validations = {
        nodeid: Validation(nodeid=nodeid, deadline_s=60.0, env=env, needs=needs.get(nodeid, ())) for nodeid, env in order.items()
    }
    leader = Leader(supervisors, make_profile(not_applicable={"nic.*": "there are no cards"}), make_job(RANKS), {}, print, validations)
    for validation in validations.values():
        leader.run(validation)
    generation_of = {name: leader.rows[place].attempts[0].ranks[0].generation for place, (name, _) in enumerate(wanted)}
    assert generation_of == {"nccl": 1, "way": 2, "physics": 2, "nic": 3, "hbm": 3, "ring": 4, "ring_log": 4, "gemm": 5}
    assert [dict(go.env) for go in supervisors.formed] == [{}, log, {}, ring, {}]
    assert [go.needs for go in supervisors.formed] == [(), (), ("numpy",), ("peft",), ()]
