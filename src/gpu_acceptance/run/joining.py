"""The meeting of the ranks: hello, refusals, and a run that cannot begin because ranks are missing."""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from gpu_acceptance.base.guard import end_launcher_later
from gpu_acceptance.base.text import clip, first_few, named
from gpu_acceptance.control.control import UnreachableError
from gpu_acceptance.control.messages import Agreed, AskClock, Clock, Collected, Hello, Problem, Refused, Welcome
from gpu_acceptance.control.rank import INCOMPLETE, JoinError, Patience, Rank, RefusedError, interrupted
from gpu_acceptance.folder.files import RecordError, RunFiles, node_run_id, utc_now
from gpu_acceptance.folder.journal import Journal
from gpu_acceptance.record.job import Bounds, RankIdentity, ahead
from gpu_acceptance.record.run_record import Refusal
from gpu_acceptance.supervisor.supervisor import Supervisor
from gpu_acceptance.thresholds.limit import first_of

A = TypeVar("A", Welcome, Agreed)
COLLECT_S = 120.0  # for all ranks to collect: imports of one file system by all at once
_EVERY_S = 15.0  # between two lines on awaited ranks
_CLOCK_S = 5.0  # for an answer that takes milliseconds; without one the run goes on
_MOST_LINES = 20


def refuse_start(
    error: RefusedError, own: RefusedError | None, report_dir: Path, identity: RankIdentity, launcher: int | None
) -> RefusedError:
    """Return the error of a rank that was refused before it had a run folder. `own`: its own reason to refuse the run."""
    if isinstance(error, JoinError):
        if error.is_cut_off and launcher and identity.local_rank == 0:
            end_launcher_later(launcher)
        if own:
            return own  # this has to be fixed in any case
    if error.exit_code == INCOMPLETE:
        files = RunFiles(report_dir / (error.run_id or node_run_id(identity.host, launcher)), identity.rank)
        try:
            with Journal(files.journal) as journal:
                journal.append(identity.model_copy(update={"run_id": files.folder.name}))
                journal.append(Refusal(message=clip(str(error)), ended_at=utc_now()))
        except (OSError, RecordError) as problem:
            error.add_note(f"this rank left no journal: cannot write to {files.folder}: {problem}")
    return error


def note_refusal(error: RefusedError, journal: Journal | None, obstacles: Iterable[RefusedError]) -> None:
    """Write the last line of a journal that was begun before ranks were missed; `obstacles` say why it could not be written."""
    if error.exit_code != INCOMPLETE:
        return
    for obstacle in obstacles:
        error.add_note(f"this rank left no journal: {obstacle}")
    if journal is None:
        return
    try:
        journal.append(Refusal(message=clip(str(error)), ended_at=utc_now()))
    except OSError as problem:
        error.add_note(f"the journal of this rank does not say so: {journal.path}: {problem}")


def join(
    supervisor: Supervisor,
    identity: RankIdentity,
    refusal: RefusedError | None,
    welcome: Callable[[list[RankIdentity]], Welcome],
    unmet_id: str,
    patience: Patience,
) -> Welcome:
    """Say hello, and return rank 0's welcome once every rank has. Collective. Raises RefusedError with one text for all.

    `unmet_id`: rank 0's run id for a refusal because of ranks that never said hello.
    """
    supervisor.tell_leader(Hello(identity=identity, refusal=_refused(refusal) if refusal else None, nonce=supervisor.control.nonce))
    with _refused_where_unmet(supervisor):
        if supervisor.is_leader:
            answer = _answer_hellos(supervisor, welcome, unmet_id, patience)
            heard = {str(rank): hello.nonce for rank, hello in supervisor.mail(Hello).items()}
            supervisor.control.broadcast(answer.model_copy(update={"heard": heard}))
        welcomed = _answer_of_leader(supervisor, Welcome, patience.join_s)
        if supervisor.is_leader:
            supervisor.control.all_have_joined()
    everybody = range(supervisor.place.world_size)
    supervisor.heartbeats.watch(everybody if supervisor.is_leader else [supervisor.leader], supervisor.leader)
    return welcomed


def agree(supervisor: Supervisor, nodeids: list[str], problems: list[RefusedError], answer: Callable[[], Agreed]) -> Agreed:
    """Return rank 0's `answer`, if all ranks collected the same and none has a problem. Collective. Raises RefusedError."""
    own = tuple(Problem(message=clip(str(problem), 4000), exit_code=problem.exit_code) for problem in problems[:3])
    supervisor.tell_leader(Collected(nodeids=tuple(nodeids), problems=own))
    with _refused_where_unmet(supervisor):
        if supervisor.is_leader:
            answers = supervisor.await_mail(Collected, COLLECT_S, until_stopped=True)
            stopped = interrupted(supervisor.stopping) if supervisor.stopping else None
            problem = stopped or find_collection_problem(answers, supervisor.place.world_size)
            supervisor.control.broadcast(_refused(problem) if problem else answer())
        return _answer_of_leader(supervisor, Agreed, COLLECT_S)


@contextmanager
def _refused_where_unmet(supervisor: Supervisor) -> Iterator[None]:
    """Let this rank refuse by itself where no other can be reached."""
    try:
        yield
    except UnreachableError as error:
        reason = supervisor.stop_signals.reason
        supervisor.hang_up()
        raise interrupted(reason) if reason else JoinError(str(error), is_cut_off=supervisor.is_cut_off) from None


