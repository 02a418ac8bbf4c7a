"""Coverage of a run: bounds that had to be judged and were, over nodes, GPUs and limits; and the state of each line of a contract."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from gpu_acceptance.base.text import clip, first_few, named, plural
from gpu_acceptance.inventory.gpu import Gpu
from gpu_acceptance.record.figure import Figure
from gpu_acceptance.record.job import Job
from gpu_acceptance.record.outcome import Outcome, Status
from gpu_acceptance.record.row import Judgement, Row
from gpu_acceptance.record.run_record import Coverage
from gpu_acceptance.thresholds.contract import Contract, ContractLine, JudgedContract, JudgedLine, LineState
from gpu_acceptance.thresholds.limit import Limit, Profile, is_number, matching_reason, subject_of_metric, with_unit
from gpu_acceptance.verdict.bounds import Reading, bounds_of, find_beyond
from gpu_acceptance.verdict.judge import blank, num_peer_metrics, waived, why_no_limit

DECLARED = {Status.NOT_APPLICABLE, Status.WAIVED}
_SIGNS = {"at_least": 1, "at_most": -1}
_HARMLESS = {Status.HELD, Status.NOT_APPLICABLE}
_MOST_REASONS = 4
_MOST_TEXT = 1_000  # characters of one reason


def judge_run(rows: Sequence[Row], profile: Profile, job: Job, waivers: Mapping[str, str]) -> tuple[Judgement, ...]:
    """Return every bound that applies to this job and is required or was judged, with the worst judgement of all rows.

    A test that asks for a larger job excuses none of them: the profile asks for the limit at this size.
    """
    judged: dict[tuple[str, str], list[Judgement]] = {}
    for row in rows:
        for judgement in row.judgements:
            judged.setdefault((judgement.metric, judgement.bound), []).append(judgement)
    found, num_metrics = [], num_peer_metrics(profile)
    for limit in applying_limits(profile, job):
        aside = _declared_aside(limit.metric, profile, waivers)
        for bound in bounds_of(limit):
            if results := judged.get((limit.metric, bound)):
                found.append(min(results, key=lambda one: (one.status.severity, one.margin is None, one.margin or 0.0, one.message)))
            elif limit.subject in profile.requires and aside and aside[0] is Status.NOT_APPLICABLE:
                found.append(blank(bound, limit, job, num_metrics, aside[0], f"{limit.metric}: not applicable: {aside[1]}"))
            elif limit.subject in profile.requires:
                never = blank(bound, limit, job, num_metrics, Status.NOT_MEASURED, f"{limit.metric}: never measured")
                found.append(waived(never, aside[1]) if aside else never)
    return tuple(found)


def applying_limits(profile: Profile, job: Job) -> list[Limit]:
    """Return the limits that apply to a job of this shape, by metric."""
    return [limit for _, limit in sorted(profile.limits.items()) if limit.applies(job.gpus_per_node, job.num_nodes)]


def _declared_aside(name: str, profile: Profile, waivers: Mapping[str, str]) -> tuple[Status, str] | None:
    """Return how and why a metric or subject was excused before the run, or None."""
    for status, reasons in ((Status.WAIVED, waivers), (Status.NOT_APPLICABLE, profile.not_applicable)):
        if (reason := matching_reason(name, reasons)) is not None:
            return status, reason
    return None


def left_out(rows: Iterable[Row], profile: Profile, not_applicable_subjects: Mapping[str, str]) -> dict[str, str]:
    """Return required subjects that did not run because this job is too small, with the reason; each of their rows must say so."""
    outcomes: dict[str, set[Outcome]] = {}
    for row in rows:
        outcomes.setdefault(row.subject, set()).add(row.outcome)
    small = {subject for subject, found in outcomes.items() if found == {Outcome.NOT_APPLICABLE}}
    return {subject: not_applicable_subjects[subject] for subject in sorted(profile.requires & small & not_applicable_subjects.keys())}


def subjects_without_limit(
    rows: Iterable[Row], profile: Profile, job: Job, waivers: Mapping[str, str], not_applicable_subjects: Mapping[str, str]
) -> list[str]:
    """Return one text per required subject without any limit for a job of this shape, unless it was excused before the run."""
    small = left_out(rows, profile, not_applicable_subjects)
    covered = {limit.subject for limit in applying_limits(profile, job)}
    texts = []
    for subject in sorted(profile.requires - covered):
        limits = [limit for _, limit in sorted(profile.limits.items()) if limit.subject == subject]
        names = [limit.metric for limit in limits] or [f"{subject}.*"]
        if subject in small or all(_declared_aside(name, profile, waivers) for name in names):
            continue
        sizes = sorted({size for limit in limits for size in limit.listed_sizes()})
        if not limits:
            where = f"in profile {profile.name}"
        elif sizes and job.gpus_per_node not in sizes:
            where = f"at {job.gpus_per_node} GPUs per node; listed: {', '.join(map(str, sizes))}"
        else:
            where = f"on {plural(job.num_nodes, 'node')} of {job.gpus_per_node} GPUs: {why_no_limit(limits[0], job)}"
        texts.append(f"no limit of {subject} {where}")
    return texts


@dataclass(frozen=True)
class NodeGpus:
    """The GPUs of one node by key: UUID, else index. `existing` also counts GPUs that only the PCI bus shows."""

    host: str
    existing: int
    shown: Mapping[str, Gpu]
    tested: frozenset[str]

    @property
    def untested(self) -> str | None:
        """Return `no rank opened GPUs 4-7 of node-01`, or None if each was opened."""
        if len(self.tested) >= self.existing:
            return None
        indexes = {gpu.index for key, gpu in self.shown.items() if key not in self.tested}
        hidden = self.existing - len(self.tested) - len(indexes)
        if not indexes:
            return f"no rank opened {plural(hidden, 'GPU')} of {self.host}, unseen by NVML"
        also = f" and {hidden} unseen by NVML" if hidden > 0 else ""
        return f"no rank opened {named('GPU', indexes)} of {self.host}{also}"


def gpus_by_node(job: Job) -> list[NodeGpus]:
    """Return the GPUs that exist on each node, and those that a worker opened. Two ranks on one GPU test one GPU."""
    nodes = []
    for node, identities in job.by_node.items():
        shown = {_key(gpu): gpu for identity in identities for gpu in identity.gpus}
        opened = {_key(identity.gpu) if identity.gpu else identity.gpu_uuid for identity in identities if identity.gpu_uuid}
        existing = max(len(shown), len(opened), *(identity.num_gpus for identity in identities))
        nodes.append(NodeGpus(job.host(node), existing, shown, frozenset(opened)))
    return nodes


def gpus_of_several_nodes(nodes: Iterable[NodeGpus]) -> Iterator[str]:
    """Yield `node-00 and node-01 opened the same GPU 3`: nodes on one machine, or pods that share a GPU, prove only part of their GPUs."""
    hosts_of: dict[str, list[NodeGpus]] = {}
    for node in nodes:
        for key in node.tested & node.shown.keys():
            if node.shown[key].uuid:  # an index alone names another GPU on each node
                hosts_of.setdefault(key, []).append(node)
    uuids_of: dict[tuple[str, ...], list[int]] = {}
    for uuid, sharing in sorted(hosts_of.items()):
        if len(sharing) > 1:
            uuids_of.setdefault(tuple(node.host for node in sharing), []).append(sharing[0].shown[uuid].index)
    for hosts, indexes in sorted(uuids_of.items()):
        yield f"{' and '.join(hosts)} opened the same {named('GPU', indexes)}"


def _key(gpu: Gpu) -> str:
    return gpu.uuid or f"index {gpu.index}"


def make_coverage(limits: Iterable[Judgement], required: frozenset[str], job: Job) -> Coverage:
    """Count nodes, ranks, GPUs and bounds. A bound that was declared away was not expected."""
    expected = [limit for limit in limits if subject_of_metric(limit.metric) in required and limit.status not in DECLARED]
    gpus = gpus_by_node(job)
    return Coverage(
        nodes=job.num_nodes,
        ranks=len(job.by_rank),
        gpus_existing=sum(node.existing for node in gpus),
        gpus_tested=sum(len(node.tested) for node in gpus),
        limits_expected=len(expected),
        limits_judged=sum(limit.status in (Status.HELD, Status.MISSED) for limit in expected),
        limits_held=sum(limit.status is Status.HELD for limit in expected),
    )


def judge_contract(contract: Contract, limits: Sequence[Judgement], num_nodes: int, not_applicable: Mapping[str, str]) -> JudgedContract:
    """`limits`: every bound judged over the whole run. `not_applicable`: glob -> reason, as the profile declares."""
    lines = []
    for line in contract.lines:
        state, reasons, declared = _judge_line(line, limits, num_nodes, not_applicable)
        texts = [clip(reason, _MOST_TEXT) for reason in dict.fromkeys(reasons)]
        shown = tuple(first_few(texts, _MOST_REASONS, "and {} more"))
        lines.append(JudgedLine(line=line, state=state, reasons=shown, declared=declared))
    return JudgedContract(file=contract.file, sha256=contract.sha256, title=contract.title, lines=tuple(lines))


def limits_of(line: ContractLine, limits: Iterable[Judgement]) -> list[Judgement]:
    """Return the bounds that a line names, each once."""
    return [one for one in limits if any(fnmatchcase(one.metric, glob) for glob in line.metrics)]


def _judge_line(
    line: ContractLine, limits: Sequence[Judgement], num_nodes: int, not_applicable: Mapping[str, str]
) -> tuple[LineState, Sequence[str], bool]:
    """Return a line's state, the reasons for it, and whether its own file or the size of the run excuses it."""
    if line.not_tested:
        return LineState.NOT_TESTED, [line.not_tested], True
    if line.nodes != "any" and (line.nodes == "one") != (num_nodes == 1):
        wanted = "one node" if line.nodes == "one" else "several nodes"
        return LineState.NOT_TESTED, [f"it asks for a run of {wanted}, and this one is of {plural(num_nodes, 'node')}"], True
    bounds = limits_of(line, limits)
    missed = [*(one.message for one in bounds if one.status is Status.MISSED), *_beyond(line, bounds)]
    if missed:
        return LineState.MISSED, missed, False
    unproved = [
        *(one.message for one in bounds if one.status not in _HARMLESS),
        *_silent(line, bounds, not_applicable),
        *_uncompared(line, bounds),
    ]
    return LineState.NOT_TESTED if unproved else LineState.MET, unproved, False


