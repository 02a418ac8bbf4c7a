"""The plan that every rank keeps, and the lines of `--plan`."""

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from typing import TYPE_CHECKING

import psutil

from gpu_acceptance import __version__
from gpu_acceptance.base.text import plural
from gpu_acceptance.control.rank import Rank
from gpu_acceptance.control.torchrun import RANKS_WITHOUT_GPUS, find_owner
from gpu_acceptance.record.job import Job, RankIdentity
from gpu_acceptance.record.outcome import Status
from gpu_acceptance.record.run_record import PlannedValidation, RunPlan
from gpu_acceptance.run.collecting import Collected
from gpu_acceptance.run.suite import look_at_suite
from gpu_acceptance.supervisor.leader import Validation
from gpu_acceptance.thresholds.contract import Contract
from gpu_acceptance.thresholds.levels import OWN_PHASE, left_out, num_left_out, phase_of, runs
from gpu_acceptance.thresholds.limit import (
    Limit,
    Profile,
    allowed_values,
    bound_at,
    choices,
    level_text,
    matching_reason,
    show,
    subject_of_metric,
)
from gpu_acceptance.verdict.bounds import bounds_of
from gpu_acceptance.verdict.coverage import judge_contract, judge_run
from gpu_acceptance.verdict.rows import announcement, unmet_needs
from gpu_acceptance.verdict.verdict import fabric_text

if TYPE_CHECKING:
    from gpu_acceptance.run.run import Run


def make_plan(run: "Run", profile: Profile, collected: Collected) -> RunPlan:
    """Make the plan of a run, as rank 0 does for all ranks."""
    settings, validations = run.settings, run.validations.values()
    shared = PlannedValidation.model_fields.keys()
    return RunPlan(
        run_id=run.files.folder.name,
        started_at=run.started_at,
        command=tuple(_command(run.place)),
        profile=profile,
        waivers=settings.waivers,
        declared_gpus=settings.declared_gpus,
        expected_nodes=settings.expected_nodes,
        declared_nodes=run.own_files.nodes,
        contract=run.own_files.contract,
        measure_only=settings.measure_only,
        allow_busy=settings.allow_busy,
        has_authentic_messages=run.supervisor.control.session.is_authenticated,
        has_closing=True,
        num_deselected=collected.num_deselected,
        selection=collected.selection,
        not_collected=tuple(collected.not_collected),
        not_at_level=num_left_out(profile, run.validations),
        suite=look_at_suite(settings.suite.parent, collected.items, collected.seen, collected.made, is_whole=not collected.selection),
        validations=tuple(
            PlannedValidation(**{name: getattr(one, name) for name in shared}) for one in validations if runs(profile, one.nodeid)
        ),
        gpu_acceptance_version=__version__,
    )


def _command(place: Rank) -> list[str]:
    """Return the command line of `gpu-acceptance run`, of torchrun, or of this process alone."""
    with contextlib.suppress(psutil.Error):
        if owner := find_owner():
            return owner.cmdline()
        if place.has_agent:
            return psutil.Process(os.getppid()).cmdline()
    return sys.orig_argv


@dataclass(frozen=True)
class JobShape:
    """Size of the planned job."""

    ranks_per_node: int
    num_nodes: int
    why: str = ""  # source of the numbers where no launcher gave them


def planned_shape(place: Rank, num_gpus: int, declared_gpus: int | None) -> JobShape:
    """Return the shape that a launcher promised; without one, that of a node as `make accept` would start it."""
    if place.store_port:  # torchrun has one for a world of one, too
        return JobShape(place.local_world_size, place.num_nodes)
    if declared_gpus is not None:
        return JobShape(declared_gpus, 1, "as --gpus declares")
    if num_gpus:
        return JobShape(num_gpus, 1, "one for each GPU")
    return JobShape(RANKS_WITHOUT_GPUS, 1, "as `gpu-acceptance run` starts where there is no GPU")


def missing_lines(profile: Profile, validations: Sequence[Validation], here: RankIdentity) -> Iterator[str]:
    """Yield a line for each need of this level's validations that this machine lacks."""
    planned = [validation for validation in validations if runs(profile, validation.nodeid)]
    yield from (f"missing: {announcement(unmet)}" for unmet in unmet_needs(planned, Job((here,))))


def network_lines(profile: Profile, job: Job, num_nodes: int) -> Iterator[str]:
    """Yield a line about the network between nodes: which one is judged, and what the inventory shows of it."""
    if not job.network and not profile.fabric:
        return
    seen = job.network or "nothing that the inventory shows"
    if num_nodes < 2:
        yield f"{seen}; judged on several nodes"
    elif profile.fabric:
        yield f"{fabric_text(profile.fabric)}: {seen} (--fabric=NAME names another one)"
    elif job.is_one_machine:
        yield seen
    else:
        yield f"no fabric is known for {seen}: nothing between nodes can pass; `gpu-acceptance fabric --draft` writes limits to agree on"


