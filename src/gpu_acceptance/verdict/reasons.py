"""The reasons against ACCEPTED: rows that went wrong, bounds that were not proved, GPUs that were not tested. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpu_acceptance.base.text import clip, named, plural
from gpu_acceptance.record.job import Job
from gpu_acceptance.record.outcome import Means, Outcome, Status
from gpu_acceptance.record.row import Judgement, Row
from gpu_acceptance.record.run_record import ControlMessages, Coverage, RunEnd, RunPlan
from gpu_acceptance.record.run_record import ObjectionKind as Kind
from gpu_acceptance.thresholds.contract import JudgedContract, LineState
from gpu_acceptance.thresholds.limit import Profile
from gpu_acceptance.verdict.coverage import DECLARED, NodeGpus, gpus_by_node, gpus_of_several_nodes

FORMATION = "world_formation"  # row 0


@dataclass(frozen=True)
class Found:
    """One reason against ACCEPTED: `part` for the verdict line, which names the same part only once, and the whole sentence, if longer."""

    kind: Kind
    part: str
    sentence: str = ""
    nodeid: str = ""


def validations(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of validations, without those of the suite itself."""
    return [row for row in rows if is_validation(row.nodeid)]


def is_validation(nodeid: str) -> bool:
    """Return False for a row of the suite itself (world_formation, worker_end), which counts but is no validation."""
    return "::" in nodeid


def _missed(row: Row) -> list[Judgement]:
    return [judgement for judgement in row.judgements if judgement.status is Status.MISSED]


def rejecting_rows(rows: Sequence[Row], control: ControlMessages | None) -> Iterator[Found]:
    """Yield rows that failed, died or were stuck, and missed limits. A missed limit rejects with any outcome of its row."""
    for row in _by_severity(rows, Means.REJECTS, control):
        if not _only_missed(row):
            sentence = f"{_name(row)}: {_first_line(row) or row.outcome}"
            yield Found(Kind.VALIDATION, _part_of(row, rows), sentence, row.nodeid)
    missed = [(row, judgement) for row in rows for judgement in _missed(row)]
    num_limits, num_rows = len({judgement.metric for _, judgement in missed}), sum(bool(_missed(row)) for row in rows)
    part = f"{plural(num_limits, 'limit')} missed in {_of_all(num_rows, rows)}"
    for row, judgement in missed:
        yield Found(Kind.LIMIT_MISSED, part, f"{_name(row)}: {judgement.message}", row.nodeid)


def _only_missed(row: Row) -> bool:
    """Return True if a row failed by its limits alone."""
    return row.outcome is Outcome.FAILED and _first_line(row) in {_first_line(judgement) for judgement in _missed(row)}


def incomplete_rows(rows: Sequence[Row], control: ControlMessages | None) -> Iterator[Found]:
    """Yield one reason for all rows with the same message: a counter that a machine lacks is missing from every validation."""
    alike: dict[tuple[Outcome, str], list[Row]] = {}
    for row in _by_severity(rows, Means.LEAVES_INCOMPLETE, control):
        alike.setdefault((row.outcome, _first_line(row)), []).append(row)
    for first, *others in alike.values():
        more = f" and {plural(len(others), 'other')}" if others else ""
        yield Found(Kind.VALIDATION, _part_of(first, rows), f"{_name(first)}{more}: {_first_line(first) or first.outcome}", first.nodeid)


def _by_severity(rows: Sequence[Row], means: Means, control: ControlMessages | None) -> list[Row]:
    """Return the rows with this meaning, worst first. A rank may be stuck because a message was lost, which proves no fault."""
    is_excused = control is not None and bool(control.lost)
    meanings = {Outcome.STUCK: Means.LEAVES_INCOMPLETE} if is_excused else {}
    return sorted((row for row in rows if meanings.get(row.outcome, row.outcome.means) is means), key=lambda row: row.outcome.severity)


def _part_of(row: Row, rows: Sequence[Row]) -> str:
    word = row.outcome.phrase
    if not is_validation(row.nodeid):
        return f"{row.nodeid.replace('_', ' ')} {word}"
    alike = sum(other.outcome is row.outcome and not _only_missed(other) for other in validations(rows))
    return f"{_of_all(alike, rows)} {word}"