def _answer_hellos(
    supervisor: Supervisor, welcome: Callable[[list[RankIdentity]], Welcome], unmet_id: str, patience: Patience
) -> Welcome | Refused:
    hellos = _await_hellos(supervisor, patience)
    if supervisor.stopping:
        return _refused(interrupted(supervisor.stopping))
    place, identities = supervisor.place, _identities(hellos)
    if other := _other_job(place, identities):
        refused = _refused(RefusedError(other))
        for rank in hellos.keys() - set(range(place.world_size)):
            supervisor.control.send(rank, refused)
        return refused
    absent = _absent(place, hellos)
    if absent:
        text = f"{absent} did not arrive within {patience.join_s:g} s; see what {place.launcher or 'its shell'} said there"
        return _refused(RefusedError(text, INCOMPLETE, unmet_id))
    refusals = [hello.refusal for _, hello in sorted(hellos.items()) if hello.refusal]
    if refusals:
        return refusals[0]
    try:
        return welcome(identities).model_copy(update={"clocks": _ask_clocks(supervisor, identities)})
    except RefusedError as error:
        return _refused(error)


def _await_hellos(supervisor: Supervisor, patience: Patience) -> dict[int, Hello]:
    end = time.monotonic() + patience.join_s
    while True:
        left_s = max(0.0, end - time.monotonic())
        hellos = supervisor.await_mail(Hello, min(_EVERY_S, left_s), until_stopped=True)
        absent = _absent(supervisor.place, hellos)
        if not absent or supervisor.stopping or left_s <= _EVERY_S or _other_job(supervisor.place, _identities(hellos)):
            return hellos
        patience.say(f"waiting for {absent}, {left_s - _EVERY_S:.0f} s more at most (--join-timeout)")


def _identities(hellos: dict[int, Hello]) -> list[RankIdentity]:
    return [hello.identity for _, hello in sorted(hellos.items())]


def _other_job(place: Rank, identities: list[RankIdentity]) -> str:
    """Name a rank whose launcher gave it other numbers of ranks, which a torchrun cannot do; or return an empty text."""
    for other in identities:
        if (other.world_size, other.local_world_size) != (place.world_size, place.local_world_size):
            theirs = f"rank {other.rank} ({other.host}) is one of {other.world_size} ranks, {other.local_world_size} on its node"
            ours = f"rank {place.rank} ({place.host}) one of {place.world_size}, {place.local_world_size} on its node"
            return f"{theirs}, and {ours}: start all ranks with the same numbers"
    return ""


def _absent(place: Rank, hellos: Collection[int]) -> str:
    """Return `ranks 8-15 (node 1)`; empty where no rank is absent."""
    absent = [rank for rank in range(place.world_size) if rank not in hellos]
    return f"{named('rank', absent)} ({named('node', {rank // place.local_world_size for rank in absent})})" if absent else ""


def _ask_clocks(supervisor: Supervisor, identities: list[RankIdentity]) -> tuple[tuple[int, Bounds], ...]:
    """Return for each other node how far its clock is ahead of this one; its lowest local rank answers."""
    node_of = {identity.rank: identity.node for identity in identities if identity.local_rank == 0 and identity.node}
    asked_s = time.time()
    for rank in node_of:
        supervisor.control.send(rank, AskClock())
    answers = supervisor.await_mail(Clock, _CLOCK_S, node_of) if node_of else {}
    return tuple((node_of[rank], ahead(asked_s, answer.heard_s, answer.clock_s)) for rank, answer in sorted(answers.items()))


def _refused(error: RefusedError) -> Refused:
    return Refused(message=str(error), exit_code=error.exit_code, run_id=error.run_id)


def _answer_of_leader(supervisor: Supervisor, kind: type[A], leader_waits_s: float) -> A:
    message: A | Refused = supervisor.await_broadcast(kind, Refused, silence_s=leader_waits_s + 30)
    heard = {} if isinstance(message, Agreed) else message.heard
    if heard.get(str(supervisor.place.rank), supervisor.control.nonce) != supervisor.control.nonce:
        raise UnreachableError("the answer of rank 0 belongs to an earlier run: a stranger repeats control messages")
    if isinstance(message, Refused):
        supervisor.say_bye()
        raise RefusedError(message.message, message.exit_code, message.run_id)
    return message


def find_collection_problem(answers: dict[int, Collected], world_size: int) -> RefusedError | None:
    """Return None where all ranks collected the same set; else the rank that cannot take part, or differences to rank 0."""
    absent = [rank for rank in range(world_size) if rank not in answers]
    if absent:
        return RefusedError(f"{named('rank', absent)} did not finish collecting within {COLLECT_S:g} s", INCOMPLETE)
    for rank, answer in sorted(answers.items()):
        for problem in answer.problems:
            return RefusedError(f"rank {rank} cannot take part: {problem.message}", problem.exit_code)
    for rank, answer in sorted(answers.items()):
        times: Counter[str] = Counter(answer.nodeids)
        if twice := [nodeid for nodeid, number in times.items() if number > 1]:
            again = first_of(twice, _MOST_LINES)
            return RefusedError(f"rank {rank} collected more than once, so that one would answer for the other: {again}")
    reference = set(answers[0].nodeids)
    lines = []
    for rank, answer in sorted(answers.items()):
        lines += [f"  - rank {rank} lacks {nodeid}" for nodeid in sorted(reference - set(answer.nodeids))]
        lines += [f"  + rank {rank} adds  {nodeid}" for nodeid in sorted(set(answer.nodeids) - reference)]
    if not lines:
        return None
    title = "ranks collected different validations (rank 0 is the reference); is the checkout the same everywhere?"
    return RefusedError("\n".join([title, *first_few(lines, _MOST_LINES, "  ... and {} more")]))
