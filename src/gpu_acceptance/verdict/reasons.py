"""What speaks against ACCEPTED: rows that went wrong, bounds that were not proved, GPUs that nobody tested. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gpu_acceptance.base.text import clip, named
from gpu_acceptance.record.job import Job
from gpu_acceptance.record.outcome import Means, Outcome, Status
from gpu_acceptance.record.row import Judgement, Row
from gpu_acceptance.record.run_record import ControlMessages, Coverage, RunEnd, RunPlan
from gpu_acceptance.record.run_record import ObjectionKind as Kind
from gpu_acceptance.thresholds.contract import JudgedContract, LineState
from gpu_acceptance.thresholds.limit import Profile, plural
from gpu_acceptance.verdict.coverage import DECLARED, NodeGpus, gpus_by_node, gpus_of_several_nodes

FORMATION = "world_formation"  # row 0


@dataclass(frozen=True)
class Found:
    """One thing against ACCEPTED: how the verdict line says it, and in full. The line says the same part only once."""

    kind: Kind
    part: str
    sentence: str
    nodeid: str = ""


def same(kind: Kind, text: str) -> Found:
    return Found(kind, text, text)


def validations(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if is_validation(row.nodeid)]


def is_validation(nodeid: str) -> bool:
    """A row may also be of the suite itself (world_formation, worker_end): what it finds counts, but it is no validation."""
    return "::" in nodeid


def _missed(row: Row) -> list[Judgement]:
    return [judgement for judgement in row.judgements if judgement.status is Status.MISSED]


def rejecting_rows(rows: Sequence[Row], control: ControlMessages | None) -> Iterator[Found]:
    """Failed, died, stuck, missed. A missed limit rejects whatever its row says. A rank may be stuck because a message was lost."""
    missed = {judgement.metric for row in rows for judgement in _missed(row)}
    num_rows = sum(bool(_missed(row)) for row in rows)
    part = f"{plural(len(missed), 'limit')} missed in {_of_all(num_rows, rows)}"
    for row in _by_severity(rows, Means.REJECTS, control):
        if not _only_missed(row):
            yield Found(Kind.VALIDATION, _part_of(row, rows), _sentence(row), row.nodeid)
    for row in rows:
        for judgement in _missed(row):
            yield Found(Kind.LIMIT_MISSED, part, f"{_name(row)}: {judgement.message}", row.nodeid)


def _only_missed(row: Row) -> bool:
    """Whether a row failed by its limits and by nothing else."""
    return row.outcome is Outcome.FAILED and _first_line(row) in {_first_line(judgement) for judgement in _missed(row)}


def incomplete_rows(rows: Sequence[Row], control: ControlMessages | None) -> Iterator[Found]:
    """One sentence for all that say the same: a counter that a machine does not have is missing from every validation."""
    alike: dict[tuple[Outcome, str], list[Row]] = {}
    for row in _by_severity(rows, Means.LEAVES_INCOMPLETE, control):
        alike.setdefault((row.outcome, _first_line(row)), []).append(row)
    for first, *others in alike.values():
        more = f" and {plural(len(others), 'other')}" if others else ""
        yield Found(Kind.VALIDATION, _part_of(first, rows), f"{_name(first)}{more}: {_first_line(first) or first.outcome}", first.nodeid)


def _by_severity(rows: Sequence[Row], means: Means, control: ControlMessages | None) -> list[Row]:
    return sorted((row for row in rows if _means(row.outcome, control) is means), key=lambda row: row.outcome.severity)


def _means(outcome: Outcome, control: ControlMessages | None) -> Means:
    """A rank may be stuck because a message was lost that it waited for: no fault of its own, nor of the hardware."""
    is_excused = outcome is Outcome.STUCK and control is not None and bool(control.lost)
    return Means.LEAVES_INCOMPLETE if is_excused else outcome.means


def _part_of(row: Row, rows: Sequence[Row]) -> str:
    word = row.outcome.phrase
    if not is_validation(row.nodeid):
        return f"{row.nodeid.replace('_', ' ')} {word}"
    alike = sum(other.outcome is row.outcome and not _only_missed(other) for other in validations(rows))
    return f"{_of_all(alike, rows)} {word}"


def _of_all(count: int, rows: Sequence[Row]) -> str:
    return f"{count} of {plural(len(validations(rows)), 'validation')}"


def _sentence(row: Row) -> str:
    return f"{_name(row)}: {_first_line(row) or row.outcome}"


def _first_line(said: Row | Judgement) -> str:
    return said.message.split("\n", 1)[0]


def _name(row: Row) -> str:
    """`test_nccl.py::test_large[all_gather]`: folders left out, parameters kept."""
    path, colons, test = row.nodeid.partition("::")
    return f"{path.rsplit('/', 1)[-1]}{colons}{test}"


def broken_off(measure_only: bool, end: RunEnd) -> Iterator[Found]:
    if end.not_written is not None:
        yield same(Kind.NOT_WRITTEN, clip(end.not_written))
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
    """What strangers did to the messages between ranks, so that what was concluded from these is not proved."""
    if control:
        yield from _lost_messages(control)
        yield from _disputed_records(control)


def _lost_messages(control: ControlMessages) -> Iterator[Found]:
    """Messages between ranks that were sent and are not there: what was concluded without them is not proved."""
    if control.lost:
        kinds = ", ".join(f"{kind}: {number}" for kind, number in sorted(control.lost.items()))
        number = plural(sum(control.lost.values()), "control message")
        yield Found(
            Kind.MESSAGES_LOST, "control messages lost", f"{number} deleted or overwritten in the control store by a stranger ({kinds})"
        )


def _disputed_records(control: ControlMessages) -> Iterator[Found]:
    """Ranks that told something else of themselves than rank 0 judged."""
    for one in control.disputed:
        what = f"{one.nodeid} (attempt {one.attempt}): it told {one.told}, and {one.judged} was judged"
        yield Found(Kind.TOLD_OTHERWISE, f"{plural(len(control.disputed), 'rank')} told otherwise", f"rank {one.rank} objects to {what}")


def uncollected(sentences: Sequence[str]) -> Iterator[Found]:
    """Test files that gave no validations: nobody knows what they would have asked."""
    part = f"{plural(len(sentences), 'file')} not collected"
    yield from (Found(Kind.NOT_COLLECTED, part, sentence) for sentence in sentences)


def unproved(rows: Sequence[Row], limits: Sequence[Judgement], coverage: Coverage, profile: Profile) -> Iterator[Found]:
    """Expected bounds that did not hold, and that nobody declared away."""
    open_limits = [limit for limit in limits if limit.status not in DECLARED | {Status.HELD, Status.MISSED}]
    consulted = {(judgement.metric, judgement.bound) for row in rows for judgement in row.judgements}
    never = [limit for limit in open_limits if (limit.metric, limit.bound) not in consulted]
    if never:
        yield Found(Kind.NEVER_MEASURED, f"{plural(len(never), 'limit')} never measured", f"never measured: {_metrics(never)}")
    unjudged = [limit for limit in open_limits if limit not in never]
    if unjudged:
        yield Found(Kind.NOT_JUDGED, f"{plural(len(unjudged), 'limit')} not judged", f"measured but not judged: {_metrics(unjudged)}")
    if not coverage.limits_judged:
        yield Found(Kind.NOTHING_PROVED, "no limit held", f"no limit of profile {profile.name} held: nothing was proved")


def _metrics(limits: Iterable[Judgement]) -> str:
    return ", ".join(sorted({limit.metric for limit in limits}))


def contract_missed(contract: JudgedContract | None) -> Iterator[Found]:
    yield from _of_contract(contract, LineState.MISSED)


def contract_not_tested(contract: JudgedContract | None) -> Iterator[Found]:
    """Lines that the contract's own file does not excuse."""
    yield from _of_contract(contract, LineState.NOT_TESTED)