def _of_all(count: int, rows: Sequence[Row]) -> str:
    return f"{count} of {plural(len(validations(rows)), 'validation')}"


def _first_line(source: Row | Judgement) -> str:
    return source.message.split("\n", 1)[0]


def _name(row: Row) -> str:
    """Return `test_nccl.py::test_large[all_gather]`, without folders."""
    path, colons, test = row.nodeid.partition("::")
    return f"{path.rsplit('/', 1)[-1]}{colons}{test}"


def broken_off(measure_only: bool, end: RunEnd) -> Iterator[Found]:
    """Yield what kept the run from its normal end."""
    if end.not_written is not None:
        yield Found(Kind.NOT_WRITTEN, clip(end.not_written))
    if end.internal_error is not None:
        yield Found(Kind.INTERNAL_ERROR, "internal error", f"internal error: {end.internal_error}")
    if end.unconfirmed is not None:
        yield Found(Kind.UNCONFIRMED, "not confirmed by its journals", f"not confirmed: {end.unconfirmed}")
    if end.interrupted is not None:
        yield Found(Kind.INTERRUPTED, "interrupted", f"interrupted: {end.interrupted}")
    yield from (Found(Kind.NOT_CONCLUDED, end.not_concluded[0], sentence) for sentence in end.not_concluded)
    part = f"{plural(len(end.took_no_part), 'rank')} took no part"
    yield from (Found(Kind.TOOK_NO_PART, part, f"took no part: {one}") for one in end.took_no_part)
    if measure_only:
        yield Found(Kind.MEASURED_ONLY, "measured only, not judged", "measured only: no figure was judged")


def broken_messages(control: ControlMessages | None) -> Iterator[Found]:
    """Yield control messages that were lost, and ranks whose own records differ from those that rank 0 judged: neither proves anything."""
    if control and control.lost:
        kinds = ", ".join(f"{kind}: {number}" for kind, number in sorted(control.lost.items()))
        number = plural(sum(control.lost.values()), "control message")
        sentence = f"{number} deleted or overwritten in the control store by a stranger ({kinds})"
        yield Found(Kind.MESSAGES_LOST, "control messages lost", sentence)
    for one in control.disputed if control else ():
        what = f"{one.nodeid} (attempt {one.attempt}): it reported {one.told}, and {one.judged} was judged"
        part = f"records disputed by {plural(len(control.disputed), 'rank')}" if control else ""
        yield Found(Kind.TOLD_OTHERWISE, part, f"rank {one.rank} objects to {what}")


def uncollected(plan: RunPlan) -> Iterator[Found]:
    """Yield test files that gave no validations, whose requirements are therefore unknown."""
    part = f"{plural(len(plan.not_collected), 'file')} not collected"
    yield from (Found(Kind.NOT_COLLECTED, part, sentence) for sentence in plan.not_collected)


def without_row(plan: RunPlan, rows: Sequence[Row]) -> Iterator[Found]:
    """Yield validations of the plan that nobody tells the end of."""
    told = {row.nodeid for row in rows}
    absent = [one.nodeid for one in plan.validations if is_validation(one.nodeid) and one.nodeid not in told]
    part = f"{plural(len(absent), 'planned validation')} without a row"
    yield from (Found(Kind.VALIDATION, part, f"{nodeid} was planned, and has no row", nodeid) for nodeid in absent)


def unproved(rows: Sequence[Row], limits: Sequence[Judgement], coverage: Coverage, profile: Profile) -> Iterator[Found]:
    """Yield expected bounds that neither held nor were declared away."""
    open_limits = [limit for limit in limits if limit.status not in DECLARED | {Status.HELD, Status.MISSED}]
    consulted = {(judgement.metric, judgement.bound) for row in rows for judgement in row.judgements}
    never = [limit for limit in open_limits if (limit.metric, limit.bound) not in consulted]
    unjudged = [limit for limit in open_limits if limit not in never]
    for kind, part, sentence, found in (
        (Kind.NEVER_MEASURED, "never measured", "never measured", never),
        (Kind.NOT_JUDGED, "not judged", "measured but not judged", unjudged),
    ):
        if found:
            yield Found(kind, f"{plural(len(found), 'limit')} {part}", f"{sentence}: {', '.join(sorted({one.metric for one in found}))}")
    if not coverage.limits_judged:
        yield Found(Kind.NOTHING_PROVED, "no limit held", f"no limit of profile {profile.name} held: nothing was proved")


