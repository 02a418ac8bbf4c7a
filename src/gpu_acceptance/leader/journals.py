"""Before a verdict is told: is every rank's journal still the file that it wrote, and do those in the folder confirm the record?"""

import time
from dataclasses import dataclass
from pathlib import Path

from gpu_acceptance.folder.corroboration import Unlike, find_unlike_journals
from gpu_acceptance.folder.run_files import RunFiles
from gpu_acceptance.record.run_record import RunRecord
from gpu_acceptance.supervisor.confirmation import digest_of
from gpu_acceptance.supervisor.supervisor import Supervisor
from gpu_acceptance.text.ranges import named

_ANSWER_S = 15.0  # for a rank to read its own journal; one that is slower is in a hook
_POLL_S = 1.0
_CACHED_S = 25.0  # sshfs shows another node's file as it was up to 20 s ago, NFS without close-to-open as it was up to 60 s ago


@dataclass(frozen=True)
class Journals:
    """What the ranks told of their journals: whose lie in the leader's folder, and the first thing that is wrong with one."""

    here: tuple[int, ...] = ()
    problem: str = ""


def ask_for_journals(supervisor: Supervisor, files: RunFiles) -> Journals:
    """Each living rank reads its journal once more, says what became of it, and objects where something else was judged than it told.

    Collective: the others answer while they wait.
    """
    judged = {str(rank): digest_of(told) for rank, told in supervisor.judged.items()}
    supervisor.control.cast({"type": "journal?", "beside": files.journal.name, "judged": judged})
    end = time.monotonic() + _ANSWER_S
    everybody = set(range(supervisor.place.world_size))
    while True:
        silent = everybody - supervisor.mail.setdefault("journal", {}).keys() - set(supervisor.lookout.lost())
        if not silent or supervisor.stopping or time.monotonic() > end:
            break
        supervisor.await_mail("journal", _POLL_S, silent, until_stopped=True)
    answers = supervisor.mail["journal"]
    told = [answer["problem"] for _, answer in sorted(answers.items()) if answer["problem"]]
    if silent and not supervisor.stopping:
        told.append(f"{named('rank', silent)} did not say within {_ANSWER_S:g} s whether the journal is whole")
    shared = {rank for rank, answer in answers.items() if answer["shared"]}
    here = shared | {rank for rank in everybody - shared if RunFiles(files.folder, rank).journal.exists()}
    return Journals(tuple(sorted(here)), told[0] if told else "")


def find_unconfirmed(run_dir: Path, record: RunRecord, node: int, *, may_wait: bool) -> list[Unlike]:
    """Journals that do not confirm the record. `may_wait`: those of nodes other than `node` get the time that a network disk needs."""
    nodes = {identity.rank: identity.node for identity in record.header.ranks}
    end = time.monotonic() + _CACHED_S
    while True:
        unlike = list(find_unlike_journals(run_dir, record))
        if not may_wait or all(nodes.get(one.rank) == node for one in unlike) or time.monotonic() > end:
            return unlike
        time.sleep(_POLL_S)
