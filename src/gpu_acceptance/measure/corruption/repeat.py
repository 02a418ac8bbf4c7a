"""One kernel over and over on one GPU, every output hashed: a GPU must agree with itself.

Nothing waits for the device in between: hashes are copied as they come, and the host looks at them some repetitions
later, while it still holds the outputs. So the output that differs can be set beside the first, even if none ever differs again.
"""

import math
import time
from collections import Counter, deque
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gpu_acceptance.measure.corruption.determinism import is_deterministic
from gpu_acceptance.measure.corruption.hashing import Difference, Flip, as_text, find_differences, hash_tensors
from gpu_acceptance.measure.corruption.kernels import Kernel

MIN_REPETITIONS = 2  # of one alone nothing can be said
NUM_RERUNS = 3
MOST_MISMATCHES = 100  # that are listed
_IN_FLIGHT = 3  # repetitions whose outputs are held


@dataclass(frozen=True)
class RepeatResult:
    """One kernel on one GPU. Hashes are texts of 32 hexadecimal digits; repetitions count from 0."""

    kernel: str
    shape: str
    num_repetitions: int
    hash: str  # of most repetitions, re-runs included: two that differ cannot say which of them is right
    num_mismatches: int  # repetitions with another hash
    mismatches: tuple[int, ...]  # the first 100 of them
    input_hash: str  # before the first repetition
    inputs_changed: bool  # they have another hash after the last: memory went wrong, not arithmetic
    exposure_s: float  # the device's time in the kernel, without hashes and rests, and without repetition 0, which loads code
    hash_s: float  # likewise
    reruns_that_differ: int | None  # of 3 after a mismatch; None where there was none
    differences: tuple[Difference, ...] | None  # first repetition unlike repetition 0, against it; empty: only its hash differs
    planted: Flip | None  # a fault that was put there on purpose: this is a drill

    @property
    def hash_share(self) -> float:
        """Part of the device's time that hashing took."""
        return self.hash_s / (self.exposure_s + self.hash_s)


def repeat(
    kernel: Kernel,
    *,
    seconds: float | None = None,
    num_repetitions: int | None = None,
    pulse_s: float | None = None,
    steady_s: float = 0.0,
    flip: Flip | None = None,
) -> RepeatResult:
    """Run the kernel once, and then for `seconds` of wall time; or `num_repetitions` times. At least twice.

    `pulse_s` alternates as many seconds of load with as many of rest; the first rest comes after `steady_s`, if that is longer.
    `flip` plants a fault, for tests and drills.
    ValueError for arguments that make no sense; RuntimeError outside `deterministic`, where a healthy GPU may differ.
    """
    _refuse_nonsense(seconds, num_repetitions, pulse_s)
    if not is_deterministic():
        raise RuntimeError("repeat outside deterministic(): a healthy GPU may give other bits each time")
    run = _Run(kernel, flip)
    input_hash = run.input_hash()
    _load(run, seconds, num_repetitions, pulse_s, steady_s)
    repetitions, differences = tuple(run.hashes), run.differences
    inputs_changed, exposure_s, hash_s = run.input_hash() != input_hash, run.kernel_s, run.hash_s
    reruns = run.rerun() if len(set(repetitions)) > 1 else []
    common = Counter([*repetitions, *reruns]).most_common(1)[0][0]
    mismatches = [number for number, text in enumerate(repetitions) if text != common]
    return RepeatResult(
        kernel.name,
        kernel.shape,
        len(repetitions),
        common,
        len(mismatches),
        tuple(mismatches[:MOST_MISMATCHES]),
        input_hash,
        inputs_changed,
        exposure_s,
        hash_s,
        sum(text != common for text in reruns) if reruns else None,
        differences,
        flip,
    )


def _refuse_nonsense(seconds: float | None, num_repetitions: int | None, pulse_s: float | None) -> None:
    if (seconds is None) == (num_repetitions is None):
        raise ValueError(f"seconds={seconds} and num_repetitions={num_repetitions}: exactly one of them")
    if num_repetitions is not None and num_repetitions < MIN_REPETITIONS:
        raise ValueError(f"num_repetitions={num_repetitions}: at least {MIN_REPETITIONS}, or there is nothing to compare")
    for name, value in {"seconds": seconds, "pulse_s": pulse_s}.items():
        if value is not None and not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name}={value}: a finite number of seconds above zero")


