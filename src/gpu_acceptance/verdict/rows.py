"""Rank records and judgements give one row of the report: the outcome over all ranks. attempts.py has told victims. Pure."""

import shlex
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpu_acceptance.base.text import clip, first_few, plural
from gpu_acceptance.inventory.needs import COMPILER, OLDEST
from gpu_acceptance.record.job import Job
from gpu_acceptance.record.outcome import Outcome, Status
from gpu_acceptance.record.row import FORMING, Attempt, Judgement, RankRecord, Row
from gpu_acceptance.record.run_record import PlannedValidation
from gpu_acceptance.thresholds.limit import COUNTERS, Profile, first_of, matching_reason, subject_of, subject_of_metric, validation_of
from gpu_acceptance.verdict import busy
from gpu_acceptance.verdict.attempts import all_passed, bare_row, too_small, where
from gpu_acceptance.verdict.bounds import JUDGED_OUTCOMES, quantity
from gpu_acceptance.verdict.judge import judge, settle
from gpu_acceptance.verdict.reasons import FORMATION, is_validation

_PREFIX, _HARMLESS = "NCCL_", "NCCL_DEBUG"  # the second decides what NCCL logs, and where
_MOST_VARIABLES, _MOST_CHARACTERS = 4, 80
_OUTCOME_OF = {
    Status.MISSED: Outcome.FAILED,
    Status.INVALID: Outcome.ERROR,
    Status.UNSTABLE: Outcome.UNSTABLE,
    Status.NO_LIMIT: Outcome.NO_LIMIT,
    Status.NOT_MEASURED: Outcome.NOT_MEASURED,
}
_NO_CAUSE = {Outcome.PASSED, Outcome.VICTIM}
HOST_BOUND = {"launch", "nccl", "nccl_sizes", "pcie", "sampler"}  # subjects whose figures a busy host changes
TOLD_SHARE = 0.1
_MOST_LINES = 6
_MOST_HOSTS = 4
_HEADERS = "a compiler with the headers of this Python (Debian, Ubuntu: apt-get install g++ python3-dev)"
_Cause = tuple[Outcome, str]


def environment_mismatch(job: Job) -> str:
    """Return `NCCL_P2P_DISABLE is not set on rank 0 (...), '1' on rank 1 (...)`; empty if the ranks of each node agree."""
    names = {name for identity in job.ranks for name in identity.environment}
    texts = []
    for name in sorted(name for name in names if name.startswith(_PREFIX) and not name.startswith(_HARMLESS)):
        nodes = ({one.rank: one.environment.get(name) for one in ranks} for ranks in job.by_node.values())
        values = next((values for values in nodes if len(set(values.values())) > 1), {})
        ranks_of: dict[str, list[int]] = defaultdict(list)
        for rank, value in values.items():
            ranks_of["not set" if value is None else repr(value[:_MOST_CHARACTERS])].append(rank)
        if values:
            texts.append(f"{name} is {', '.join(f'{value} on {job.who(ranks)}' for value, ranks in ranks_of.items())}")
    return "; ".join(first_few(texts, _MOST_VARIABLES, "and {} more"))


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
    """Return the row of a validation that was attempted. `measure_only` judges nothing; `rebuilt`: only journals tell the attempts."""
    judgements = () if measure_only else judge(attempts, profile, job, waivers, subject_of(nodeid))
    judgements = settle(judgements, attempts, waivers, rebuilt=rebuilt)
    causes = _causes_of_attempts(nodeid, attempts, profile, job, waivers)
    causes += ((_OUTCOME_OF[one.status], one.message) for one in judgements if one.status in _OUTCOME_OF)
    outcome = min((outcome for outcome, _ in causes), key=lambda outcome: outcome.severity, default=Outcome.NOT_RUN)
    own = [judgement for judgement in judgements if subject_of_metric(judgement.metric) != COUNTERS]
    if outcome is Outcome.PASSED and own and all(judgement.status is not Status.HELD for judgement in own):
        outcome = Outcome.NOT_APPLICABLE  # no bound is left that could hold
    return Row(
        nodeid=nodeid,
        subject=subject_of(nodeid),
        outcome=outcome,
        message=_message(nodeid, attempts, job, causes, judgements, outcome),
        duration_s=sum(max((record.duration_s for record in attempt.ranks), default=0.0) for attempt in attempts),
        deadline_s=deadline_s,
        attempts=tuple(attempts),
        judgements=judgements,
    )


def told_by_ranks(row: Row, profile: Profile, job: Job, waivers: Mapping[str, str]) -> str:
    """Return the part of a row's message that comes from its ranks and the job, without the messages of its limits."""
    if not row.attempts:
        return row.message
    causes = _causes_of_attempts(row.nodeid, row.attempts, profile, job, waivers)
    return _message(row.nodeid, row.attempts, job, causes, (), row.outcome)


