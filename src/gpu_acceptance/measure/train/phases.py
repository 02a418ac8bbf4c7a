"""Where the time of a training step goes: waiting for data, forward, backward, optimizer.

On a GPU events between the phases take the time and are read at the end, so that the host runs ahead as in training; on a CPU a clock
does. The wait for data lasts from the end of one step until the inputs of the next are on the device.
"""

import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Literal

import torch

Phase = Literal["data_wait", "forward", "backward", "optimizer"]


@dataclass(frozen=True)
class Phases:
    """Seconds."""

    data_wait_s: float = 0.0
    forward_s: float = 0.0
    backward_s: float = 0.0
    optimizer_s: float = 0.0

    @property
    def step_s(self) -> float:
        return self.data_wait_s + self.forward_s + self.backward_s + self.optimizer_s


class Marks:
    """Moments at which a phase ended: of the device's own time where it is a GPU, without waiting for it. None is taken before `begin`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._forget()

    def begin(self) -> None:
        """Forgets what was, and starts anew from now."""
        self._forget()
        self._put()

    def end(self, phase: Phase) -> None:
        """What ended now; `optimizer` ends a step."""
        if self._moments or self._events:  # it has begun
            self._names.append(phase)
            self._put()

    def steps(self) -> list[Phases]:
        """All since the beginning; waits for the device."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        taken = [end - begin for begin, end in pairwise(self._moments)]
        taken += [float(begin.elapsed_time(end)) / 1e3 for begin, end in pairwise(self._events)]
        steps, totals_s = list[Phases](), defaultdict[str, float](float)
        for name, seconds in zip(self._names, taken, strict=True):
            totals_s[f"{name}_s"] += seconds
            if name == "optimizer":
                steps.append(Phases(**totals_s))
                totals_s.clear()
        return steps

    def _forget(self) -> None:
        self._moments: list[float] = []  # on a CPU
        self._events: list[torch.cuda.Event] = []
        self._names: list[Phase] = []

    def _put(self) -> None:
        if self._device.type == "cpu":
            self._moments.append(time.perf_counter())
        else:
            self._events.append(torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]
            self._events[-1].record(torch.cuda.current_stream(self._device))


def median(steps: Sequence[Phases]) -> Phases:
    """Of each phase by itself."""
    return Phases(*(statistics.median(getattr(step, field.name) for step in steps) for field in fields(Phases)))


def data_wait_fraction(steps: Sequence[Phases]) -> float:
    """Of the time of all together."""
    return sum(step.data_wait_s for step in steps) / sum(step.step_s for step in steps)
