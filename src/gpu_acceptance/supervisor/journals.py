"""Before a verdict is told: is every rank's journal still the file that it wrote, and do those in the folder confirm the record?"""

import time
from dataclasses import dataclass
from pathlib import Path

from gpu_acceptance.base.text import named
from gpu_acceptance.control.messages import AskJournal, JournalTold
from gpu_acceptance.folder.corroboration import Unlike, find_unlike_journals
from gpu_acceptance.folder.run_files import RunFiles
from gpu_acceptance.record.run_record import Closing, RunRecord
from gpu_acceptance.supervisor.confirmation import digest_of
from gpu_acceptance.supervisor.supervisor import Supervisor

_ANSWER_S = 60.0  # for a rank to read its own journal and to write to it, from a disk that may stall; one that is slower is in a hook
_POLL_S = 0.5
_WRITING_S = 0.2  # a line that another rank writes at this moment
_CACHED_S = 25.0  # sshfs shows another node's file as it was up to 20 s ago, NFS without close-to-open as it was up to 60 s ago


@dataclass(frozen=True)
class Journals:
    """What the ranks told of their journals: whose lie in the leader's folder, and the first thing that is wrong with one."""

    here: tuple[int, ...] = ()
    problem: str = ""


def close_journals(supervisor: Supervisor, files: RunFiles, closing: Closing, number: int) -> Journals:
    """Each living rank reads its journal once more, says what became of it, and objects where something else was judged than it told.

    Else it closes the journal with how the run ends. `number`: how often that was asked before; who was silent then is not awaited again.
    Collective: the others answer while they wait. Only what is ACCEPTED needs the answer of each rank.
    """
    judged = {str(rank): digest_of(told) for rank, told in supervisor.judged.items()}
    supervisor.control.cast(AskJournal(beside=files.journal.name, judged=judged, closing=closing, round=number))
    is_accepted, answers = closing.verdict == "ACCEPTED", supervisor.mail(JournalTold)
    everybody = set(range(supervisor.place.world_size))
    silent = _await(supervisor, set(answers) if number else everybody, number, needs_all=is_accepted)
    told = [answer.problem for _, answer in sorted(answers.items()) if answer.problem]
    lost = silent & set(supervisor.lookout.lost())
    is_due = not number and (is_accepted or not supervisor.stopping) and not supervisor.has_lost_messages  # the question may be one
    if silent - lost and is_due:
        told.append(f"{named('rank', silent - lost)} did not say within {_ANSWER_S:g} s whether the journal is whole")
    if lost and is_accepted:
        told.append(f"{named('rank', lost)} was lost before it could confirm the verdict")
    shared = {rank for rank, answer in answers.items() if answer.shared}
    here = shared | {rank for rank in everybody - shared if RunFiles(files.folder, rank).journal.exists()}
    return Journals(tuple(sorted(here)), told[0] if told else "")


def _await(supervisor: Supervisor, ranks: set[int], number: int, *, needs_all: bool) -> set[int]:
    """Waits for what these ranks say to this question; returns who was silent."""
    end = time.monotonic() + _ANSWER_S
    while True:
        silent = ranks - {rank for rank, answer in supervisor.mail(JournalTold).items() if answer.round == number}
        # Else the launcher soon kills what is left; and where messages are lost nothing is ACCEPTED any more.
        has_time = (needs_all and not supervisor.has_lost_messages) or not supervisor.stopping
        if silent <= set(supervisor.lookout.lost()) or not has_time or time.monotonic() > end:
            return silent
        supervisor.pump()


def find_unconfirmed(run_dir: Path, record: RunRecord, node: int, *, may_wait: bool) -> list[Unlike]:
    """Journals that do not confirm the record. `may_wait`: those of nodes other than `node` get the time that a network disk needs."""
    nodes = {identity.rank: identity.node for identity in record.ranks}
    begin = time.monotonic()
    while True:
        unlike = list(find_unlike_journals(run_dir, record, is_over=False))
        is_elsewhere = any(nodes.get(one.rank) != node for one in unlike)
        if not unlike or time.monotonic() > begin + (_CACHED_S if may_wait and is_elsewhere else _WRITING_S):
            return unlike
        time.sleep(_POLL_S)
