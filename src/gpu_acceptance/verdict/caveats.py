"""What weakens a verdict, in short phrases for the verdict line and the first screen."""

import math
from collections.abc import Iterator, Sequence

from gpu_acceptance.base.text import one_line
from gpu_acceptance.record.job import Job
from gpu_acceptance.record.outcome import Status
from gpu_acceptance.record.row import Judgement, Row
from gpu_acceptance.record.run_record import ControlMessages, Coverage, RunPlan, SuiteState
from gpu_acceptance.thresholds.limit import DEFAULT_LEVEL, Change, ChangeKind, FarBound, first_of, level_text, plural, subject_of_metric

_PROFILES = ("thresholds/", "gpu_acceptance/profiles/")  # in a checkout, and in a wheel
_AS = {"checkout": "committed", "bundle": "packed", "wheel": "installed", "unknown": "known"}
_MOST_NAMES = 2
UNTESTED_NODES = "slurm.partition.untested"  # recorded by the validation of this subject
NODES_ELSEWHERE = "kubernetes.nodes.untested"
_LEFT_OUT = {UNTESTED_NODES: "of the partition drained or down", NODES_ELSEWHERE: "of the cluster without a pod of this run"}
_MOST_FAR = 2  # in the verdict line
_ASKS_FOR_LESS: tuple[ChangeKind, ...] = ("loosened", "not applicable", "dropped")


def suite_notes(state: SuiteState | None) -> Iterator[str]:
    """The parts of the verdict line; none of a suite that is as it was committed or packed. None: an earlier version did not look."""
    if state is None:
        return
    profiles = [name for name in state.changed if name.startswith(_PROFILES)]
    others = [name for name in state.changed if not name.startswith(_PROFILES)]
    was = _AS[state.source]
    if profiles:
        yield f"{_named('limits file', [name.rpartition('/')[2] for name in profiles])} not as {was}"
    if others:
        number = state.num_changed - len(profiles)
        yield f"{plural(number, 'file')} of the suite not as {was}: {_few(others)}"
    if state.conftests:
        yield f"{_named('conftest', state.conftests)} beside the suite's own"
    for fixture in state.fixtures[:_MOST_NAMES]:
        yield f"fixture {one_line(fixture.name)} from {one_line(fixture.file)}"
    if len(state.fixtures) > _MOST_NAMES:
        yield f"{plural(len(state.fixtures) - _MOST_NAMES, 'more fixture')} not the suite's own"
    if state.threads:
        yield f"{plural(len(state.threads), 'thread')} started by an import: {_few(state.threads)}"
    if state.hidden:
        yield f"{plural(len(state.hidden), 'test')} not collected in full: {_few([name.rpartition('/')[2] for name in state.hidden])}"


def _named(what: str, names: Sequence[str]) -> str:
    return f"{what}{'s' if len(names) > 1 else ''} {_few(names)}"


def _few(names: Sequence[str]) -> str:
    return first_of([one_line(name) for name in names], _MOST_NAMES)


def find_weaknesses(plan: RunPlan, coverage: Coverage, limits: Sequence[Judgement], rows: Sequence[Row]) -> Iterator[str]:
    """A level, a profile for no GPU, nodes left out, waivers, and what overlays changed."""
    profile = plan.profile
    if profile.level != DEFAULT_LEVEL:
        yield level_text(profile.level, profile.parameters)
    if not coverage.gpus_tested:
        yield f"{profile.name} profile: no GPU was tested"
    yield from _nodes_left_out(rows)
    judgements = [*limits, *(judgement for row in rows for judgement in row.judgements)]
    if waived := {judgement.metric for judgement in judgements if judgement.status is Status.WAIVED}:
        yield f"{len(waived)} waived"
    if profile.changes:
        yield changed_limits(profile.changes)
    yield from _far(profile.far_bounds)


def changed_limits(changes: Sequence[Change]) -> str:
    """`29 limits changed by overlay site.yaml, 3 of them loosened`: what asks for less is counted apart, what asks for nothing is named."""
    files = sorted({change.file for change in changes})
    keys = {kind: [change.key for change in changes if change.kind == kind] for kind in _ASKS_FOR_LESS}
    kinds = {change.kind for change in changes}
    verb = "changed" if len(kinds) > 1 else _verb(*kinds)
    text = f"{plural(len(changes), 'limit')} {verb} by {'overlay' if len(files) == 1 else 'overlays'} {', '.join(files)}"
    less = [f"{len(keys[kind])} of them {_verb(kind)}" for kind in _ASKS_FOR_LESS if keys[kind] and len(kinds) > 1]
    return ", ".join([text, *less]) + (f": {first_of(keys['dropped'], 1)}" if keys["dropped"] else "")


def _verb(kind: ChangeKind) -> str:
    return "declared not applicable" if kind == "not applicable" else kind


def _far(bounds: Sequence[FarBound]) -> Iterator[str]:
    """Those that moved furthest, by name: a slip of the unit makes a limit that anything holds, or nothing."""
    furthest = sorted(bounds, key=lambda bound: -abs(math.log(bound.ratio)))
    for bound in furthest[:_MOST_FAR]:
        part = f"{float(f'{bound.ratio:.3g}'):.15g} times" if bound.ratio > 1 else f"{bound.ratio * 100:.3g} % of"
        yield f"{bound.metric} {bound.kind} to {part} its bound: a slip of the unit?"
    if len(furthest) > _MOST_FAR:
        yield f"{plural(len(furthest) - _MOST_FAR, 'more bound')} beyond a factor of 10"


def _nodes_left_out(rows: Sequence[Row]) -> Iterator[str]:
    """Nodes of the same kind on which no job starts, or this one did not: whoever buys them has not seen them tested."""
    for metric, which in _LEFT_OUT.items():
        last = [row.attempts[-1] for row in rows if row.attempts and row.subject == subject_of_metric(metric)]
        for figure in (figure for attempt in last for rank in attempt.ranks for figure in rank.figures):
            if figure.metric == metric and figure.value != 0:
                number = plural(figure.value, "node") if isinstance(figure.value, int) else "an unknown number of nodes"
                yield f"{number} {which}: not tested"


def find_control_caveats(control: ControlMessages | None) -> Iterator[str]:
    """What a reader must know of the messages between the ranks."""
    if control and not control.is_authenticated:
        yield "control messages were not authenticated"
    if control and control.dropped:
        yield f"{plural(sum(control.dropped.values()), 'control message')} of strangers dropped"


def larger_allocations(job: Job) -> Iterator[str]:
    """`1 of 4 nodes of the Slurm job`, where a scheduler gave more nodes to the job than take part in the run."""
    allocated: dict[str, int] = {}
    for identity in job.ranks:
        for name, number in identity.allocated_nodes.items():
            allocated[name] = max(number, allocated.get(name, 0))
    yield from (f"{job.num_nodes} of {number} nodes of the {name}" for name, number in allocated.items() if number > job.num_nodes)


def tested_part(coverage: Coverage) -> str:
    """`4 of 8 GPUs`, or nothing where all were tested."""
    partly = coverage.gpus_tested < coverage.gpus_existing
    return f"{coverage.gpus_tested} of {coverage.gpus_existing} GPUs" if partly else ""