def contract_lines(contract: JudgedContract | None, state: LineState) -> Iterator[Found]:
    """Yield the lines of a contract with this state that its own file does not excuse."""
    lines = [one for one in contract.unanswered if one.state is state] if contract else []
    for one in lines:
        part = f"{plural(len(lines), 'contract line')} {one.state}"
        yield Found(Kind.CONTRACT, part, f"contract line {one.line.number} ({one.line.text}) {one.state}: {'; '.join(one.reasons)}")


def untested(plan: RunPlan, job: Job, coverage: Coverage) -> Iterator[Found]:
    """Yield expected nodes and ranks that are absent, GPUs that were not tested or tested twice, and GPUs of another kind."""
    yield from _absent(plan, job)
    nodes = gpus_by_node(job)
    yield from _gpus_without_rank(nodes, plan.declared_gpus)
    yield from (Found(Kind.GPUS_SHARED, text) for text in gpus_of_several_nodes(nodes))
    profile = plan.profile
    if profile.device_name is None and coverage.gpus_existing:
        yield Found(Kind.WRONG_PROFILE, f"profile {profile.name} is for no GPU, and {plural(coverage.gpus_existing, 'GPU')} can be seen")
    elif profile.device_name is not None and not coverage.gpus_tested:
        yield Found(Kind.GPUS_UNTESTED, f"profile {profile.name} is for {profile.device}, and no rank opened a GPU")
    else:
        ranks_of: dict[str, list[int]] = {}
        for rank, identity in job.by_rank.items():
            gpu = identity.gpu
            if gpu and not profile.is_for(gpu.name, gpu.nvlink_to):
                board = f", with NVLinks to a {gpu.nvlink_to}" if gpu.name == profile.device_name else ""
                ranks_of.setdefault(f"{gpu.name}{board}", []).append(rank)
        for name, ranks in sorted(ranks_of.items()):
            text = f"profile {profile.name} is for {profile.device}, and there is {name} on {job.who(ranks)}"
            yield Found(Kind.WRONG_PROFILE, text)


def _absent(plan: RunPlan, job: Job) -> Iterator[Found]:
    if plan.expected_nodes not in {None, job.num_nodes}:
        yield Found(Kind.NODES_ABSENT, f"{plural(job.num_nodes, 'node')} took part, and --expect-nodes wants {plan.expected_nodes}")
    if job.silent_ranks or not job.ranks:
        silent = f"no answer from {named('rank', job.silent_ranks)}" if job.ranks else "no rank registered with the run"
        yield Found(Kind.RANKS_SILENT, silent)
    sizes = sorted({identity.local_world_size for identity in job.ranks})
    if len(sizes) > 1:
        yield Found(Kind.NODES_UNLIKE, f"nodes differ in their number of ranks: {', '.join(map(str, sizes))}")


def _gpus_without_rank(nodes: Sequence[NodeGpus], declared_gpus: int | None) -> Iterator[Found]:
    wanted = [(node, node.existing if declared_gpus is None else declared_gpus) for node in nodes]
    short = [(node, number) for node, number in wanted if len(node.tested) < number]
    num_missing = sum(number - len(node.tested) for node, number in short)
    for node, _ in short:
        opened = f"ranks opened {len(node.tested)} of {declared_gpus} declared GPUs of {node.host}"
        text = node.untested if declared_gpus is None else opened
        assert text is not None, node.host
        part = text if len(short) == 1 else f"no rank opened {plural(num_missing, 'GPU')} of {len(short)} nodes"
        yield Found(Kind.GPUS_UNTESTED, part, text)
