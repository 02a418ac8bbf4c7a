"""When the leading rank is gone: the lowest rank alive writes the report, from every journal that can still be had."""

import time
from collections.abc import Sequence
from pathlib import Path

from gpu_acceptance.control.control import ControlError
from gpu_acceptance.control.lookout import BEAT_S, Loss
from gpu_acceptance.control.messages import Final, Resend
from gpu_acceptance.folder.rebuild import read_run_folder, rebuild
from gpu_acceptance.folder.run_files import RunFiles, utc_now
from gpu_acceptance.record.run_record import RunEnd, RunRecord
from gpu_acceptance.supervisor.supervisor import Supervisor

CANDIDATES = 8  # only these lowest ranks watch all others: a look at 1000 heartbeats took 50 times as long as one at 8
_RESEND_S = 4.0


def elect(supervisor: Supervisor, loss: Loss) -> list[int]:
    """Ends the attempt in progress and makes the lowest rank alive the leader; returns who is alive. Collective over the living.

    A leader that was given up and lives takes part, and is not elected. Raises ControlError where it is alone.
    """
    lost = supervisor.leader
    supervisor.lookout.give_up(lost, loss)
    supervisor.given_up.add(lost)
    supervisor.leader = supervisor.place.rank  # nobody else is listened to while we look round
    supervisor.interrupt(loss.signal or loss.reason, is_loss=not loss.signal)
    supervisor.ended = supervisor.ended or loss.reason
    alive = _ended(supervisor) or _find_alive(supervisor)
    alive = _ended(supervisor) or alive  # it may have ended, and left, while we looked round
    if not alive:
        raise ControlError(f"{loss.reason}; no other rank is alive")
    supervisor.leader = alive[0]
    supervisor.lookout.watch(alive if supervisor.is_leader else alive[:1], supervisor.leader)
    return alive


def _ended(supervisor: Supervisor) -> list[int]:
    """Who has ended the run, and therefore leads it."""
    return sorted(supervisor.mail(Final))


def _find_alive(supervisor: Supervisor) -> list[int]:
    eligible = sorted(set(range(supervisor.place.world_size)) - supervisor.given_up)
    for first in range(0, len(eligible), CANDIDATES):
        candidates = eligible[first : first + CANDIDATES]
        may_lead = supervisor.place.rank in candidates
        alive = _look_round(supervisor, eligible[first:] if may_lead else candidates)
        if may_lead:
            alive = sorted({supervisor.place.rank, *alive})
        if alive:
            return alive
    return []


def _look_round(supervisor: Supervisor, ranks: Sequence[int]) -> list[int]:
    supervisor.lookout.watch(ranks)
    end = time.monotonic() + 4 * BEAT_S
    while time.monotonic() < end:
        supervisor.pump()
    return supervisor.lookout.alive()


def send_journal(supervisor: Supervisor) -> None:
    """Gives this rank's journal to the new leader, which may not share our disk."""
    assert supervisor.journal
    text = supervisor.journal.text()
    try:
        supervisor.tell_leader(Resend(journal=text))
    except ControlError:  # more than one message may hold; where the disk is shared, the leader reads it itself
        supervisor.tell_leader(Resend(journal=""))


def await_listeners(supervisor: Supervisor, alive: list[int]) -> list[int]:
    """The new leader: who has sent its journal has elected us too; what we said before that was said to nobody. Returns all who listen."""
    return sorted({*alive, *supervisor.await_mail(Resend, _RESEND_S, alive)})


def rebuild_run(supervisor: Supervisor, files: RunFiles, why: str, interrupted: str | None) -> RunRecord:
    """The new leader: puts the journals of the living beside its own and rebuilds the run from all in the folder."""
    for rank, message in supervisor.mail(Resend).items():
        _keep(RunFiles(files.folder, rank).journal, message.journal)
    contents, control = read_run_folder(files.folder), supervisor.control_messages()
    end = RunEnd(interrupted=interrupted, control_lost=supervisor.has_lost_control)
    return rebuild(contents, ended_at=utc_now(), why=why, end=end, control=control)


def _keep(path: Path, text: str) -> None:
    if text and not path.exists():
        path.write_text(text, encoding="utf-8")
