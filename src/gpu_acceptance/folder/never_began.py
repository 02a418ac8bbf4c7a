"""Journals -> why their run never began, where its ranks did not meet."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gpu_acceptance.base.text import named
from gpu_acceptance.folder.disk import RecordError
from gpu_acceptance.folder.journal import JournalContent
from gpu_acceptance.record.job import RankIdentity
from gpu_acceptance.record.run_record import Refusal

_MOST_SAID = 3


@dataclass(frozen=True)
class NeverBegan:
    """What ranks left of a run that they refused before they agreed what to run."""

    path: Path  # of the journal of the lowest rank
    run_id: str
    why: str
    exit_code: int
    ended_at: str


class NothingRanError(RecordError):
    """There is no run to rebuild, and no doubt about that."""

    def __init__(self, never: NeverBegan) -> None:
        super().__init__(f"{never.path}: no report, because nothing ran: {never.why}")
        self.exit_code = never.exit_code


def find_why_it_never_began(contents: Iterable[JournalContent]) -> NeverBegan | None:
    """None where nobody says so, or where any journal has a plan or a record: then something may have run."""
    found: list[tuple[RankIdentity, Refusal, Path]] = []
    for content in contents:
        if content.plan or content.records:
            return None
        if content.identity and content.refusal:
            found.append((content.identity, content.refusal, content.path))
    if not found:
        return None
    found.sort(key=lambda one: one[0].rank)
    identity, refusal, path = found[0]
    return NeverBegan(path, identity.run_id, _why(found), refusal.exit_code, refusal.ended_at)


def _why(found: Iterable[tuple[RankIdentity, Refusal, Path]]) -> str:
    """The words alone where all ranks agree, else who said what."""
    ranks: dict[str, set[int]] = defaultdict(set)
    for identity, refusal, _ in found:
        ranks[refusal.message].add(identity.rank)
    if len(ranks) == 1:
        return next(iter(ranks))
    said = [f'{named("rank", who)} said "{message}"' for message, who in ranks.items()]
    more = [f"and {len(said) - _MOST_SAID} more"] if len(said) > _MOST_SAID else []
    return ", ".join([*said[:_MOST_SAID], *more])
