"""Rank records + judgements -> one row of the report: the outcome over all ranks, causes before victims. Pure."""

import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Protocol

from gpu_acceptance.base.text import clip, first_few
from gpu_acceptance.inventory.needs import COMPILER, OLDEST
from gpu_acceptance.record.job import Job
from gpu_acceptance.record.outcome import Outcome, Status
from gpu_acceptance.record.row import FORMING, Attempt, Judgement, RankRecord, Row
from gpu_acceptance.thresholds.limit import COUNTERS, Profile, first_of, matching_reason, plural, subject_of, subject_of_metric
from gpu_acceptance.verdict.attempts import bare_row, where
from gpu_acceptance.verdict.bounds import JUDGED_OUTCOMES, quantity
from gpu_acceptance.verdict.judge import judge, settle
from gpu_acceptance.verdict.reasons import FORMATION, is_validation

_PREFIX, _HARMLESS = "NCCL_", "NCCL_DEBUG"  # what is logged, and where
_MOST_VARIABLES, _MOST_CHARACTERS = 4, 80
_UNSET = "not set"
_OUTCOME_OF = {
    Status.MISSED: Outcome.FAILED,
    Status.INVALID: Outcome.ERROR,
    Status.UNSTABLE: Outcome.UNSTABLE,
    Status.NO_LIMIT: Outcome.NO_LIMIT,
    Status.NOT_MEASURED: Outcome.NOT_MEASURED,
}
_NO_CAUSE = {Outcome.PASSED, Outcome.VICTIM}
_MOST_LINES = 6
_MOST_HOSTS = 4
_HEADERS = "a compiler with the headers of this Python (Debian, Ubuntu: apt-get install g++ python3-dev)"


def unlike_variables(job: Job) -> str:
    """`NCCL_P2P_DISABLE is not set on rank 0 (...), '1' on rank 1 (...)`; empty where the ranks of each node agree."""
    told = [f"{name} is {', '.join(_values(job, name, ranks))}" for name, ranks in _differing(job)]
    return "; ".join(first_few(told, _MOST_VARIABLES, "and {} more"))


def _differing(job: Job) -> Iterator[tuple[str, list[int]]]:
    """Each name with the ranks of the first node on which its value is not the same everywhere."""
    names = {name for identity in job.ranks for name in identity.environment}
    for name in sorted(name for name in names if name.startswith(_PREFIX) and not name.startswith(_HARMLESS)):
        for node in job.nodes:
            ranks = [rank for rank, identity in job.by_rank.items() if identity.node == node]
            if len({job.by_rank[rank].environment.get(name) for rank in ranks}) > 1:
                yield name, ranks
                break


def _values(job: Job, name: str, ranks: list[int]) -> Iterator[str]:
    ranks_of: dict[str, list[int]] = defaultdict(list)
    for rank in ranks:
        value = job.by_rank[rank].environment.get(name)
        ranks_of[_UNSET if value is None else repr(value[:_MOST_CHARACTERS])].append(rank)
    return (f"{value} on {job.who(who)}" for value, who in ranks_of.items())


@dataclass(frozen=True)
class _Cause:
    outcome: Outcome
    text: str


@dataclass(frozen=True)
class _Answer:
    """What one rank said in one attempt; silence is an answer too."""

    rank: int
    outcome: Outcome
    text: str  # without who said it


def make_row(
    nodeid: str,
    attempts: Sequence[Attempt],
    profile: Profile,
    job: Job,
    waivers: Mapping[str, str],
    deadline_s: float,
    *,
    measure_only: bool = False,
    rebuilt: bool = False,
) -> Row:
    """The row of one validation that was attempted. `measure_only` judges nothing; `rebuilt`: journals alone tell of the attempts."""
    judgements = () if measure_only else judge(attempts, profile, job, waivers, subject_of(nodeid))
    if rebuilt:
        judgements = settle(judgements, attempts)
    causes = [*_causes_of_attempts(nodeid, attempts, profile, job), *_causes_of_limits(judgements)]
    outcome = min((cause.outcome for cause in causes), key=attrgetter("severity"), default=Outcome.NOT_RUN)
    own = [judgement for judgement in judgements if subject_of_metric(judgement.metric) != COUNTERS]
    if outcome is Outcome.PASSED and own and all(judgement.status is not Status.HELD for judgement in own):
        outcome = Outcome.NOT_APPLICABLE  # nothing was left to hold
    return Row(
        nodeid=nodeid,
        subject=subject_of(nodeid),
        outcome=outcome,
        message=clip("\n".join([*_why(nodeid, attempts, job), *_lines(causes, judgements, outcome), *_ras(attempts)])),
        duration_s=sum(max((record.duration_s for record in attempt.ranks), default=0.0) for attempt in attempts),
        deadline_s=deadline_s,
        attempts=tuple(attempts),
        judgements=judgements,
    )