def _load(run: "_Run", seconds: float | None, num_repetitions: int | None, pulse_s: float | None, steady_s: float) -> None:
    """Repetitions until it is enough, with rests in between where the load is to pulse.

    The time begins after repetition 0, which loads code: of attention on an H200 that alone took 2.7 s.
    """
    run.start()
    run.finish()
    started = time.monotonic()
    rested = started + max(0.0, steady_s - (pulse_s or 0.0))
    while run.num_started < MIN_REPETITIONS or _is_open(run.num_started, time.monotonic() - started, seconds, num_repetitions):
        run.start()
        if pulse_s is not None and time.monotonic() - rested >= pulse_s:
            run.finish()
            time.sleep(pulse_s)
            rested = time.monotonic()
    run.finish()


def _is_open(num_started: int, elapsed_s: float, seconds: float | None, num_repetitions: int | None) -> bool:
    return elapsed_s < seconds if seconds is not None else num_started < (num_repetitions or 0)


_Mark = torch.cuda.Event | float


@dataclass(frozen=True)
class _Repetition:
    outputs: tuple[Tensor, ...]
    sums: Tensor  # on the host, once `hashed` has come
    begun: _Mark
    computed: _Mark
    hashed: _Mark


@dataclass
class _Run:
    kernel: Kernel
    flip: Flip | None
    hashes: list[str] = field(default_factory=list)
    differences: tuple[Difference, ...] | None = None
    kernel_s: float = 0.0
    hash_s: float = 0.0
    num_started: int = 0
    _first: tuple[Tensor, ...] = ()
    _flying: deque[_Repetition] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self._device = self.kernel.inputs[0].device

    def input_hash(self) -> str:
        return as_text(hash_tensors(self.kernel.inputs))

    def start(self) -> None:
        """Enqueue one repetition; if too many are in flight, wait for the oldest."""
        if len(self._flying) >= _IN_FLIGHT:
            self._land()
        begun = _mark(self._device)
        outputs = self.kernel.run()
        computed = _mark(self._device)
        if self.flip:
            self.flip.apply(self.num_started, outputs)
        sums = _to_host(hash_tensors(outputs))
        self._flying.append(_Repetition(outputs, sums, begun, computed, _mark(self._device)))
        self.num_started += 1

    def finish(self) -> None:
        """Wait for all that is in flight."""
        while self._flying:
            self._land()

    def rerun(self) -> list[str]:
        """The hashes of three more repetitions, which count as none."""
        before = len(self.hashes)
        for _ in range(NUM_RERUNS):
            self.start()
        self.finish()
        return self.hashes[before:]

    def _land(self) -> None:
        repetition = self._flying.popleft()
        hash_s = _between_s(repetition.computed, repetition.hashed)
        self.hashes.append(as_text(repetition.sums))
        if len(self.hashes) == 1:
            self._first = repetition.outputs
            return
        self.hash_s += hash_s
        self.kernel_s += _between_s(repetition.begun, repetition.computed)
        if self.hashes[-1] != self.hashes[0] and self.differences is None:
            self.differences = find_differences(repetition.outputs, self._first)
        for output in repetition.outputs:
            output.zero_()  # its memory is used again: what a kernel leaves unwritten must not be the last right result


def _to_host(sums: Tensor) -> Tensor:
    """A copy that is there once the device has come so far."""
    if sums.device.type == "cpu":
        return sums
    return torch.empty(sums.shape, dtype=sums.dtype, pin_memory=True).copy_(sums, non_blocking=True)


def _mark(device: torch.device) -> _Mark:
    """A point in the device's work."""
    if device.type == "cpu":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event


def _between_s(begin: _Mark, end: _Mark) -> float:
    """Waits until the device has passed both."""
    if isinstance(begin, float) or isinstance(end, float):
        assert isinstance(begin, float)
        assert isinstance(end, float)
        return end - begin
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3
