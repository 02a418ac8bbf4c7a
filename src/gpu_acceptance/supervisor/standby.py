"""Confirmation of journals before the verdict, and the rank that reports when rank 0 is lost."""

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpu_acceptance.base.text import named
from gpu_acceptance.control.control import ControlError
from gpu_acceptance.control.heartbeats import BEAT_S, Loss
from gpu_acceptance.control.messages import AskJournal, Final, JournalState, Resend, SentRecord
from gpu_acceptance.folder.corroboration import Unlike, find_unlike_journals
from gpu_acceptance.folder.files import RunFiles, utc_now
from gpu_acceptance.folder.rebuild import read_run_folder, rebuild
from gpu_acceptance.record.run_record import Closing, ControlMessages, DisputedRecord, RunEnd, RunRecord
from gpu_acceptance.supervisor.attempt_state import SentRecords, digest_of
from gpu_acceptance.supervisor.supervisor import Supervisor

_ANSWER_S = 60.0  # for a rank to read and write its own journal on a disk that may stall; a slower rank is inside a hook
_POLL_S = 0.5
_WRITING_S = 0.2  # a line that another rank writes at this moment
_CACHED_S = 25.0  # sshfs shows another node's file as it was up to 20 s ago, NFS without close-to-open as it was up to 60 s ago
CANDIDATES = 8  # only these lowest ranks watch all others: a look at 1000 heartbeats took 50 times as long as one at 8
_RESEND_S = 4.0


@dataclass(frozen=True)
class Journals:
    """Ranks whose journals lie in the leader's folder, and the first problem of a journal."""

    here: tuple[int, ...] = ()
    problem: str = ""


def close_journals(supervisor: Supervisor, files: RunFiles, closing: Closing, number: int) -> Journals:
    """Ask each living rank to read its journal again, and to object where other records were judged than it sent.

    A rank that does not object closes its journal with `closing`. `number` counts earlier rounds: a rank that was silent then is not
    awaited again. Collective: the others answer while they wait. Only ACCEPTED needs the answer of each rank.
    """
    judged = {str(rank): digest_of(records) for rank, records in supervisor.judged.items()}
    supervisor.control.broadcast(AskJournal(beside=files.journal.name, judged=judged, closing=closing, round=number))
    is_accepted, answers = closing.verdict == "ACCEPTED", supervisor.mail(JournalState)
    everybody = set(range(supervisor.place.world_size))
    silent = _await(supervisor, set(answers) if number else everybody, number, needs_all=is_accepted)
    problems = [answer.problem for _, answer in sorted(answers.items()) if answer.problem]
    lost = silent & set(supervisor.heartbeats.lost())
    is_due = not number and (is_accepted or not supervisor.stopping) and not supervisor.has_lost_messages  # the question may be lost
    if silent - lost and is_due:
        problems.append(f"{named('rank', silent - lost)} did not say within {_ANSWER_S:g} s whether the journal is whole")
    if lost and is_accepted:
        problems.append(f"{named('rank', lost)} was lost before it could confirm the verdict")
    shared = {rank for rank, answer in answers.items() if answer.shared}
    here = shared | {rank for rank in everybody - shared if RunFiles(files.folder, rank).journal.exists()}
    return Journals(tuple(sorted(here)), problems[0] if problems else "")


def _await(supervisor: Supervisor, ranks: set[int], number: int, *, needs_all: bool) -> set[int]:
    """Await the answers of these ranks to this round; returns the silent ones."""
    end = time.monotonic() + _ANSWER_S
    while True:
        silent = ranks - {rank for rank, answer in supervisor.mail(JournalState).items() if answer.round == number}
        # A stopped run has no time, because the launcher soon kills all ranks. Where messages are lost nothing is ACCEPTED any more.
        has_time = (needs_all and not supervisor.has_lost_messages) or not supervisor.stopping
        if silent <= set(supervisor.heartbeats.lost()) or not has_time or time.monotonic() > end:
            return silent
        supervisor.pump()


def control_messages(supervisor: Supervisor) -> ControlMessages:
    """Return the messages between ranks that were dropped, lost or disputed, as this rank saw it and as the others told."""
    dropped, lost = Counter[str](), Counter[str]()
    for facts in supervisor.message_facts():
        dropped.update(facts["dropped"])
        lost.update(facts["lost"])
    whole = not supervisor.stopping and supervisor.all_answered
    return ControlMessages(
        is_authenticated=supervisor.control.session.is_authenticated,
        dropped=dict(dropped),
        lost=dict(lost),
        disputed=find_disputed(supervisor.judged, supervisor.mail(JournalState), whole=whole),
    )