def told_by_ranks(row: Row, profile: Profile, job: Job) -> str:
    """Of the message of a row what none of its limits says: what its ranks said, and what of the job explains it."""
    if not row.attempts:
        return row.message
    causes = _causes_of_attempts(row.nodeid, row.attempts, profile, job)
    return clip("\n".join([*_why(row.nodeid, row.attempts, job), *_lines(causes, (), row.outcome), *_ras(row.attempts)]))


def validation_of(nodeid: str) -> str:
    """`nccl.large` of `acceptance/test_nccl.py::test_large[all_gather]`: what a declaration of it must match."""
    function = nodeid.split("[", 1)[0].rsplit("::", 1)[-1]
    return f"{subject_of(nodeid)}.{function.removeprefix('test_')}"


def declared_reason(nodeid: str, not_applicable: Mapping[str, str]) -> str | None:
    """Why this validation may be skipped, or None where no profile or overlay said so beforehand. A waiver is of metrics alone."""
    return matching_reason(validation_of(nodeid), not_applicable)


def _answers(attempts: Sequence[Attempt], job: Job, declared: str | None) -> Iterator[_Answer]:
    for attempt in attempts:
        again = f" of attempt {attempt.number}" if len(attempts) > 1 else ""
        silent = set(range(job.world_size)) - {record.rank for record in attempt.ranks}
        for rank in sorted(silent):
            yield _Answer(rank, Outcome.LOST, f"lost{again}: no answer")
        for record in sorted(attempt.ranks, key=lambda record: (record.rank, record.outcome)):
            if record.rank >= job.world_size:
                yield _Answer(record.rank, Outcome.ERROR, f"error: answers in a job of {job.world_size} ranks")
            elif record.outcome is Outcome.SKIPPED and declared is not None:
                told = f" ({record.message})" if record.message else ""
                yield _Answer(record.rank, Outcome.NOT_APPLICABLE, f"not applicable: {declared}{told}")
            else:
                yield _Answer(record.rank, record.outcome, _describe(record, again))


def _describe(record: RankRecord, again: str) -> str:
    """`died in call: exit code -11`; of a stuck rank also where it stands."""
    if record.outcome is Outcome.VICTIM:
        said = essence(record.message) if record.stack else "a peer failed first"  # an exception of its own is an echo
        return f"{said}{_risen(record)}"  # what its GPU reports may be why the peer failed
    phase = f" in {record.phase}{again}" if record.phase else again
    place = where(record.stack) if record.outcome is Outcome.STUCK else ""
    frames = f"; inside {place}" if place else ""
    message = f": {essence(record.message)}" if record.message else ""
    return f"{record.outcome}{phase}{message}{frames}{_risen(record)}"


def _risen(record: RankRecord) -> str:
    """What rose on the GPU of a rank that did not come to its end; of the others the limits speak."""
    if record.outcome in JUDGED_OUTCOMES:
        return ""
    risen = [one for one in record.counters if one.judged and one.value]
    named = "; ".join(f"{one.metric} = {quantity(one)}{f' ({one.detail})' if one.detail else ''}" for one in risen)
    return f"; on its GPU meanwhile: {named}" if named else ""


def essence(message: str) -> str:
    """Of a traceback by pytest the lines that say what is wrong and where; of anything else the first lines."""
    lines = message.strip().splitlines()
    errors = [line[1:].strip() for line in lines if line.startswith("E  ")]
    if errors:
        return "\n".join([*errors[:_MOST_LINES], lines[-1].strip()])
    return "\n".join([*lines[:_MOST_LINES], *(["..."] if len(lines) > _MOST_LINES else [])])


def _causes_of_attempts(nodeid: str, attempts: Sequence[Attempt], profile: Profile, job: Job) -> list[_Cause]:
    answers = list(_answers(attempts, job, declared_reason(nodeid, profile.not_applicable)))
    return [*_causes_of_ranks(answers, job), *_causes_of_silence(nodeid, attempts)]


