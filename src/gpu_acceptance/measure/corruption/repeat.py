"""One kernel over and over on one GPU, every output hashed: a GPU must agree with itself.

Nothing waits for the device in between. Hashes are copied as they come, and the host compares them some repetitions later, while it still
holds the outputs. So the output that differs can be compared with the first, even if none ever differs again.
"""

import os
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.backends import cudnn
from torch.utils import deterministic as _memory

from gpu_acceptance.measure.corruption.hashing import Difference, Flip, as_text, digest, find_differences, hash_tensors
from gpu_acceptance.measure.corruption.kernels import Kernel
from gpu_acceptance.measure.gemm.operands import flags_set
from gpu_acceptance.measure.timing import Mark

VARIABLE = "CUBLAS_WORKSPACE_CONFIG"
ALLOWED = (":4096:8", ":16:8")  # torch knows these as deterministic (at::Context::checkCuBLASConfigDeterministic)
ENVIRONMENT = {VARIABLE: ALLOWED[0]}  # a worker must start with this: cuBLAS reads it at its first call
_OVERRIDE = "NVIDIA_TF32_OVERRIDE"
_REFUSE = 2  # torch's mode in which an algorithm that is not deterministic is an error
MIN_REPETITIONS = 2  # one alone has nothing to compare with
NUM_RERUNS = 3
_IN_FLIGHT = 3  # repetitions whose outputs are held


@contextmanager
def deterministic(device: torch.device) -> Iterator[None]:
    """Allow only deterministic algorithms, no reduced-precision sums, no TF32 unless asked for; restore all flags at the end.

    RuntimeError on a GPU where CUBLAS_WORKSPACE_CONFIG is not set: cuBLAS reads it once, at its first call, so this cannot set it any more.
    Where it was set too late, torch has noted that at its first cuBLAS call and refuses each that follows.
    """
    if device.type == "cuda":
        _refuse_environment()
    mode, matmul = torch.get_deterministic_debug_mode(), torch.backends.cuda.matmul
    wanted = (
        (_memory, "fill_uninitialized_memory", False),  # filled, each temporary of a hash would be written twice
        (cudnn, "enabled", True),
        (cudnn, "deterministic", True),
        (cudnn, "benchmark", False),
        (matmul, "fp32_precision", "ieee"),
        (matmul, "allow_bf16_reduced_precision_reduction", False),
        (matmul, "allow_fp16_reduced_precision_reduction", False),
    )
    try:
        torch.set_deterministic_debug_mode(_REFUSE)  # use_deterministic_algorithms does the same after importing torch's compiler
        with flags_set(wanted):
            yield
    finally:
        torch.set_deterministic_debug_mode(mode)


def _refuse_environment() -> None:
    seen = os.environ.get(VARIABLE)
    if seen not in ALLOWED:
        was = "is not set" if seen is None else f"is {seen!r}"
        raise RuntimeError(
            f"{VARIABLE} {was}; needed is {' or '.join(ALLOWED)}, before the first cuBLAS call: set it where the process is started"
        )
    if _OVERRIDE in os.environ:
        raise RuntimeError(f"{_OVERRIDE} is {os.environ[_OVERRIDE]!r}: libraries would not use the precision that is asked for; unset it")


@dataclass(frozen=True)
class RepeatResult:
    """One kernel on one GPU. Hashes are texts of 32 hexadecimal digits; repetitions count from 0."""

    kernel: str
    shape: str
    num_repetitions: int
    hash: str  # of most repetitions, re-runs included: of two that differ, the right one cannot be told
    mismatches: tuple[int, ...]  # repetitions with another hash
    input_hash: str  # before the first repetition
    inputs_changed: bool  # they have another hash after the last: memory went wrong, not arithmetic
    exposure_s: float  # the device's time in the kernel, without hashes and rests, and without repetition 0, which loads code
    hash_s: float  # the device's time in hashes, without repetition 0
    reruns_that_differ: int | None  # of 3 after a mismatch; None where there was none
    differences: tuple[Difference, ...] | None  # first repetition unlike repetition 0, against it; empty: only its hash differs
    planted: Flip | None  # the fault of a drill

    @property
    def work(self) -> str:
        """`mm_bf16 8191x8193x4099`."""
        return f"{self.kernel} {self.shape}"