def _message(
    nodeid: str, attempts: Sequence[Attempt], job: Job, causes: Iterable[_Cause], judgements: Iterable[Judgement], outcome: Outcome
) -> str:
    """Join, in this order: why the group did not form, causes, victims, waived limits, and the answer of NCCL RAS to the first hang.

    Limits that do not apply are listed only if the whole validation does not.
    """
    is_aside = outcome is Outcome.NOT_APPLICABLE
    shown = dict.fromkeys(
        text
        for reason, text in sorted(causes, key=lambda cause: cause[0].severity)
        if text and (is_aside or reason is not Outcome.NOT_APPLICABLE)
    )
    aside = {Status.WAIVED, Status.NOT_APPLICABLE} if is_aside else {Status.WAIVED}
    ras = sorted((attempt.number, record.rank, record.ras) for attempt in attempts for record in attempt.ranks if record.ras)
    lines = [
        *(_why_not_formed(job) if _broke_while_forming(nodeid, attempts) else ()),
        *shown,
        *(judgement.message for judgement in judgements if judgement.status in aside),
        *(f"NCCL RAS, asked by rank {rank}: {text}" for _, rank, text in ras[:1]),  # it speaks of the whole job
        *dict.fromkeys(f"measured briefly: {record.brief}" for attempt in attempts for record in attempt.ranks if record.brief),
        *_beside(attempts, job, shown),
        *(_host_load(attempts[-1], job) if subject_of(nodeid) in HOST_BOUND and attempts else ()),
    ]
    return clip("\n".join(lines))


def _beside(attempts: Sequence[Attempt], job: Job, shown: Collection[str]) -> Iterator[str]:
    """Yield foreign processes that decided nothing: of an attempt that was repeated, or allowed. Likewise where nobody knew of any."""
    for attempt in attempts:
        told = [_foreign(record, job) for record in attempt.ranks if record.foreign]
        if attempt is not attempts[-1]:
            told += [_unwatched(record, job) for record in attempt.ranks if record.unwatched]
        for text in told:
            if text not in shown:
                yield f"{text}, during attempt {attempt.number}"


def _host_load(attempt: Attempt, job: Job) -> Iterator[str]:
    """Yield what other programs of a node took of its processors, from a tenth of them on. It explains a figure, and is not judged."""
    records = {record.rank: record.cpu for record in attempt.ranks if record.cpu}
    for node, ranks in job.by_node.items():
        uses = [records[one.rank] for one in ranks if one.rank in records]
        if len(uses) < len(ranks) or not (length_s := uses[0].length_s) > 0:
            continue
        others = (uses[0].busy_s - sum(one.own_s for one in uses)) / length_s
        if others >= TOLD_SHARE * uses[0].num_cpus:
            yield f"{job.host(node)}: other programs used {others:.1f} of {plural(uses[0].num_cpus, 'CPU')} meanwhile"


def _foreign(record: RankRecord, job: Job) -> str:
    """Return `rank 3 (...): GPU 3 was used by another process (...) from +12.3 s to +40.1 s`, for each process."""
    return f"{job.who([record.rank])}: {'; '.join(map(busy.foreign_text, record.foreign))}"


def _unwatched(record: RankRecord, job: Job) -> str:
    """Return `rank 3 (...): nothing told in time who uses GPU 3`."""
    return f"{job.who([record.rank])}: {record.unwatched}"


def declared_reason(nodeid: str, not_applicable: Mapping[str, str]) -> str | None:
    """Return why the profile or an overlay lets this validation be skipped, or None. A waiver excuses metrics only."""
    return matching_reason(validation_of(nodeid), not_applicable)


def _answers(attempts: Sequence[Attempt], job: Job, declared: str | None) -> Iterator[tuple[int, Outcome, str]]:
    """Yield rank, outcome and text for each rank and attempt; silence is an answer too."""
    for attempt in attempts:
        again = f" of attempt {attempt.number}" if len(attempts) > 1 else ""
        silent = set(range(job.world_size)) - {record.rank for record in attempt.ranks}
        for rank in sorted(silent):
            yield rank, Outcome.LOST, f"lost{again}: no answer"
        for record in sorted(attempt.ranks, key=lambda record: (record.rank, record.outcome)):
            if record.rank >= job.world_size:
                yield record.rank, Outcome.ERROR, f"error: answers in a job of {job.world_size} ranks"
            elif record.outcome is Outcome.SKIPPED and declared is not None:
                reason = f" ({record.message})" if record.message else ""
                yield record.rank, Outcome.NOT_APPLICABLE, f"not applicable: {declared}{reason}"
            else:
                yield record.rank, record.outcome, _describe(record, again)


