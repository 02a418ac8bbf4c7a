"""Every limit of every shipped profile and fabric, in a run in which all else holds: on the bound, beyond it, absent, and impossible.

A limit that nothing can miss, or that nothing can hold, would be found here. What else holds is all that the profile asks for once for
each shape of a job, and for each limit by itself its own subject and what shares the chance of a false alarm with it: a verdict looks at
every limit, so all of them for each of them would be a million judgements.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property

import pytest
from fabrics import directory

from gpu_acceptance.record.figure import make_figure
from gpu_acceptance.record.job import Job
from gpu_acceptance.record.row import Attempt, Row
from gpu_acceptance.record.run_record import Conclusion
from gpu_acceptance.thresholds.fabrics import fabrics
from gpu_acceptance.thresholds.limit import (
    COUNTERS,
    ByNodes,
    Limit,
    Profile,
    Value,
    allowed_values,
    bound_at,
    matching_reason,
    range_of_nodes,
)
from gpu_acceptance.thresholds.profile import load_profile, profile_names, shipped_dir
from gpu_acceptance.verdict.bounds import bounds_of
from gpu_acceptance.verdict.coverage import applying_limits
from gpu_acceptance.verdict.rows import make_row
from gpu_acceptance.verdict.verdict import conclude
from tests.judging import make_job, make_plan, make_record, spread_of

pytestmark = pytest.mark.slow

DIRECTORY = shipped_dir()
UNLISTED_SIZE = 4
FEWEST = 2  # GPUs per node beside a fabric, whose limits hold for any number
INFORMS = make_figure("smoke.runs.duration_s", 1.0, "s", judged=False)  # beside a counter: a validation without a figure is an error


@cache
def shipped(name: str) -> Profile:
    """A shipped profile, or one with a network between its nodes on it, `h200-sxm+8x400-ib`."""
    profile, _, fabric = name.partition("+")
    return load_profile(profile, directory() if fabric else DIRECTORY, fabric=fabric)


def names() -> list[str]:
    matches = fabrics(DIRECTORY).items()
    return [*profile_names(DIRECTORY), *(f"{match.profiles[0] if match else 'h200-sxm'}+{fabric}" for fabric, match in matches)]


@dataclass(frozen=True)
class Case:
    """One limit in a job of one shape to which it applies."""

    profile_name: str
    metric: str
    gpus_per_node: int
    num_nodes: int

    @property
    def shape(self) -> tuple[str, int, int]:
        return self.profile_name, self.gpus_per_node, self.num_nodes

    @property
    def limit(self) -> Limit:
        return shipped(self.profile_name).limits[self.metric]

    @property
    def job(self) -> Job:
        return job_of(self.profile_name, self.gpus_per_node, self.num_nodes)

    @cached_property
    def profile(self) -> Profile:
        """The limits beside this one: its subject, and everything by which peers are compared."""
        profile = demanding(self.profile_name, self.gpus_per_node, self.num_nodes)
        beside = {metric: limit for metric, limit in profile.limits.items() if limit.subject == self.limit.subject or limit.peers}
        return replace(profile, limits=beside, requires=profile.requires & {limit.subject for limit in beside.values()})


@cache
def demanding(name: str, gpus_per_node: int, num_nodes: int) -> Profile:
    """Requires every subject that has a limit in this job, so that no limit is left out here."""
    limits = applying_limits(shipped(name), job_of(name, gpus_per_node, num_nodes))
    return replace(shipped(name), requires=frozenset(limit.subject for limit in limits))


@cache
def job_of(profile_name: str, gpus_per_node: int, num_nodes: int) -> Job:
    device_name = shipped(profile_name).device_name
    return make_job(gpus_per_node * num_nodes, gpus_per_node, has_gpus=device_name is not None, model=device_name or "")


def cases() -> list[object]:
    """Each limit in the first profile that has it: what others inherit unchanged is the same limit. Of equal bounds the ends."""
    found, seen = [], set[str]()
    for name in names():
        for metric, limit in shipped(name).limits.items():
            if matching_reason(metric, shipped(name).not_applicable) is None and repr(limit) not in seen:
                seen.add(repr(limit))
                listed = [FEWEST] if "+" in name else sizes(limit)
                shapes = [(size, num_nodes) for size in listed for num_nodes in numbers_of_nodes(limit) if limit.applies(size, num_nodes)]
                found += [pytest.param(Case(name, metric, *shape), id="{}-{}-{}x{}".format(name, metric, *shape)) for shape in shapes]
    return found


def numbers_of_nodes(limit: Limit) -> list[int]:
    """One number of nodes of each range that a bound lists, the lowest: where it asks for something."""
    if limit.nodes != "several":
        return [1]
    by_nodes = [bound for bound in (limit.at_least, limit.at_most) if isinstance(bound, ByNodes)]
    lowest = {range_of_nodes(text)[0] for bound in by_nodes for text, number in bound.nodes.items() if number is not None}
    return sorted(lowest) or [2]


def sizes(limit: Limit) -> list[int]:
    listed = sorted(limit.listed_sizes()) or [UNLISTED_SIZE]
    has_one_of_its_own = any(isinstance(bound, Mapping) for bound in (limit.at_least, limit.at_most, limit.spread_at_most))
    return listed if has_one_of_its_own else sorted({listed[0], listed[-1]})


def good_value(limit: Limit, job: Job) -> Value:
    """A value on a bound of the limit; on all ranks it holds every bound."""
    shape = job.gpus_per_node, job.num_nodes
    for bound in (limit.equals, bound_at(limit.at_least, *shape), bound_at(limit.at_most, *shape)):
        if bound is not None:
            return allowed_values(bound)[0]
    return limit.ceiling / 2 if limit.ceiling else 1.0


def beyond(limit: Limit, bound: str, job: Job) -> Value:
    """As little beyond a bound as can be written."""
    shape = job.gpus_per_node, job.num_nodes
    if bound == "at_least":
        return math.nextafter(float(bound_at(limit.at_least, *shape) or 0), -math.inf)
    if bound == "at_most":
        return math.nextafter(float(bound_at(limit.at_most, *shape) or 0), math.inf)
    good = good_value(limit, job)
    if isinstance(good, bool):
        return not good
    if isinstance(good, str):
        return good + "x"
    return good / 2 if bound == "peers" else math.nextafter(good, -math.inf)


def row_of(profile: Profile, job: Job, metric: str, values: Mapping[int, Value], subject: str = "") -> Row:
    limit = profile.limits[metric]
    spread = bound_at(limit.spread_at_most, job.gpus_per_node, job.num_nodes)
    records = [
        make_record(rank, figures=(INFORMS, make_figure(metric, value, limit.unit, judged=True, spread=spread_of(spread))))
        for rank, value in values.items()
    ]
    silent = [make_record(rank) for rank in range(job.world_size) if rank not in values]
    nodeid = f"acceptance/test_{subject or limit.subject}.py::test_{metric}"
    return make_row(nodeid, (Attempt(number=1, ranks=(*records, *silent)),), profile, job, {}, 60.0)


@cache
def good_rows(profile_name: str, gpus_per_node: int, num_nodes: int) -> dict[str, Row]:
    profile, job = shipped(profile_name), job_of(profile_name, gpus_per_node, num_nodes)
    limits = applying_limits(profile, job)
    return {limit.metric: row_of(profile, job, limit.metric, everywhere(job, good_value(limit, job))) for limit in limits}


def good_rows_of(case: Case) -> dict[str, Row]:
    rows = good_rows(case.profile_name, case.gpus_per_node, case.num_nodes)
    return {metric: rows[metric] for metric in case.profile.limits if metric in rows}


def everywhere(job: Job, value: Value) -> dict[int, Value]:
    return dict.fromkeys(range(job.world_size), value)


def run(case: Case, values: Mapping[int, Value]) -> Conclusion:
    """All else holds; this metric has these values, or no row at all."""
    rows = good_rows_of(case)
    del rows[case.metric]
    own = [row_of(case.profile, case.job, case.metric, values)] if values else []
    return conclude(make_plan(case.profile), case.job, [*rows.values(), *own])


def test_there_are_limits():
    assert len(cases()) > 10


@pytest.mark.parametrize("shape", sorted({case.values[0].shape for case in cases()}), ids=lambda shape: "{}-{}x{}".format(*shape))
def test_with_each_limit_on_its_bound_a_run_is_accepted(shape):
    name, gpus_per_node, num_nodes = shape
    profile, job = demanding(name, gpus_per_node, num_nodes), job_of(name, gpus_per_node, num_nodes)
    conclusion = conclude(make_plan(profile), job, [*good_rows(name, gpus_per_node, num_nodes).values()])
    assert conclusion.verdict == "ACCEPTED", conclusion.reasons
    assert conclusion.coverage.limits_held == conclusion.coverage.limits_expected > 100


def on_its_bound_it_holds(case):
    conclusion = run(case, everywhere(case.job, good_value(case.limit, case.job)))
    assert conclusion.verdict == "ACCEPTED", conclusion.reasons


def beyond_each_bound_it_is_missed_by_one_rank(case):
    for bound in bounds_of(case.limit):
        if bound == "peers" and case.job.world_size < 3:
            continue
        values = everywhere(case.job, good_value(case.limit, case.job))
        conclusion = run(case, {**values, 0: beyond(case.limit, bound, case.job)})
        assert conclusion.verdict == "REJECTED", bound
        assert any(f": {case.metric} = " in reason for reason in conclusion.reasons)


def absent_it_is_named(case):
    conclusion = run(case, {})
    assert conclusion.verdict == "INCOMPLETE"
    assert f"never measured: {case.metric}" in conclusion.reasons


def absent_on_one_rank_it_is_no_pass(case):
    values = everywhere(case.job, good_value(case.limit, case.job))
    del values[0]
    if case.limit.scope == "rank" and values:
        assert run(case, values).verdict == "INCOMPLETE"


def above_its_ceiling_it_is_no_pass(case):
    if case.limit.ceiling is None:
        return
    values = everywhere(case.job, good_value(case.limit, case.job))
    conclusion = run(case, {**values, 0: math.nextafter(case.limit.ceiling, math.inf)})
    assert conclusion.verdict == "INCOMPLETE"
    assert any("above what is physically possible" in reason and case.metric in reason for reason in conclusion.reasons)


def below_its_floor_it_is_no_pass(case):
    if case.limit.unit in ("text", "bool"):
        return
    values = everywhere(case.job, good_value(case.limit, case.job))
    conclusion = run(case, {**values, 0: math.nextafter(case.limit.floor, -math.inf)})
    assert conclusion.verdict == "INCOMPLETE"
    assert any("below what is physically possible" in reason and case.metric in reason for reason in conclusion.reasons)


def held_by_another_subject_it_was_never_measured(case):
    """But what supervisors read of a GPU is read round every validation."""
    values = everywhere(case.job, good_value(case.limit, case.job))
    rows = good_rows_of(case)
    rows[case.metric] = row_of(case.profile, case.job, case.metric, values, subject="smoke")
    conclusion = conclude(make_plan(case.profile), case.job, [*rows.values()])
    assert conclusion.verdict == ("ACCEPTED" if case.limit.subject == COUNTERS else "INCOMPLETE")
    assert (f"never measured: {case.metric}" in conclusion.reasons) == (case.limit.subject != COUNTERS)


WAYS = (
    on_its_bound_it_holds,
    beyond_each_bound_it_is_missed_by_one_rank,
    absent_it_is_named,
    absent_on_one_rank_it_is_no_pass,
    above_its_ceiling_it_is_no_pass,
    below_its_floor_it_is_no_pass,
    held_by_another_subject_it_was_never_measured,
)


@pytest.mark.parametrize("case", cases())
def test_it_can_be_held_and_missed(case):
    """In one test for each limit: of 1,000 limits each way by itself would cost more than what it looks at."""
    for way in WAYS:
        way(case)
