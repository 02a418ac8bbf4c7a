"""Each rank confirms what is concluded: rank 0 tells how the run ends and the digest of what it judged of a rank, which compares its own.

A rank that has told something else objects with all that it has told; rank 0 then names the first record that differs, with both values.
Else it closes its journal with how the run ends.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping

from gpu_acceptance.control.messages import AskJournal, JournalTold, ToldRecord
from gpu_acceptance.folder.journal import Journal
from gpu_acceptance.record.row import RankRecord
from gpu_acceptance.record.run_record import Closing, DisputedRecord

_DIGITS = 16
Told = dict[tuple[str, int], ToldRecord]  # by validation and attempt


def note(told: Told, record: RankRecord, text: str) -> None:
    """Adds a record, as it was sent."""
    digest = hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
    told[record.nodeid, record.attempt] = ToldRecord(record.nodeid, record.attempt, record.outcome, digest)


def digest_of(told: Told) -> str:
    """Of all records of one rank."""
    return hashlib.sha256(json.dumps(sorted(told.values())).encode()).hexdigest()[:_DIGITS]


def answer(question: AskJournal, rank: int, journal: Journal, told: Told, lost: Mapping[str, int]) -> JournalTold:
    """What a rank says of its journal and of what was judged of it (None: just that); `lost`: messages that it knows to be lost.

    It closes its journal where it can confirm all. Where the leader's journal is `beside` it, they share a folder.
    """
    harm = journal.find_harm()
    problem = f"the journal of rank {rank} ({journal.path}) {harm}" if harm else ""
    agrees = question.judged.get(str(rank)) == digest_of(told)
    closing = question.closing
    if agrees and not problem and lost.keys() <= (closing.control.lost if closing.control else {}).keys():
        problem = _close(journal, closing)
    shared = journal.path.with_name(question.beside).exists()
    return JournalTold(problem=problem, shared=shared, told=None if agrees else tuple(told.values()), round=question.round)


def _close(journal: Journal, closing: Closing) -> str:
    """Returns why it could not be done, or nothing."""
    try:
        journal.append(closing)
    except OSError as error:
        return f"{journal.path} could not be written: {error.strerror}"
    return ""


def find_disputed(judged: Mapping[int, Told], answers: Mapping[int, JournalTold], *, whole: bool) -> tuple[DisputedRecord, ...]:
    """Of each rank that objects (its answer has all that it `told`), the first record that differs.

    `whole`: the run was not broken off, so that no record may be missing either.
    """
    objecting = {
        rank: {(one.nodeid, one.attempt): one for one in answer.told} for rank, answer in sorted(answers.items()) if answer.told is not None
    }
    found = (next(_differing(rank, judged.get(rank, {}), told, whole=whole), None) for rank, told in objecting.items())
    return tuple(one for one in found if one)


def _differing(rank: int, judged: Told, told: Told, *, whole: bool) -> Iterator[DisputedRecord]:
    for key in sorted(judged.keys() | told.keys()):
        ours, theirs = judged.get(key), told.get(key)
        if ours == theirs or (not whole and ours is None):
            continue
        nodeid, attempt = key
        yield DisputedRecord(rank=rank, nodeid=nodeid, attempt=attempt, told=_shown(theirs), judged=_shown(ours))


def _shown(entry: ToldRecord | None) -> str:
    """`passed (0123456789abcdef)`."""
    return f"{entry.outcome} ({entry.digest})" if entry else "nothing"
