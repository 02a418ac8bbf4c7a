"""A GPU under a mixed load for a long time: matrix products, memory, links, round after round, every result checked."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

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
class Load:
    """All rounds, at least three, back to back; in each what was done by work."""

    rounds: tuple[Mapping[str, Done], ...]
    begin_s: float
    end_s: float
    alarm: str = ""  # the reason why it ended early

    @property
    def ended_early(self) -> str:
        """`ended after round 17: reason`; empty where it did not end early."""
        return f"ended after round {len(self.rounds)}: {self.alarm}" if self.alarm else ""

    def num_wrong(self, work: str) -> int:
        return sum(one[work].num_wrong for one in self.rounds)

    def error(self, work: str) -> float:
        """Return the largest error of all rounds; infinite where an element of a product was not a number."""
        return max(one[work].error for one in self.rounds)

    def jitter(self, work: str) -> float:
        """Return the largest jitter after the round that heats."""
        return max(one[work].jitter for one in self.rounds[1:])

    def wrong_in(self, work: str) -> str:
        """Return `in round 17 of 480`; empty where nothing was wrong. Rounds count from 1."""
        numbers = [number for number, one in enumerate(self.rounds, 1) if one[work].num_wrong]
        more = ", ..." * (len(numbers) > _MOST_NAMED)
        named = ", ".join(map(str, numbers[:_MOST_NAMED]))
        return f"in {'round' if len(numbers) == 1 else 'rounds'} {named}{more} of {len(self.rounds)}" if numbers else ""

    def first_and_lowest_rate(self, work: str) -> tuple[float, float]:
        """Return the median rate of the first three rounds (fewer in a short load), and the lowest of as many rounds in a row.

        Without the round that heats: neither GPU nor cooling can have degraded by the first ones after it.
        """
        rates = [one[work].rate for one in self.rounds[1:]]
        number = min(_MOST_COMPARED, len(rates) - 1)
        medians = [statistics.median(rates[first : first + number]) for first in range(len(rates) - number + 1)]
        return medians[0], min(medians)


def measure(works: Mapping[str, Work], *, duration_s: float, agree: Callable[[bool], bool] = bool, alarm: Callable[[], str] = str) -> Load:
    """Run all works in their order, round after round, until `duration_s` are over, and at least three times.

    Collective where a work is. `agree` turns each rank's wish for another round into the same answer for all: yes, as long as any rank
    wants one. `alarm` is asked after each round and answers all ranks the same: a reason to end the load, or nothing.
    """
    rounds, reason = list[Mapping[str, Done]](), ""
    begin_s = end_s = 0.0
    while agree(len(rounds) < MIN_ROUNDS or not (reason or end_s - begin_s >= duration_s)):
        begin_s = begin_s or time.monotonic()  # once all ranks are there
        rounds.append({name: work() for name, work in works.items()})
        end_s = time.monotonic()
        reason = alarm() or reason
    return Load(tuple(rounds), begin_s, end_s, reason)


def works(
    *,
    device: torch.device,
    world_size: int,
    gemm_size: int,
    gemm_s: float,
    hbm_bytes: int,  # of each of three arrays
    hbm_s: float,
    nccl_bytes: int,
    nccl_s: float,
    num_blocks: int,
) -> dict[str, Work]:
    """Return the works by name, in their order: `gemm`, `hbm`, and with two ranks or more `nccl`, which is collective.

    Seconds are those of one round.
    """

    def timing(share_s: float) -> dict[str, Any]:
        return {"device": device, "block_s": share_s / (num_blocks + _MORE_BLOCKS), "num_blocks": num_blocks}

    def gemm() -> Done:
        found = measure_sustained(square(gemm_size), dtype="bf16", preheat_s=0.0, **timing(gemm_s))
        return Done(found.tflop_per_s, found.num_wrong, found.error, found.begin_s, found.end_s)

    def triad() -> Done:
        begin_s, found = time.monotonic(), hbm.measure("triad", array_bytes=hbm_bytes, **timing(hbm_s))
        return Done(found.gb_per_s, found.num_wrong, 0.0, begin_s, time.monotonic())

    def all_reduce() -> Done:
        begin_s, found = time.monotonic(), nccl.measure("all_reduce", num_bytes=nccl_bytes, **timing(nccl_s))
        return Done(found.busbw_gb_per_s, found.num_wrong, 0.0, begin_s, time.monotonic(), found.p99_s / found.p50_s)

    alone: dict[str, Work] = {"gemm": gemm, "hbm": triad}
    return {**alone, "nccl": all_reduce} if world_size > 1 else alone
