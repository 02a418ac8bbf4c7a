"""Rounds of work until a time is over, and whether the rates held: the end against the beginning.

The first round heats: what it got wrong counts, its rates do not. Knows no torch: a work says itself how fast it was.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

MIN_ROUNDS = 3  # one that heats, one at the beginning, one at the end
_TENTH = 0.1
_MOST_NAMED = 20  # rounds


@dataclass(frozen=True)
class Done:
    """One work in one round. The moments are of time.monotonic(); in between the device did this and hardly anything else."""

    rate: float  # TFLOP/s or GB/s
    num_wrong: int  # elements of the output
    begin_s: float
    end_s: float


Work = Callable[[], Done]


@dataclass(frozen=True)
class Round:
    begin_s: float
    end_s: float
    done: Mapping[str, Done]  # by work


@dataclass(frozen=True)
class Load:
    """All rounds, at least three."""

    rounds: tuple[Round, ...]

    @property
    def begin_s(self) -> float:
        return self.rounds[0].begin_s

    @property
    def end_s(self) -> float:
        return self.rounds[-1].end_s

    @property
    def length_s(self) -> float:
        return self.end_s - self.begin_s

    def num_wrong(self, work: str) -> int:
        return sum(one.done[work].num_wrong for one in self.rounds)

    def wrong_in(self, work: str) -> str:
        """`in round 17 of 480`; empty where nothing was wrong. Rounds count from 1."""
        numbers = [number for number, one in enumerate(self.rounds, 1) if one.done[work].num_wrong]
        more = ", ..." * (len(numbers) > _MOST_NAMED)
        named = ", ".join(map(str, numbers[:_MOST_NAMED]))
        return f"in {'round' if len(numbers) == 1 else 'rounds'} {named}{more} of {len(self.rounds)}" if numbers else ""

    def first_rate(self, work: str) -> float:
        """Median of the rounds that begin in the first tenth of the time after the first round, of at least one."""
        heated = self.rounds[1:]
        until_s = heated[0].begin_s + _TENTH * (self.end_s - heated[0].begin_s)
        return statistics.median(one.done[work].rate for one in heated if one.begin_s <= until_s)

    def last_rate(self, work: str) -> float:
        """Median of the rounds that end in the last tenth of that time, of at least one."""
        heated = self.rounds[1:]
        from_s = self.end_s - _TENTH * (self.end_s - heated[0].begin_s)
        return statistics.median(one.done[work].rate for one in heated if one.end_s >= from_s)

    def drift_percent(self, work: str) -> float:
        """Of the last rate against the first; below 0 it became slower."""
        return 100 * (self.last_rate(work) / self.first_rate(work) - 1)


def measure(works: Mapping[str, Work], *, duration_s: float, agree: Callable[[bool], bool] = bool) -> Load:
    """All works in their order, round after round, until `duration_s` are over, and at least three times.

    Where a work is collective this is too: `agree` turns what each rank wants, another round or none, into the same for all: another one
    as long as any rank wants it.
    """
    rounds: list[Round] = []
    while agree(len(rounds) < MIN_ROUNDS or Load(tuple(rounds)).length_s < duration_s):
        rounds.append(_round(works))
    return Load(tuple(rounds))


def _round(works: Mapping[str, Work]) -> Round:
    begin_s = time.monotonic()
    done = {name: work() for name, work in works.items()}
    return Round(begin_s, time.monotonic(), done)
