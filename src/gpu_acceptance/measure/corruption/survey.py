"""Every kernel at every shape on one device: counts for the verdict, and the kernels, shapes and ranks they come from."""

import hashlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from gpu_acceptance.measure.corruption import kernels
from gpu_acceptance.measure.corruption.hashing import Difference, Flip
from gpu_acceptance.measure.corruption.repeat import NUM_RERUNS, RepeatResult, deterministic, repeat

SHORT = 6  # hexadecimal digits of one work in a fingerprint: 24 bits tell which of them differ
_LIBRARIES = ("torch", "cuda", "cudnn", "driver")
CONFIDENCE = 0.95


def majority(hashes: Sequence[str]) -> str | None:
    """Return the hash of more than half; None where no hash has a majority."""
    common, number = Counter(hashes).most_common(1)[0]
    return common if 2 * number > len(hashes) else None


def kind_of(device: torch.device, versions: Mapping[str, str]) -> str:
    """Return all facts that must be equal for bits to be equal: `NVIDIA H200, 132 SMs, torch 2.11.0, cuda 13.0, ...`.

    `versions`: by name.
    """
    libraries = [f"{name} {versions[name]}" for name in _LIBRARIES if name in versions]
    if device.type == "cpu":
        return ", ".join([f"CPU with {torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads", *libraries])
    seen = torch.cuda.get_device_properties(device)
    return ", ".join([f"{seen.name}, {seen.multi_processor_count} SMs", *libraries])


def odd_kind(own: str, kinds: Sequence[str]) -> str:
    """Return the reason why hashes of a rank of kind `own` are not compared with those of most ranks; empty where they are.

    `kinds`: of all ranks. Nothing is compared where two kinds are equally common.
    """
    (common, num_common), *others = Counter(kinds).most_common(2)
    if others and others[0][1] == num_common:
        return f"not compared: this is {own}; of {len(kinds)} ranks, no kind is that of most"
    return "" if own == common else f"not compared: this is {own}; most ranks are {common}"


def differing_works(own: str, kind: str, works: Sequence[str], fingerprints: Sequence[tuple[str, str]]) -> str:
    """Name the works in which this rank's bits are not those of most of its kind; empty where there is none, or no peer.

    `own`: its fingerprint, `SHORT` digits for each work; `fingerprints`: kind and fingerprint of every rank.
    """
    peers = [fingerprint for its_kind, fingerprint in fingerprints if its_kind == kind]
    differing = []
    for number, name in enumerate(works):
        digits = slice(SHORT * number, SHORT * (number + 1))
        parts = [peer[digits] for peer in peers]
        if len(set(parts)) > 1 and own[digits] != majority(parts):
            differing.append(name)
    return f"differs in {', '.join(differing)}" if differing else ""


def excluded_rate_per_minute(exposure_s: float) -> float:
    """Return the smallest rate, in events per minute of exposure, that a clean run of `exposure_s` excludes at 95 %."""
    return -math.log(1 - CONFIDENCE) / (exposure_s / 60)


@dataclass(frozen=True)
class Survey:
    """All kernels of one device. `results` are in the order of kernels.NAMES, and for each in that of kernels.SIZES."""

    results: tuple[RepeatResult, ...]
    unsupported: Mapping[str, str]  # kernel -> the reason why this device cannot run it

    @property
    def by_kernel(self) -> dict[str, list[RepeatResult]]:
        """The results of each kernel that ran, one for each shape."""
        found: dict[str, list[RepeatResult]] = {}
        for result in self.results:
            found.setdefault(result.kernel, []).append(result)
        return found

    @property
    def num_mismatches(self) -> int:
        """The number of repetitions whose hash is not that of most of the same kernel and shape."""
        return sum(len(result.mismatches) for result in self.results)

    @property
    def mismatches(self) -> str:
        """The kernels of these repetitions, with their differences; empty where there are none."""
        return "; ".join(_described(result) for result in self.results if result.mismatches)

    @property
    def inputs_changed(self) -> tuple[str, ...]:
        """The works whose inputs had another hash after the last repetition."""
        return tuple(result.work for result in self.results if result.inputs_changed)

    @property
    def num_planted(self) -> int:
        """The number of repetitions with a planted fault."""
        return sum(result.planted.is_due(number) for result in self.results if result.planted for number in range(result.num_repetitions))

    @property
    def hash(self) -> str:
        """The hash of all inputs and outputs: 32 hexadecimal digits."""
        return _digest(self.results, 32)

    @property
    def works(self) -> tuple[str, ...]:
        """Kernels and shapes, in the order of the fingerprint."""
        return tuple(result.work for result in self.results)

    @property
    def fingerprint(self) -> str:
        """`SHORT` digits for each work: short enough that every rank can send it to all others."""
        return "".join(_digest([result], SHORT) for result in self.results)

    @property
    def detection_limits_per_minute(self) -> tuple[float, float]:
        """The smallest rates of corruption that a clean run excludes at 95 %: in any kernel, and in the one with the least device time."""
        exposures_s = [sum(result.exposure_s for result in results) for results in self.by_kernel.values()]
        return excluded_rate_per_minute(sum(exposures_s)), excluded_rate_per_minute(min(exposures_s))


def measure(*, device: torch.device, seconds: float, pulse_s: float | None = None, flip_every: int = 0) -> Survey:
    """Run each kernel that the device supports, at each shape, for `seconds` of wall time and at least twice.

    `pulse_s`: in the second half of the time, as many seconds of load and of rest in turns.
    `flip_every`: a planted fault flips one bit in one of as many repetitions, counted over all kernels; 0: no fault.
    """
    able = [name for name in kernels.NAMES if not kernels.unsupported(name, device)]
    results: list[RepeatResult] = []
    with deterministic(device):
        for name in able:
            for size in kernels.SIZES:
                flip = None
                if flip_every:
                    num_done = sum(result.num_repetitions for result in results)
                    flip = Flip(repetition=flip_every - 1 - num_done % flip_every, element=77, bit=3, every=flip_every)
                results.append(repeat(kernels.make(name, size, device), seconds=seconds, pulse_s=pulse_s, steady_s=seconds / 2, flip=flip))
    return Survey(tuple(results), {name: kernels.unsupported(name, device) for name in kernels.NAMES if name not in able})


def _digest(results: Sequence[RepeatResult], num_digits: int) -> str:
    text = "".join(f"{result.work} {result.input_hash} {result.hash}\n" for result in results)
    return hashlib.sha256(text.encode()).hexdigest()[:num_digits]


def _described(result: RepeatResult) -> str:
    assert result.differences is not None, "hashes differ, and no outputs were compared"
    found = "; ".join(map(_signature, result.differences)) or "its hash alone, and no bit of the output"
    reruns = f"{result.reruns_that_differ} of {NUM_RERUNS} re-runs differ{', planted' * bool(result.planted)}"
    return f"{result.work}: {len(result.mismatches)} of {result.num_repetitions} repetitions differ ({found}; {reruns})"


def _signature(difference: Difference) -> str:
    at = ", ".join(map(str, difference.first))
    more = ", ..." * (difference.num_elements > len(difference.first))
    period = f", period {difference.period}" if difference.period else ""
    elements = "element" if difference.num_elements == 1 else "elements"
    return f"{difference.num_elements} {elements} of output {difference.output} at {at}{more}{period}, bits {difference.xor_bits}"