def _causes_of_ranks(answers: Sequence[_Answer], job: Job) -> Iterator[_Cause]:
    """One cause for all ranks that say the same. Passed ranks have nothing to say."""
    ranks_of: dict[tuple[Outcome, str], list[int]] = defaultdict(list)
    for answer in answers:
        text = "" if answer.outcome is Outcome.PASSED else answer.text
        ranks_of[answer.outcome, text].append(answer.rank)
    for (outcome, text), ranks in sorted(ranks_of.items(), key=lambda item: (item[0][0].severity, item[1], item[0][1])):
        yield _Cause(outcome, f"{job.who(ranks)}: {'victim: ' if outcome is Outcome.VICTIM else ''}{text}" if text else "")
    by_outcome = {outcome: [answer.rank for answer in answers if answer.outcome is outcome] for outcome in Outcome}
    passed, aside = by_outcome[Outcome.PASSED], by_outcome[Outcome.NOT_APPLICABLE]
    if passed and aside:
        yield _Cause(Outcome.ERROR, f"ranks disagree: passed on {job.who(passed)}, not applicable on {job.who(aside)}")


def _causes_of_silence(nodeid: str, attempts: Sequence[Attempt]) -> Iterator[_Cause]:
    """A pass without a figure would say that something was measured. What supervisors read of counters is none of a validation's."""
    silent = [attempt for attempt in attempts if all(one.outcome is Outcome.PASSED and not one.figures for one in attempt.ranks)]
    if silent and is_validation(nodeid):
        yield _Cause(Outcome.ERROR, "no figure: it passed on all ranks, and none checked or recorded anything")


def _causes_of_limits(judgements: Iterable[Judgement]) -> Iterator[_Cause]:
    for judgement in judgements:
        if judgement.status in _OUTCOME_OF:
            yield _Cause(_OUTCOME_OF[judgement.status], judgement.message)


def _lines(causes: Iterable[_Cause], judgements: Iterable[Judgement], outcome: Outcome) -> list[str]:
    """What decided, worst first; then victims; then what was waived; what does not apply only where that is all there is to say."""
    shown = {cause.text: None for cause in sorted(causes, key=lambda cause: cause.outcome.severity) if _is_said(cause, outcome)}
    aside = {Status.WAIVED} | ({Status.NOT_APPLICABLE} if outcome is Outcome.NOT_APPLICABLE else set())
    return [*shown, *(judgement.message for judgement in judgements if judgement.status in aside)]


def _why(nodeid: str, attempts: Sequence[Attempt], job: Job) -> list[str]:
    """First where the group did not form: who crashed in it is as a rule not who was set up otherwise."""
    if not _broke_while_forming(nodeid, attempts):
        return []
    unlike = unlike_variables(job)
    return [*([f"ranks of one node differ in what NCCL is told: {unlike}"] if unlike else []), *_own_names(job)]


def formed_unlike(nodeid: str, attempts: Sequence[Attempt], job: Job) -> bool:
    """Whether the group did not form, and ranks of one node differ in what NCCL is told."""
    return _broke_while_forming(nodeid, attempts) and bool(unlike_variables(job))


def _broke_while_forming(nodeid: str, attempts: Sequence[Attempt]) -> bool:
    """What came before asked no NCCL."""
    bad = (record for attempt in attempts for record in attempt.ranks if record.outcome not in _NO_CAUSE)
    return nodeid == FORMATION and any(record.phase == FORMING for record in bad)


def _own_names(job: Job) -> Iterator[str]:
    """Nodes at whose own name gloo offers a loopback address to the others. Many clusters work all the same, through other interfaces."""
    first = [ranks[0] for ranks in job.by_node.values() if job.num_nodes > 1]
    found = [one for one in first if one.own_loopback_address and "GLOO_SOCKET_IFNAME" not in one.environment]
    if found:
        hosts = first_of([f"node {one.node} ({one.host})" for one in found], _MOST_LINES)
        address = found[0].own_loopback_address
        yield f"/etc/hosts sends the own name to {address} on {hosts}: gloo may wait there, unless GLOO_SOCKET_IFNAME is set"


def _ras(attempts: Sequence[Attempt]) -> list[str]:
    """What NCCL said of the first hang: asked by one rank of each node, it speaks of the whole job."""
    told = [(attempt.number, record.rank, record.ras) for attempt in attempts for record in attempt.ranks if record.ras]
    return [f"NCCL RAS, asked by rank {rank}: {text}" for _, rank, text in sorted(told)[:1]]