def _describe(record: RankRecord, again: str) -> str:
    """Return `died in call: exit code -11`; for a stuck rank also its place."""
    risen: list[str] = []  # on the GPU of a rank that did not come to its end; limits judge the counters of the others
    if record.outcome not in JUDGED_OUTCOMES:
        counters = (one for one in record.counters if one.judged and one.value)
        risen = [f"{one.metric} = {quantity(one)}{f' ({one.detail})' if one.detail else ''}" for one in counters]
    meanwhile = f"; on its GPU meanwhile: {'; '.join(risen)}" if risen else ""
    if record.outcome is Outcome.VICTIM:
        reason = essence(record.message) if record.stack else "a peer failed first"  # an exception of its own is an echo
        return f"{reason}{meanwhile}"  # its GPU's counters may explain why the peer failed
    phase = f" in {record.phase}{again}" if record.phase else again
    place = where(record.stack) if record.outcome in {Outcome.STUCK, Outcome.NOT_MEASURED} else ""
    frames = f"; inside {place}" if place else ""
    message = f": {essence(record.message)}" if record.message else ""
    return f"{record.outcome}{phase}{message}{frames}{meanwhile}"


def essence(message: str) -> str:
    """Return the error lines and the place of a pytest traceback; the first lines of any other text."""
    lines = message.strip().splitlines()
    errors = [line[1:].strip() for line in lines if line.startswith("E  ")]
    if errors:
        return "\n".join([*errors[:_MOST_LINES], lines[-1].strip()])
    return "\n".join([*lines[:_MOST_LINES], *(["..."] if len(lines) > _MOST_LINES else [])])


def _disturbed(nodeid: str, attempts: Sequence[Attempt], waivers: Mapping[str, str]) -> list[Attempt]:
    """Return the attempts that a foreign process disturbed. Workers that formed or ended all the same prove what they have to."""
    found = (attempt for attempt in attempts if busy.is_disturbed(attempt, waivers))
    return [attempt for attempt in found if is_validation(nodeid) or not all_passed(attempt.ranks)]


def _causes_of_disturbed(attempt: Attempt, job: Job) -> Iterator[_Cause]:
    """Yield the processes, and what ranks said beside one: it may be the reason for any failure, and for a pass that is too slow to see.

    Where nobody knows who used the GPUs, it may be likewise.
    """
    beside = Outcome.DISTURBED if any(record.foreign for record in attempt.ranks) else Outcome.NOT_MEASURED
    for record in attempt.ranks:
        if record.foreign:
            yield Outcome.DISTURBED, _foreign(record, job)
        if record.unwatched:
            yield Outcome.NOT_MEASURED, _unwatched(record, job)
        if record.outcome is Outcome.LOST or record.outcome is Outcome.INTERRUPTED:
            yield record.outcome, f"{job.who([record.rank])}: {_describe(record, '')}"
        elif record.outcome is not Outcome.PASSED:
            yield beside, f"{job.who([record.rank])}, meanwhile: {_describe(record, '')}"


def _causes_of_attempts(nodeid: str, attempts: Sequence[Attempt], profile: Profile, job: Job, waivers: Mapping[str, str]) -> list[_Cause]:
    """Return one cause for all ranks that say the same, and errors where a pass proves nothing. The text of a passed rank is empty.

    An attempt that a foreign process disturbed decides nothing once a later one is there.
    """
    disturbed = _disturbed(nodeid, attempts, waivers)
    whole = [attempt for attempt in attempts if attempt not in disturbed]
    causes = [cause for attempt in disturbed if attempt is attempts[-1] for cause in _causes_of_disturbed(attempt, job)]
    return causes + _causes_of_whole(nodeid, whole, profile, job)


def _causes_of_whole(nodeid: str, attempts: Sequence[Attempt], profile: Profile, job: Job) -> list[_Cause]:
    answers = list(_answers(attempts, job, declared_reason(nodeid, profile.not_applicable)))
    ranks_of: dict[_Cause, list[int]] = defaultdict(list)
    for rank, outcome, text in answers:
        ranks_of[outcome, "" if outcome is Outcome.PASSED else text].append(rank)
    causes = [
        (outcome, f"{job.who(ranks)}: {'victim: ' if outcome is Outcome.VICTIM else ''}{text}" if text else "")
        for (outcome, text), ranks in sorted(ranks_of.items(), key=lambda item: (item[0][0].severity, item[1], item[0][1]))
    ]
    passed, aside = ([rank for rank, outcome, _ in answers if outcome is one] for one in (Outcome.PASSED, Outcome.NOT_APPLICABLE))
    if passed and aside:
        causes.append((Outcome.ERROR, f"ranks disagree: passed on {job.who(passed)}, not applicable on {job.who(aside)}"))
    # A pass without a figure would claim a measurement. The counters that supervisors read are no figure of a validation.
    silent = [attempt for attempt in attempts if all(one.outcome is Outcome.PASSED and not one.figures for one in attempt.ranks)]
    if silent and is_validation(nodeid):
        causes.append((Outcome.ERROR, "no figure: it passed on all ranks, and none checked or recorded anything"))
    return causes


