"""Ranks that lost contact with each other: between which pairs nothing moves, and which end of a pair is lost.

A rank that waits for a peer has nothing to say against itself. So each tells from whom nothing came, and all together tell who is lost:
the one that several partners miss. Of two that miss each other and nobody else, nobody can say.
"""

from collections import Counter
from collections.abc import Callable, Sequence

Pair = tuple[int, int]  # two ranks, the lower first

NOBODY = -1  # what a rank tells to which everything came that was to come
_MOST_TOLD = 16
_TO_DO = "to do: take out who is lost, of a pair one end after the other, and run again"


class LostContactError(Exception):
    """Nothing moved between these pairs of ranks. Raised on all ranks alike: the group that they share is of no more use."""

    def __init__(self, pairs: Sequence[Pair], within_s: float) -> None:
        self.pairs, self.within_s = pairs, within_s
        self._num_partners = Counter(rank for pair in pairs for rank in pair)
        super().__init__(self.told(lambda rank: f"rank {rank}"))

    @property
    def lost(self) -> set[int]:
        """Of each pair the end that lost more partners; both, where they lost as many."""
        most = {pair: max(self._num_partners[rank] for rank in pair) for pair in self.pairs}
        return {rank for pair in self.pairs for rank in pair if self._num_partners[rank] == most[pair]}

    def told(self, name: Callable[[int], str]) -> str:
        """The pairs and who of them is lost, in a sentence. `name` is of a rank, for people."""
        pairs = [" and ".join(map(name, pair)) for pair in self.pairs]
        several = [name(rank) for rank in sorted(self.lost) if self._num_partners[rank] > 1]
        found = [f"lost by several partners: {_few(several)}"] if several else []
        if any(self._num_partners[one] == self._num_partners[other] == 1 for one, other in self.pairs):
            found.append("of a pair alone nobody can say which of its ends is lost")
        return f"no contact within {self.within_s:g} s between {_few(pairs)}; {'; '.join(found)}; {_TO_DO}"


def lost_pairs(told: Sequence[int], *, ends_at_once: bool) -> list[Pair]:
    """The pairs between which nothing moved, of what each rank told: the one from which nothing came, or NOBODY.

    `ends_at_once`: sending and receiving are one operation, which ends where both did (NCCL). Then a rank to which something came did send
    as well, and the one that waits for it waits in truth for whom it sends to. gloo's send ends when the kernel has taken the data.
    """
    waiting = [(source, rank) for rank, source in enumerate(told) if source != NOBODY]
    if ends_at_once:
        waiting = [(source, rank) for source, rank in waiting if told[source] != NOBODY] or waiting
    return sorted({(min(pair), max(pair)) for pair in waiting})


def _few(names: Sequence[str]) -> str:
    more = [f"and {len(names) - _MOST_TOLD} more"] if len(names) > _MOST_TOLD else []
    return ", ".join([*names[:_MOST_TOLD], *more])