def plan_lines(
    profile: Profile,
    job: JobShape,
    validations: Sequence[Validation],
    waivers: Mapping[str, str],
    now: datetime,
    data: str = "",
    tuned: str = "",
) -> Iterator[str]:
    """Yield lines about the job, training `data` and fine-tuning `tuned`, each validation, each limit, and the whole time."""
    device = profile.device or "no GPU"
    why = f", {job.why}" if job.why else ""
    ranks = f"{plural(job.ranks_per_node, 'rank')} on each of {plural(job.num_nodes, 'node')}{why}"
    yield f"profile {profile.name} ({device}), level {level_text(profile.level, profile.parameters)}, {ranks}"
    yield from (
        f"  {change.kind} by {change.file}: {change.key}, {change.old} -> {change.new}"
        for kind in ("dropped", "loosened")
        for change in profile.changes
        if change.kind == kind
    )
    yield from (f"for {plural(profile.num_gpus, 'GPU')}: {choice}" for choice in choices(profile))
    if data:
        yield f"training data: {data}"
    if tuned:
        yield f"fine-tuning: {tuned}"
    absent = num_left_out(profile, (validation.nodeid for validation in validations))
    validations = [validation for validation in validations if runs(profile, validation.nodeid)]
    expected = [validation.expected_s(profile, job.ranks_per_node, job.num_nodes) for validation in validations]
    for phase, group in groupby(zip(validations, expected, strict=True), key=lambda one: phase_of(profile, one[0].nodeid)):
        yield from _phase_lines((phase or OWN_PHASE) if profile.phases else "", list(group))
    yield from (f"  {subject}: not at this level, {plural(number, 'validation')}" for subject, number in absent.items())
    for metric, limit in sorted(profile.limits.items()):
        yield f"  {metric}: {_aside(metric, profile, waivers) or _limit_text(limit, job, required=limit.subject in profile.requires)}"
    known = sum(seconds for seconds in expected if seconds is not None)
    unknown = sum(seconds is None for seconds in expected)
    more = f"; {plural(unknown, 'validation')} of unknown duration not counted" if unknown else ""
    yield f"expected: {known:g} s of validations, end about {now + timedelta(seconds=known):%H:%M:%S %Z} if started now{more}"


def _phase_lines(phase: str, expected: Sequence[tuple[Validation, float | None]]) -> Iterator[str]:
    """Yield a line for a phase, if it has a name, and one for each of its validations with the seconds that it takes."""
    if phase:
        yield f"phase {phase}: {plural(len(expected), 'validation')}, {sum(seconds or 0.0 for _, seconds in expected):.0f} s expected"
    for validation, seconds in expected:
        duration = "duration not known" if seconds is None else f"{seconds:g} s expected"
        yield f"  {validation.nodeid}: {duration}, deadline {validation.deadline_s:g} s"


def _aside(metric: str, profile: Profile, waivers: Mapping[str, str]) -> str | None:
    waiver = matching_reason(metric, waivers)
    if waiver is not None:
        return f"waived ({waiver})"
    reason = matching_reason(metric, profile.not_applicable)
    if reason is not None:
        return f"not applicable ({reason})"
    return f"not tested: not part of level {profile.level}" if subject_of_metric(metric) in left_out(profile) else None


def _limit_text(limit: Limit, job: JobShape, *, required: bool) -> str:
    if not limit.applies(job.ranks_per_node, job.num_nodes):
        nodes = ", ".join(limit.listed_nodes()) or limit.nodes
        parts = [f"GPUs per node: {', '.join(map(str, limit.listed_sizes())) or 'any'}", f"nodes: {nodes}"]
        parts += [f"ranks: {limit.min_ranks} or more"] * (limit.min_ranks > 1)
        parts += [f"ranks per node: {limit.min_ranks_per_node} or more"] * (limit.min_ranks_per_node > 1)
        return f"does not apply to this job ({'; '.join(parts)})"
    bounds = ", ".join(_bound_text(limit, bound, job) for bound in bounds_of(limit))
    return f"{bounds} {limit.unit} ({limit.scope}{'' if required else ', not required'}) [{limit.file}: {limit.source}]"


def _bound_text(limit: Limit, bound: str, job: JobShape) -> str:
    match bound:
        case "at_least":
            return f">= {show(bound_at(limit.at_least, job.ranks_per_node, job.num_nodes) or 0)}"
        case "at_most":
            return f"<= {show(bound_at(limit.at_most, job.ranks_per_node, job.num_nodes) or 0)}"
        case "equals":
            assert limit.equals is not None
            return f"== {' or '.join(map(str, allowed_values(limit.equals)))}"
        case "peers":
            assert limit.peers
            return f"at most {show(limit.peers.deficit_at_most * 100)} % below its peers"
        case _:
            return "equal on all"


def contract_lines(contract: Contract, profile: Profile, job: JobShape, waivers: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each line of the contract, judged as if every limit of this run held."""
    size, num_ranks = job.ranks_per_node, job.ranks_per_node * job.num_nodes
    places = [(rank, *divmod(rank, size)) for rank in range(num_ranks)]  # of the planned ranks nothing else is known
    ranks = [
        RankIdentity(rank=rank, local_rank=local_rank, node=node, host="", local_world_size=size, world_size=num_ranks)
        for rank, node, local_rank in places
    ]
    expected = judge_run((), profile, Job(tuple(ranks)), waivers)
    held = [one.model_copy(update={"status": Status.HELD}) if one.status is Status.NOT_MEASURED else one for one in expected]
    yield f"contract {contract.file}: {plural(len(contract.lines), 'line')}"
    for one in judge_contract(contract, held, job.num_nodes, profile.not_applicable).lines:
        answer = ", ".join(filter(None, [*one.line.metrics, one.line.asks]))
        why = "; ".join(one.reasons)
        yield f"  {one.line.number}: {f'will not be tested: {why}' if why else answer}"