def _why_not_formed(job: Job) -> Iterator[str]:
    """Explain a group that did not form. It comes first: a rank that crashes meanwhile is seldom the one with another set-up."""
    if mismatch := environment_mismatch(job):
        yield f"ranks of one node have different NCCL variables: {mismatch}"
    # Nodes at whose own name gloo offers a loopback address. Many clusters work all the same, through other interfaces.
    first = [ranks[0] for ranks in job.by_node.values() if job.num_nodes > 1]
    found = [one for one in first if one.own_loopback_address and "GLOO_SOCKET_IFNAME" not in one.environment]
    if found:
        hosts = first_of([f"node {one.node} ({one.host})" for one in found], _MOST_LINES)
        address = found[0].own_loopback_address
        yield f"/etc/hosts sends the own name to {address} on {hosts}: gloo may wait there, unless GLOO_SOCKET_IFNAME is set"


def formed_unlike(nodeid: str, attempts: Sequence[Attempt], job: Job) -> bool:
    """Return True if the group did not form, and ranks of one node differ in their NCCL variables."""
    return _broke_while_forming(nodeid, attempts) and bool(environment_mismatch(job))


def _broke_while_forming(nodeid: str, attempts: Sequence[Attempt]) -> bool:
    bad = (record for attempt in attempts for record in attempt.ranks if record.outcome not in _NO_CAUSE)
    return nodeid == FORMATION and any(record.phase == FORMING for record in bad)


@dataclass(frozen=True)
class Unmet:
    """One package or program that validations need and a node lacks. `found`: host -> the version there, empty if it has none."""

    need: str
    found: Mapping[str, str]
    python: str  # of the first of these hosts
    nodeids: tuple[str, ...]

    @property
    def what(self) -> str:
        """Return `transformers 5.0 or newer`."""
        return f"{self.need} {OLDEST[self.need]} or newer" if self.need in OLDEST else f"a {self.need}"

    @property
    def seen(self) -> str:
        """Return `node-01 has none`, `node-01, node-02 have 4.57.1`."""
        hosts_of: dict[str, list[str]] = defaultdict(list)
        for host, found in self.found.items():
            hosts_of[f"none that works ({found})" if self.need == COMPILER else found or "none"].append(host)
        return ", ".join(
            f"{first_of(hosts, _MOST_HOSTS)} {'has' if len(hosts) == 1 else 'have'} {there}" for there, hosts in hosts_of.items()
        )


def unmet_needs(validations: Iterable[PlannedValidation], job: Job) -> tuple[Unmet, ...]:
    """Return all that any node lacks of what these validations need, in the order in which they need it."""
    nodeids_of: dict[str, list[str]] = defaultdict(list)
    for validation in validations:
        for need in validation.needs:
            nodeids_of[need].append(validation.nodeid)
    found = []
    for need, nodeids in nodeids_of.items():
        if lacking := [one for one in job.by_rank.values() if need in one.lacks]:
            found.append(Unmet(need, {one.host: one.lacks[need] for one in lacking}, lacking[0].python, tuple(nodeids)))
    return tuple(found)


def row_without_run(validation: PlannedValidation, job: Job, not_applicable: Mapping[str, str]) -> Row | None:
    """Return the row of a validation that needs a larger job or that lacks something on a rank, else None.

    `needs transformers 5.0 or newer, and node-01 has none; install it there: ...`. A validation that `not_applicable` declares away is
    not missed.
    """
    if reason := too_small(validation, job):
        return bare_row(validation.nodeid, Outcome.NOT_APPLICABLE, str(reason), validation.deadline_s)
    unmet = unmet_needs([validation], job)
    if not unmet:
        return None
    why = "; ".join([*(f"needs {one.what}, and {one.seen}" for one in unmet), *_installs(unmet)])
    if declared := declared_reason(validation.nodeid, not_applicable):
        return bare_row(validation.nodeid, Outcome.NOT_APPLICABLE, f"not applicable: {declared} ({why})", validation.deadline_s)
    row = bare_row(validation.nodeid, Outcome.NOT_RUN, why, validation.deadline_s)
    return row.model_copy(update={"lacks": tuple(one.need for one in unmet)})


def announcement(unmet: Unmet) -> str:
    """Return in one line what is missing where, and which validations will not run."""
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