def _is_said(cause: _Cause, outcome: Outcome) -> bool:
    return bool(cause.text) and (cause.outcome is not Outcome.NOT_APPLICABLE or outcome is Outcome.NOT_APPLICABLE)


class Needing(Protocol):
    """A validation, as it is planned or run."""

    @property
    def nodeid(self) -> str: ...

    @property
    def deadline_s(self) -> float: ...

    @property
    def needs(self) -> tuple[str, ...]: ...


@dataclass(frozen=True)
class Unmet:
    """One thing that a node lacks and validations need. `found`: host -> what there is instead, empty where there is nothing."""

    need: str
    found: Mapping[str, str]
    python: str  # of the first of these hosts
    nodeids: tuple[str, ...]

    @property
    def what(self) -> str:
        """`transformers 5.0 or newer`."""
        return f"{self.need} {OLDEST[self.need]} or newer" if self.need in OLDEST else f"a {self.need}"

    @property
    def seen(self) -> str:
        """`node-01 has none`, `node-01, node-02 have 4.57.1`."""
        hosts_of: dict[str, list[str]] = {}
        for host, found in self.found.items():
            hosts_of.setdefault(found, []).append(host)
        return ", ".join(self._seen(found, hosts) for found, hosts in hosts_of.items())

    def _seen(self, found: str, hosts: Sequence[str]) -> str:
        there = f"none that works ({found})" if self.need == COMPILER else found or "none"
        return f"{first_of(hosts, _MOST_HOSTS)} {'has' if len(hosts) == 1 else 'have'} {there}"


def unmet_needs(validations: Iterable[Needing], job: Job) -> tuple[Unmet, ...]:
    """Everything that any node lacks of what these validations need, in the order in which they need it."""
    nodeids_of: dict[str, list[str]] = {}
    for validation in validations:
        for need in validation.needs:
            nodeids_of.setdefault(need, []).append(validation.nodeid)
    return tuple(_unmet(need, nodeids, job) for need, nodeids in nodeids_of.items() if any(need in one.lacks for one in job.ranks))


def _unmet(need: str, nodeids: Sequence[str], job: Job) -> Unmet:
    lacking = [one for one in job.by_rank.values() if need in one.lacks]
    return Unmet(need, {one.host: one.lacks[need] for one in lacking}, lacking[0].python, tuple(nodeids))


def has_all(validation: Needing, job: Job) -> bool:
    """Whether every rank has what a validation needs."""
    return not any(need in one.lacks for need in validation.needs for one in job.ranks)


def row_of_lack(validation: Needing, job: Job, not_applicable: Mapping[str, str]) -> Row | None:
    """`needs transformers 5.0 or newer, and node-01 has none; install it there: ...`; None where every rank has what it needs.

    What `not_applicable` declares away is not missed.
    """
    unmet = unmet_needs([validation], job)
    if not unmet:
        return None
    why = "; ".join([*(f"needs {one.what}, and {one.seen}" for one in unmet), *_installs(unmet)])
    if declared := declared_reason(validation.nodeid, not_applicable):
        return bare_row(validation.nodeid, Outcome.NOT_APPLICABLE, f"not applicable: {declared} ({why})", validation.deadline_s)
    row = bare_row(validation.nodeid, Outcome.NOT_RUN, why, validation.deadline_s)
    return row.model_copy(update={"lacks": tuple(one.need for one in unmet)})


def announcement(unmet: Unmet) -> str:
    """What is missing where, and what will not run because of it, in one line."""
    subjects = ", ".join(dict.fromkeys(map(subject_of, unmet.nodeids)))
    number = plural(len(unmet.nodeids), "validation")
    return "; ".join([f"{unmet.what} ({unmet.seen}): {number} will not run ({subjects})", *_installs([unmet])])


def _installs(unmet: Sequence[Unmet]) -> Iterator[str]:
    packages = [one for one in unmet if one.need in OLDEST]
    if packages:
        names = [f"{one.need}>={OLDEST[one.need]}" for one in packages]
        command = shlex.join([packages[0].python or "python3", "-m", "pip", "install", *names])
        yield f"install {'it' if len(packages) == 1 else 'them'} there: {command}"
    if any(one.need == COMPILER for one in unmet):
        yield f"install there: {_HEADERS}"