def _of_contract(contract: JudgedContract | None, state: LineState) -> Iterator[Found]:
    lines = [one for one in contract.unanswered if one.state is state] if contract else []
    for one in lines:
        part = f"{plural(len(lines), 'contract line')} {one.state}"
        yield Found(Kind.CONTRACT, part, f"contract line {one.line.number} ({one.line.text}) {one.state}: {'; '.join(one.reasons)}")


def untested(plan: RunPlan, job: Job, coverage: Coverage) -> Iterator[Found]:
    """Nodes that were expected, ranks that never spoke, and GPUs that exist and were not tested."""
    profile = plan.profile
    yield from _absent(plan, job)
    if profile.device_name is None and coverage.gpus_existing:
        yield same(Kind.WRONG_PROFILE, f"profile {profile.name} is for no GPU, and {plural(coverage.gpus_existing, 'GPU')} can be seen")
    elif profile.device_name is not None and not coverage.gpus_tested:
        yield same(Kind.GPUS_UNTESTED, f"profile {profile.name} is for {profile.device_name}, and no rank opened a GPU")
    else:
        yield from (same(Kind.WRONG_PROFILE, text) for text in _other_gpus(job, profile))


def _absent(plan: RunPlan, job: Job) -> Iterator[Found]:
    """Nodes that never came, ranks that never spoke, nodes with fewer of them, GPUs without one, GPUs that are another node's as well."""
    if plan.expected_nodes not in {None, job.num_nodes}:
        yield same(Kind.NODES_ABSENT, f"{plural(job.num_nodes, 'node')} took part, and --expect-nodes wants {plan.expected_nodes}")
    if job.silent_ranks or not job.ranks:
        silent = f"no answer from {named('rank', job.silent_ranks)}" if job.ranks else "no rank registered with the run"
        yield same(Kind.RANKS_SILENT, silent)
    sizes = sorted({identity.local_world_size for identity in job.ranks})
    if len(sizes) > 1:
        yield same(Kind.NODES_UNLIKE, f"nodes differ in their number of ranks: {', '.join(map(str, sizes))}")
    nodes = gpus_by_node(job)
    yield from _gpus_without_rank(nodes, plan.declared_gpus)
    yield from (same(Kind.GPUS_SHARED, text) for text in gpus_of_several_nodes(nodes))


def _gpus_without_rank(nodes: Sequence[NodeGpus], declared_gpus: int | None) -> Iterator[Found]:
    wanted = [(node, node.existing if declared_gpus is None else declared_gpus) for node in nodes]
    short = [(node, number) for node, number in wanted if len(node.tested) < number]
    num_missing = sum(number - len(node.tested) for node, number in short)
    for node, _ in short:
        tested = f"{len(node.tested)} of {declared_gpus} declared GPUs of {node.host}"
        text = node.untested if declared_gpus is None else f"ranks opened {tested}"
        assert text is not None, node.host
        yield Found(
            Kind.GPUS_UNTESTED, text if len(short) == 1 else f"no rank opened {plural(num_missing, 'GPU')} of {len(short)} nodes", text
        )


def _other_gpus(job: Job, profile: Profile) -> Iterator[str]:
    """GPUs that the profile is not made for."""
    ranks_of: dict[str, list[int]] = {}
    for rank, identity in job.by_rank.items():
        if identity.gpu and identity.gpu.name != profile.device_name:
            ranks_of.setdefault(identity.gpu.name, []).append(rank)
    for name, ranks in sorted(ranks_of.items()):
        yield f"profile {profile.name} is for {profile.device_name}, and there is {name} on {job.who(ranks)}"
