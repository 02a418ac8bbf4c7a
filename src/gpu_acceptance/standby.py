"""When the leading rank is gone: the lowest rank alive writes the report, from every journal that can still be had."""

import time
from datetime import UTC, datetime
from pathlib import Path

from gpu_acceptance.control import ControlError
from gpu_acceptance.lookout import BEAT_S
from gpu_acceptance.rebuild import read_run_folder, rebuild
from gpu_acceptance.record import RunRecord
from gpu_acceptance.run_files import RunFiles
from gpu_acceptance.supervisor import Supervisor

_RESEND_S = 4.0


def elect(supervisor: Supervisor, why: str) -> list[int]:
    """Ends the attempt in progress and makes the lowest rank alive the leader; returns who is alive. Collective over the living."""
    lost = supervisor.leader
    for rank in sorted(set(range(supervisor.place.world_size)) - {lost, supervisor.place.rank}):
        supervisor.control.send(rank, {"type": "leader_lost", "rank": lost, "reason": why})  # or they would notice at another time
    supervisor.leader = supervisor.place.rank  # nobody else is listened to while we look round
    supervisor.interrupt(why)
    supervisor.ended = supervisor.ended or why
    supervisor.lookout.watch(set(range(supervisor.place.world_size)) - {lost})
    end = time.monotonic() + 4 * BEAT_S
    while time.monotonic() < end:
        supervisor.pump()
    alive = sorted({supervisor.place.rank, *supervisor.lookout.alive()})
    supervisor.leader = alive[0]
    supervisor.lookout.watch(alive if supervisor.is_leader else alive[:1])
    return alive


def send_journal(supervisor: Supervisor) -> None:
    """Gives this rank's journal to the new leader, which may not share our disk."""
    assert supervisor.journal
    text = supervisor.journal.path.read_text(encoding="utf-8")
    try:
        supervisor.tell_leader({"type": "resend", "journal": text})
    except ControlError:  # more than one message may hold; where the disk is shared, the leader reads it itself
        supervisor.tell_leader({"type": "resend", "journal": ""})


def await_listeners(supervisor: Supervisor, alive: list[int]) -> None:
    """The new leader: who has sent its journal has elected us too; what we said before that was said to nobody."""
    supervisor.await_mail("resend", _RESEND_S, alive)


def rebuild_run(supervisor: Supervisor, files: RunFiles, why: str) -> RunRecord:
    """The new leader: puts the journals of the living beside its own and rebuilds the run from all in the folder."""
    for rank, message in supervisor.mail["resend"].items():
        _keep(RunFiles(files.folder, rank).journal, message["journal"])
    return rebuild(read_run_folder(files.folder), ended_at=datetime.now(UTC).isoformat(timespec="seconds"), why=why)


def _keep(path: Path, text: str) -> None:
    if text and not path.exists():
        path.write_text(text, encoding="utf-8")