def repeat(
    kernel: Kernel,
    *,
    seconds: float = 0.0,
    num_repetitions: int = MIN_REPETITIONS,
    pulse_s: float | None = None,
    steady_s: float = 0.0,
    flip: Flip | None = None,
) -> RepeatResult:
    """Run the kernel once, and then for `seconds` of wall time; `num_repetitions` times at least, and at least twice.

    The time begins after repetition 0, which loads code: of attention on an H200 that alone took 2.7 s.
    `pulse_s` alternates as many seconds of load with as many of rest; the first rest comes after `steady_s`, if that is longer.
    `flip` plants a fault, for tests and drills.
    RuntimeError outside `deterministic`, where a healthy GPU may differ.
    """
    if torch.get_deterministic_debug_mode() != _REFUSE:  # a mere warning is not enough: attention then takes other algorithms
        raise RuntimeError("repeat outside deterministic(): a healthy GPU may give other bits each time")
    run = _Run(kernel, flip)
    run.start()
    run.finish()
    started = time.monotonic()
    rested = started + max(0.0, steady_s - (pulse_s or 0.0))
    while run.num_started < num_repetitions or time.monotonic() - started < seconds:
        run.start()
        if pulse_s is not None and time.monotonic() - rested >= pulse_s:
            run.finish()
            time.sleep(pulse_s)
            rested = time.monotonic()
    run.finish()
    return run.result()


class _Run:
    """The repetitions of one kernel: those in flight, and the hashes of those that have landed."""

    def __init__(self, kernel: Kernel, flip: Flip | None) -> None:
        self._kernel, self._flip = kernel, flip
        self._first: tuple[Tensor, ...] = ()
        self._flying: deque[tuple[tuple[Tensor, ...], Tensor, Mark, Mark, Mark]] = deque()
        self._hashes: list[str] = []
        self._differences: tuple[Difference, ...] | None = None
        self._kernel_s, self._hash_s, self._input_hash = 0.0, 0.0, digest(kernel.inputs)
        self.num_started = 0

    def start(self) -> None:
        """Enqueue one repetition; if too many are in flight, wait for the oldest."""
        if len(self._flying) >= _IN_FLIGHT:
            self._land()
        device = self._kernel.inputs[0].device
        begun = Mark(device).put()
        outputs = self._kernel.run()
        computed = Mark(device).put()
        if self._flip:
            self._flip.apply(self.num_started, outputs)
        sums = hash_tensors(outputs)
        if device.type == "cuda":  # a copy that is there once the device has come so far
            sums = torch.empty(sums.shape, dtype=sums.dtype, pin_memory=True).copy_(sums, non_blocking=True)
        self._flying.append((outputs, sums, begun, computed, Mark(device).put()))
        self.num_started += 1

    def finish(self) -> None:
        """Wait for all repetitions in flight."""
        while self._flying:
            self._land()

    def _land(self) -> None:
        outputs, sums, begun, computed, hashed = self._flying.popleft()
        hash_s = computed.seconds_to(hashed)  # waits: the sums are on the host then
        self._hashes.append(as_text(sums))
        if len(self._hashes) == 1:
            self._first = outputs
            return
        self._hash_s += hash_s
        self._kernel_s += begun.seconds_to(computed)
        if self._hashes[-1] != self._hashes[0] and self._differences is None:
            self._differences = find_differences(outputs, self._first)
        for output in outputs:
            output.zero_()  # its memory is used again: a kernel that leaves it unwritten must not show the last right result

    def result(self) -> RepeatResult:
        """Compare all hashes. After a mismatch three more repetitions run, which count only for the majority."""
        hashes, differences, kernel_s, hash_s = tuple(self._hashes), self._differences, self._kernel_s, self._hash_s
        inputs_changed = digest(self._kernel.inputs) != self._input_hash
        for _ in range(NUM_RERUNS if len(set(hashes)) > 1 else 0):
            self.start()
        self.finish()
        reruns = self._hashes[len(hashes) :]
        common = Counter(self._hashes).most_common(1)[0][0]
        return RepeatResult(
            kernel=self._kernel.name,
            shape=self._kernel.shape,
            num_repetitions=len(hashes),
            hash=common,
            mismatches=tuple(number for number, text in enumerate(hashes) if text != common),
            input_hash=self._input_hash,
            inputs_changed=inputs_changed,
            exposure_s=kernel_s,
            hash_s=hash_s,
            reruns_that_differ=sum(text != common for text in reruns) if reruns else None,
            differences=differences,
            planted=self._flip,
        )
