"""Where the time of a DDP step goes: waiting for data, forward, backward, communication that nothing hides, optimizer.

Every other step does not reduce its gradients (`no_sync`), and they are thrown away: what a backward takes longer with reduction than
without is communication that was not hidden behind it. On a GPU events between the phases take the time and are read at the end, so that
the host runs ahead as in training; on a CPU a clock does. Data are made on the host and come from DataLoader workers; the wait for them
lasts from the end of one step until the inputs of the next are on the device.
"""

import statistics
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from gpu_acceptance.measure.collectives import largest
from gpu_acceptance.measure.train import data
from gpu_acceptance.measure.train.data import Batch
from gpu_acceptance.measure.train.loader import Repeated, loader_of
from gpu_acceptance.measure.train.models import build
from gpu_acceptance.measure.train.shapes import Shape

_SEED = 0
_NUM_BATCHES = 4  # that differ
_NUM_WARMUP = 4  # steps of each kind: compiling, opening connections, filling the loader


@dataclass(frozen=True)
class Phases:
    """Seconds of one step."""

    data_wait_s: float
    forward_s: float
    backward_s: float
    optimizer_s: float

    @property
    def step_s(self) -> float:
        return self.data_wait_s + self.forward_s + self.backward_s + self.optimizer_s


@dataclass(frozen=True)
class Split:
    """The steps of this rank, those that reduce their gradients and those that do not."""

    reduced: tuple[Phases, ...]
    alone: tuple[Phases, ...]
    batch_size: int  # of all ranks together, no sample twice

    def median_s(self, phase: str) -> float:
        """Of one step that reduces: `data_wait_s`, `forward_s`, `backward_s`, `optimizer_s` or `step_s`."""
        return _median(self.reduced, phase)

    @property
    def exposed_communication_s(self) -> float:
        """Within backward, of one step; below 0 where clocks moved by more than that."""
        return _median(self.reduced, "backward_s") - _median(self.alone, "backward_s")

    @property
    def data_wait_fraction(self) -> float:
        """Of all steps that reduce, together: a stall now and then counts as well."""
        return sum(step.data_wait_s for step in self.reduced) / sum(step.step_s for step in self.reduced)

    @property
    def samples_per_s(self) -> float:
        """Of all ranks together."""
        return self.batch_size / self.median_s("step_s")


def _median(steps: Sequence[Phases], phase: str) -> float:
    return float(statistics.median(getattr(step, phase) for step in steps))


def measure(shape: Shape, batch_size: int, *, device: torch.device, compiled: bool, num_steps: int, num_workers: int) -> Split:
    """Trains `num_steps` steps of each kind after a warm-up. Collective."""
    torch.manual_seed(_SEED)
    module = DistributedDataParallel(build(shape, device), gradient_as_bucket_view=True)
    if compiled:
        module.compile()
    optimizer = torch.optim.AdamW(module.parameters(), fused=True)
    loader = _loader(shape, batch_size, 2 * (_NUM_WARMUP + num_steps), num_workers, pin_memory=device.type == "cuda")
    largest(0, device)
    marks = _Marks(device)
    for number, batch in enumerate(loader):
        _step(module, optimizer, batch, marks, reduces=number % 2 == 0)
    steps = marks.steps()[2 * _NUM_WARMUP :]
    return Split(tuple(steps[::2]), tuple(steps[1::2]), batch_size * dist.get_world_size())


def _loader(shape: Shape, batch_size: int, num_steps: int, num_workers: int, *, pin_memory: bool) -> DataLoader[Batch]:
    """As many batches for each rank, of data made on the host."""
    batches = data.batches(shape, batch_size, _NUM_BATCHES, seed=_SEED, device=torch.device("cpu"))
    inputs, targets = (torch.cat(parts) for parts in zip(*batches, strict=True))
    dataset = Repeated(inputs, targets, num_steps * batch_size * dist.get_world_size())
    return loader_of(dataset, DistributedSampler(dataset), batch_size=batch_size, num_workers=num_workers, pin_memory=pin_memory)


class _Marks:
    """Moments between phases: of the device's own time where it is a GPU, for which the host does not wait."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._seconds: list[float] = []  # on a CPU
        self._events: list[torch.cuda.Event] = []
        self.put()

    def put(self) -> None:
        if self.device.type == "cpu":
            self._seconds.append(time.perf_counter())
        else:
            self._events.append(torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]
            self._events[-1].record(torch.cuda.current_stream(self.device))

    def steps(self) -> list[Phases]:
        """Four phases each, from the first mark on; waits for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        between = [end - begin for begin, end in pairwise(self._seconds)]
        between += [float(begin.elapsed_time(end)) / 1e3 for begin, end in pairwise(self._events)]
        return [Phases(*between[first : first + 4]) for first in range(0, len(between), 4)]


def _step(module: DistributedDataParallel, optimizer: torch.optim.Optimizer, batch: Batch, marks: _Marks, *, reduces: bool) -> None:
    """Collective where it reduces; else the weights stay."""
    device = marks.device
    inputs, targets = (part.to(device, non_blocking=True) for part in batch)
    marks.put()
    with nullcontext() if reduces else module.no_sync():
        with torch.autocast(device.type, torch.bfloat16):
            loss = module(inputs, targets)
        marks.put()
        loss.backward()
    marks.put()
    if reduces:
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    marks.put()
