"""Training on one GPU by itself, all at the same time: what a job of many GPUs is held against."""

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from gpu_acceptance.measure.timing import time_each
from gpu_acceptance.measure.train.data import ON_DEVICE, Feed
from gpu_acceptance.measure.train.shapes import Workload
from gpu_acceptance.measure.train.trained import Times, Trained, Training
from gpu_acceptance.measure.train.tuned import tuned

_NUM_SINGLES = 40  # steps that are timed one by one


@dataclass(frozen=True)
class SingleResult:
    """One model on this rank alone."""

    trained: Trained
    steps_s: tuple[float, ...]  # single ones, one after the other

    @property
    def p50_s(self) -> float:
        return statistics.median(self.steps_s)

    @property
    def p99_s(self) -> float:
        """Nearest rank: of 40 steps the longest."""
        return sorted(self.steps_s)[math.ceil(0.99 * len(self.steps_s)) - 1]


def measure(
    workload: Workload,
    *,
    rank: int,
    device: torch.device,
    compiled: bool,
    times: Times,
    agree: Callable[[int], int],
    feed: Feed = ON_DEVICE,
) -> SingleResult:
    """Trains in blocks that begin together. `agree` gives the largest of one number from each rank. Collective, in `agree` alone."""

    def wrap(model: nn.Module) -> nn.Module:
        if compiled:
            model.compile()
        return model

    with tuned(workload, device):
        training = Training(workload, rank, device, wrap, feed=feed)
        blocks = training.time_blocks(times, agree)
        steps_s = tuple(time_each(training.step, _NUM_SINGLES, device))
        trained = training.told(blocks.median_s, blocks.cv_percent, blocks.spans[0].begin_s, blocks.spans[-1].end_s)
    return SingleResult(trained, steps_s)
