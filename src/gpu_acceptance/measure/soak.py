"""A GPU under a mixed load for a long time: matrix products, memory, links, round after round, every result checked."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from gpu_acceptance.measure import hbm, nccl
from gpu_acceptance.measure.gemm.operands import square
from gpu_acceptance.measure.gemm.rates import measure_sustained

MIN_ROUNDS = 3  # one that heats, one at the beginning, one after it
_MOST_COMPARED = 3  # rounds
_MOST_NAMED = 20  # rounds
UNITS = {"gemm": "TFLOP/s", "hbm": "GB/s", "nccl": "GB/s"}  # of the rates, by work
_MORE_BLOCKS = 2


@dataclass(frozen=True)
class Done:
    """One work in one round. Between the two moments of time.monotonic() the device did this and hardly anything else."""

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
    alarm: str = ""  # the reason why it ended early

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
        """`ended after round 17: reason`; empty where it did not end early."""
        return f"ended after round {len(self.rounds)}: {self.alarm}" if self.alarm else ""

    def num_wrong(self, work: str) -> int:
        return sum(one.done[work].num_wrong for one in self.rounds)

    def error(self, work: str) -> float:
        """Return the largest error of all rounds; infinite where an element of a product was not a number."""
        return max(one.done[work].error for one in self.rounds)

    def jitter(self, work: str) -> float:
        """Return the largest jitter after the round that heats."""
        return max(one.done[work].jitter for one in self.rounds[1:])

    def wrong_in(self, work: str) -> str:
        """Return `in round 17 of 480`; empty where nothing was wrong. Rounds count from 1."""
        numbers = [number for number, one in enumerate(self.rounds, 1) if one.done[work].num_wrong]
        more = ", ..." * (len(numbers) > _MOST_NAMED)
        named = ", ".join(map(str, numbers[:_MOST_NAMED]))
        return f"in {'round' if len(numbers) == 1 else 'rounds'} {named}{more} of {len(self.rounds)}" if numbers else ""

    def _medians(self, work: str) -> list[float]:
        """Return the median rate of each three rounds in a row (fewer in a short load), without the round that heats."""
        rates = [one.done[work].rate for one in self.rounds[1:]]
        number = min(_MOST_COMPARED, len(rates) - 1)
        return [statistics.median(rates[first : first + number]) for first in range(len(rates) - number + 1)]

    def first_rate(self, work: str) -> float:
        """Return the median rate of the first rounds after the one that heats: neither GPU nor cooling can have degraded by then."""
        return self._medians(work)[0]

    def lowest_rate(self, work: str) -> float:
        """Return the lowest median rate of as many rounds in a row."""
        return min(self._medians(work))

    def drift_percent(self, work: str) -> float:
        """Return the lowest rate against the first: at most 0, and below it where the work was slower at any time."""
        return 100 * (self.lowest_rate(work) / self.first_rate(work) - 1)


def measure(works: Mapping[str, Work], *, duration_s: float, agree: Callable[[bool], bool] = bool, alarm: Callable[[], str] = str) -> Load:
    """Run all works in their order, round after round, until `duration_s` are over, and at least three times.

    Collective where a work is. `agree` turns each rank's wish for another round into the same answer for all: yes, as long as any rank
    wants one. `alarm` is asked after each round and answers all ranks the same: a reason to end the load, or nothing.
    """
    rounds, reason = list[Round](), ""
    while agree(len(rounds) < MIN_ROUNDS or not (reason or Load(tuple(rounds)).length_s >= duration_s)):
        begin_s = time.monotonic()
        done = {name: work() for name, work in works.items()}
        rounds.append(Round(begin_s, time.monotonic(), done))
        reason = alarm() or reason
    return Load(tuple(rounds), reason)


@dataclass(frozen=True)
class Sizes:
    """Sizes of one round on each rank."""

    gemm_size: int
    gemm_dtype: str
    gemm_s: float
    hbm_bytes: int  # of each of three arrays
    hbm_s: float
    nccl_bytes: int
    nccl_s: float
    num_blocks: int


def works(sizes: Sizes, *, device: torch.device, world_size: int) -> dict[str, Work]:
    """Return the works by name, in their order: `gemm`, `hbm`, and with two ranks or more `nccl`, which is collective."""
    num_blocks = sizes.num_blocks

    def block_s(share_s: float) -> float:
        return share_s / (num_blocks + _MORE_BLOCKS)

    def gemm() -> Done:
        shape, seconds = square(sizes.gemm_size), block_s(sizes.gemm_s)
        found = measure_sustained(shape, dtype=sizes.gemm_dtype, device=device, preheat_s=0.0, block_s=seconds, num_blocks=num_blocks)
        return Done(found.tflop_per_s, found.num_wrong, found.error, found.begin_s, found.end_s)

    def triad() -> Done:
        begin_s = time.monotonic()
        found = hbm.measure("triad", array_bytes=sizes.hbm_bytes, device=device, block_s=block_s(sizes.hbm_s), num_blocks=num_blocks)
        return Done(found.gb_per_s, found.num_wrong, 0.0, begin_s, time.monotonic())

    def all_reduce() -> Done:
        begin_s, num_bytes = time.monotonic(), sizes.nccl_bytes
        found = nccl.measure("all_reduce", num_bytes=num_bytes, device=device, block_s=block_s(sizes.nccl_s), num_blocks=num_blocks)
        return Done(found.busbw_gb_per_s, found.num_wrong, 0.0, begin_s, time.monotonic(), found.p99_s / found.p50_s)

    alone: dict[str, Work] = {"gemm": gemm, "hbm": triad}
    return {**alone, "nccl": all_reduce} if world_size > 1 else alone
