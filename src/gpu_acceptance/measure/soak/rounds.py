"""The rounds of a soak, and the works that load each GPU in them."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from gpu_acceptance.measure import hbm, nccl
from gpu_acceptance.measure.gemm import sustained
from gpu_acceptance.measure.gemm.operands import square

MIN_ROUNDS = 3  # one that heats, one at the beginning, one after it
_MOST_COMPARED = 3  # rounds
_MOST_NAMED = 20  # rounds
UNITS = {"gemm": "TFLOP/s", "hbm": "GB/s", "nccl": "GB/s"}  # of the rates, by work
_MORE_BLOCKS = 2


@dataclass(frozen=True)
class Done:
    """One work in one round. The moments are of time.monotonic(); in between the device did this and hardly anything else."""

    rate: float  # TFLOP/s or GB/s
    num_wrong: int  # elements of the output
    error: float  # relative, of a random product; 0 where the work has none
    begin_s: float
    end_s: float
    jitter: float = 1.0  # 99th percentile of single operations over their median, where the work times them


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
    alarm: str = ""  # why it ended before its time

    @property
    def begin_s(self) -> float:
        return self.rounds[0].begin_s

    @property
    def end_s(self) -> float:
        return self.rounds[-1].end_s

    @property
    def length_s(self) -> float:
        return self.end_s - self.begin_s

    @property
    def ended_early(self) -> str:
        """`ended after round 17: why`; empty where it did not."""
        return f"ended after round {len(self.rounds)}: {self.alarm}" if self.alarm else ""

    def num_wrong(self, work: str) -> int:
        return sum(one.done[work].num_wrong for one in self.rounds)

    def error(self, work: str) -> float:
        """The largest of all rounds; infinite where a product had a value that is no number."""
        return max(one.done[work].error for one in self.rounds)

    def jitter(self, work: str) -> float:
        """The largest after the round that heats."""
        return max(one.done[work].jitter for one in self.heated)

    def wrong_in(self, work: str) -> str:
        """`in round 17 of 480`; empty where nothing was wrong. Rounds count from 1."""
        numbers = [number for number, one in enumerate(self.rounds, 1) if one.done[work].num_wrong]
        more = ", ..." * (len(numbers) > _MOST_NAMED)
        named = ", ".join(map(str, numbers[:_MOST_NAMED]))
        return f"in {'round' if len(numbers) == 1 else 'rounds'} {named}{more} of {len(self.rounds)}" if numbers else ""

    @property
    def heated(self) -> tuple[Round, ...]:
        """All rounds but the first."""
        return self.rounds[1:]

    def first_rate(self, work: str) -> float:
        """Median of the first three rounds after the one that heats, of one at least: before a GPU or its cooling can have tired."""
        return statistics.median(one.done[work].rate for one in self.heated[: self._num_compared])

    def lowest_rate(self, work: str) -> float:
        """The lowest median of as many rounds in a row, of all after the one that heats."""
        rates, number = [one.done[work].rate for one in self.heated], self._num_compared
        return min(statistics.median(rates[first : first + number]) for first in range(len(rates) - number + 1))

    @property
    def _num_compared(self) -> int:
        return min(_MOST_COMPARED, len(self.heated) - 1)

    def drift_percent(self, work: str) -> float:
        """Of the lowest rate against the first: at most 0, and below it where the work was slower at any time."""
        return 100 * (self.lowest_rate(work) / self.first_rate(work) - 1)


def measure(works: Mapping[str, Work], *, duration_s: float, agree: Callable[[bool], bool] = bool, alarm: Callable[[], str] = str) -> Load:
    """All works in their order, round after round, until `duration_s` are over, and at least three times.

    Where a work is collective this is too: `agree` turns what each rank wants, another round or none, into the same for all: another one
    as long as any rank wants it. `alarm` is asked after each round and tells all ranks the same: why there need be no more; empty: nothing.
    """
    rounds, why = list[Round](), ""
    while agree(len(rounds) < MIN_ROUNDS or not (why or Load(tuple(rounds)).length_s >= duration_s)):
        rounds.append(_round(works))
        why = alarm() or why
    return Load(tuple(rounds), why)


def _round(works: Mapping[str, Work]) -> Round:
    begin_s = time.monotonic()
    done = {name: work() for name, work in works.items()}
    return Round(begin_s, time.monotonic(), done)


@dataclass(frozen=True)
class Sizes:
    """Of one round on each rank."""

    gemm_size: int
    gemm_dtype: str
    gemm_s: float
    hbm_bytes: int  # of each of three arrays
    hbm_s: float
    nccl_bytes: int
    nccl_s: float
    num_blocks: int


def works(sizes: Sizes, *, device: torch.device, world_size: int) -> dict[str, Work]:
    """By name, in their order: `gemm`, `hbm`, and where there are two ranks or more `nccl`, which is collective."""

    def block_s(share_s: float) -> float:
        return share_s / (sizes.num_blocks + _MORE_BLOCKS)

    def gemm() -> Done:
        shape = square(sizes.gemm_size)
        found = sustained.measure(
            shape, dtype=sizes.gemm_dtype, device=device, preheat_s=0.0, block_s=block_s(sizes.gemm_s), num_blocks=sizes.num_blocks
        )
        return Done(found.tflop_per_s, found.num_wrong, found.error, found.begin_s, found.end_s)

    def triad() -> Done:
        begin_s = time.monotonic()
        found = hbm.measure("triad", array_bytes=sizes.hbm_bytes, device=device, block_s=block_s(sizes.hbm_s), num_blocks=sizes.num_blocks)
        return Done(found.gb_per_s, found.num_wrong, 0.0, begin_s, time.monotonic())

    def all_reduce() -> Done:
        begin_s = time.monotonic()
        found = nccl.measure(
            "all_reduce", num_bytes=sizes.nccl_bytes, device=device, block_s=block_s(sizes.nccl_s), num_blocks=sizes.num_blocks
        )
        return Done(found.busbw_gb_per_s, found.num_wrong, 0.0, begin_s, time.monotonic(), found.p99_s / found.p50_s)

    alone: dict[str, Work] = {"gemm": gemm, "hbm": triad}
    return {**alone, "nccl": all_reduce} if world_size > 1 else alone