def find_disputed(judged: Mapping[int, SentRecords], answers: Mapping[int, JournalState], *, whole: bool) -> tuple[DisputedRecord, ...]:
    """Return the first record that differs, for each rank that objects.

    `whole`: the run was not broken off, so that no record may be missing.
    """
    found = []
    for rank, answer in sorted(answers.items()):
        if answer.records is None:
            continue
        ours, theirs = judged.get(rank, {}), {(one.nodeid, one.attempt): one for one in answer.records}
        wrong = (key for key in sorted(ours.keys() | theirs.keys()) if ours.get(key) != theirs.get(key) and (whole or key in ours))
        if (key := next(wrong, None)) is not None:
            nodeid, number = key
            told, taken = _shown(theirs.get(key)), _shown(ours.get(key))
            found.append(DisputedRecord(rank=rank, nodeid=nodeid, attempt=number, told=told, judged=taken))
    return tuple(found)


def _shown(entry: SentRecord | None) -> str:
    """`passed (0123456789abcdef)`."""
    return f"{entry.outcome} ({entry.digest})" if entry else "nothing"


def find_unconfirmed(run_dir: Path, record: RunRecord, node: int, *, may_wait: bool) -> list[Unlike]:
    """Return journals that do not confirm the record. `may_wait`: journals of other nodes get the time that a network disk needs."""
    nodes = {identity.rank: identity.node for identity in record.ranks}
    begin = time.monotonic()
    while True:
        unlike = list(find_unlike_journals(run_dir, record, is_over=False))
        is_elsewhere = any(nodes.get(one.rank) != node for one in unlike)
        if not unlike or time.monotonic() > begin + (_CACHED_S if may_wait and is_elsewhere else _WRITING_S):
            return unlike
        time.sleep(_POLL_S)


def elect(supervisor: Supervisor, loss: Loss) -> list[int]:
    """End the attempt in progress and make the lowest rank alive the leader; returns the ranks alive. Collective over these.

    A leader that was given up but lives takes part, and is not elected. Raises ControlError where no other rank is alive.
    """
    lost = supervisor.leader
    supervisor.heartbeats.give_up(lost, loss)
    supervisor.given_up.add(lost)
    supervisor.leader = supervisor.place.rank  # no other rank is heard meanwhile
    supervisor.interrupt(loss.signal or loss.reason, is_loss=not loss.signal)
    supervisor.ended = supervisor.ended or loss.reason
    alive = sorted(supervisor.mail(Final)) or _find_alive(supervisor)  # the rank that has ended the run leads it
    alive = sorted(supervisor.mail(Final)) or alive  # it may have ended the run, and left, meanwhile
    if not alive:
        raise ControlError(f"{loss.reason}; no other rank is alive")
    supervisor.leader = alive[0]
    supervisor.heartbeats.watch(alive if supervisor.is_leader else alive[:1], supervisor.leader)
    return alive


def _find_alive(supervisor: Supervisor) -> list[int]:
    eligible = sorted(set(range(supervisor.place.world_size)) - supervisor.given_up)
    for first in range(0, len(eligible), CANDIDATES):
        candidates = eligible[first : first + CANDIDATES]
        may_lead = supervisor.place.rank in candidates
        supervisor.heartbeats.watch(eligible[first:] if may_lead else candidates)
        end = time.monotonic() + 4 * BEAT_S
        while time.monotonic() < end:
            supervisor.pump()
        alive = supervisor.heartbeats.alive()
        if may_lead:
            alive = sorted({supervisor.place.rank, *alive})
        if alive:
            return alive
    return []


def send_journal(supervisor: Supervisor) -> None:
    """Send this rank's journal to the new leader, which may not share this disk."""
    assert supervisor.records.journal
    text = supervisor.records.journal.text()
    try:
        supervisor.tell_leader(Resend(journal=text))
    except ControlError:  # too large for a message; where the disk is shared, the leader reads it itself
        supervisor.tell_leader(Resend(journal=""))


def await_listeners(supervisor: Supervisor, alive: list[int]) -> list[int]:
    """On the new leader: await the journals. A rank that sent one has elected this leader and hears it. Returns all that do."""
    return sorted({*alive, *supervisor.await_mail(Resend, _RESEND_S, alive)})


def rebuild_run(supervisor: Supervisor, files: RunFiles, why: str, interrupted: str | None) -> RunRecord:
    """On the new leader: put the received journals beside its own and rebuild the run from all in the folder."""
    for rank, message in supervisor.mail(Resend).items():
        path = RunFiles(files.folder, rank).journal
        if message.journal and not path.exists():
            path.write_text(message.journal, encoding="utf-8")
    contents, control = read_run_folder(files.folder), control_messages(supervisor)
    end = RunEnd(interrupted=interrupted, control_lost=supervisor.has_lost_control)
    return rebuild(contents, ended_at=utc_now(), why=why, end=end, control=control)