def _beyond(line: ContractLine, bounds: Iterable[Judgement]) -> Iterator[str]:
    """Yield figures that hold their limit but miss the contract's bound."""
    for one in bounds:
        if one.status is Status.HELD and one.bound in _SIGNS and is_number(one.value):
            asked: float | None = getattr(line, one.bound)
            reading = Reading(0, 1, Figure(metric=one.metric, value=one.value, unit=one.unit, judged=True), 0)
            finding = asked is not None and find_beyond([reading], asked, _SIGNS[one.bound])
            if finding and finding.missed:
                need = with_unit(finding.need, line.unit)
                yield f"{one.metric} = {with_unit(finding.shown, one.unit)}, the contract asks for {need}; its limit, {one.need}, held"


def _silent(line: ContractLine, bounds: Sequence[Judgement], not_applicable: Mapping[str, str]) -> Iterator[str]:
    """Yield globs that match no judged bound, with the declared reason if there is one."""
    for glob in line.metrics:
        matched = [one for one in bounds if fnmatchcase(one.metric, glob)]
        if not matched:
            reason = matching_reason(glob, not_applicable)  # of all that it could match
            yield f"{glob}: not applicable: {reason}" if reason else f"{glob} is not part of this run"
        elif all(one.status is Status.NOT_APPLICABLE for one in matched):
            yield from (one.message for one in matched)


def _uncompared(line: ContractLine, bounds: Sequence[Judgement]) -> Iterator[str]:
    """Yield metrics without a judged figure that the contract's bound could be compared with."""
    held = [one for one in bounds if one.status is Status.HELD]
    for bound in _SIGNS:
        if getattr(line, bound) is not None:
            compared = {one.metric for one in held if one.bound == bound and one.unit == line.unit}
            yield from (
                f"{metric}: no figure in {line.unit} was judged by {bound}" for metric in sorted({one.metric for one in held} - compared)
            )
