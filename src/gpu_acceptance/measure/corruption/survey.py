"""Every kernel at every shape on one device, and of the whole what a verdict asks for: numbers, and where they come from."""

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from gpu_acceptance.measure.corruption import kernels
from gpu_acceptance.measure.corruption.determinism import deterministic
from gpu_acceptance.measure.corruption.hashing import Difference, Flip
from gpu_acceptance.measure.corruption.repeat import NUM_RERUNS, RepeatResult, repeat

SHORT = 6  # hexadecimal digits of one work in a fingerprint: 24 bits tell which of them differ
_LIBRARIES = ("torch", "cuda", "cudnn", "driver")
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Work:
    """What must be equal for hashes to be equal."""

    torch: str
    cuda: str
    cublas: str
    driver: str
    gpu: str  # its name, as the driver has it
    kernel: str
    shape: str


@dataclass(frozen=True)
class Reading:
    """What one GPU made of one work."""

    unit: str  # names the GPU: its UUID, or `rank 5`
    work: Work
    input_hash: str
    hash: str


@dataclass(frozen=True)
class Peers:
    """Each unit stands in exactly one of `agree`, `minority` and `uncleared`. In the order they were given."""

    hash: str | None  # of more than half; None: no majority
    agree: tuple[str, ...]
    minority: tuple[str, ...]  # another hash than the majority's
    uncleared: tuple[str, ...]  # nobody can say whether they are right
    why: str  # they are not cleared; empty where all are


def compare_peers(hashes: Mapping[str, str]) -> Peers:
    """Who differs from most, given unit -> hash of one work. A majority is more than half: of a tie nobody is cleared."""
    units = tuple(hashes)
    if len(units) < 2:
        return Peers(None, (), (), units, f"{len(units)} GPU of this model and these versions has no peer")
    common, num_units = Counter(hashes.values()).most_common(1)[0]
    if 2 * num_units <= len(units):
        why = f"{len(set(hashes.values()))} different results of {len(units)} GPUs, and none of more than half"
        return Peers(None, (), (), units, why)
    agree = tuple(unit for unit in units if hashes[unit] == common)
    return Peers(common, agree, tuple(unit for unit in units if hashes[unit] != common), (), "")


def by_work(readings: Iterable[Reading]) -> dict[Work, dict[str, Reading]]:
    """Readings by work, then by unit. ValueError where a unit has two of one work."""
    works: dict[Work, dict[str, Reading]] = {}
    for reading in readings:
        units = works.setdefault(reading.work, {})
        if reading.unit in units:
            raise ValueError(f"{reading.unit} has two readings of {reading.work.kernel} {reading.work.shape}")
        units[reading.unit] = reading
    return works


def kind_of(device: torch.device, versions: Mapping[str, str]) -> str:
    """`NVIDIA H200, 132 SMs, torch 2.11.0, cuda 13.0, ...`: all that must be equal for bits to be. `versions`: by name."""
    libraries = [f"{name} {versions[name]}" for name in _LIBRARIES if name in versions]
    if device.type == "cpu":
        return ", ".join([f"CPU with {torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads", *libraries])
    seen = torch.cuda.get_device_properties(device)
    return ", ".join([f"{seen.name}, {seen.multi_processor_count} SMs", *libraries])


def odd_kind(own: str, kinds: Sequence[str]) -> str:
    """Why the hashes of a rank of kind `own` are not held against those of most ranks; empty where they are.

    `kinds`: of all ranks. Where no kind is more common than another, none is that of most, and nothing is compared.
    """
    (common, num_common), *others = Counter(kinds).most_common(2)
    if others and others[0][1] == num_common:
        return f"not compared: this is {own}; of {len(kinds)} ranks, no kind is that of most"
    return "" if own == common else f"not compared: this is {own}; most ranks are {common}"


def differing_works(own: str, kind: str, works: Sequence[str], told: Sequence[tuple[str, str]]) -> str:
    """In which works this rank has not the bits of most of its kind; empty where it has, or has no peer.

    `own`: its fingerprint, `SHORT` digits for each work; `told`: kind and fingerprint of every rank.
    """
    others = [fingerprint for its_kind, fingerprint in told if its_kind == kind]
    differing = [name for number, name in enumerate(works) if _differs(_part(own, number), [_part(one, number) for one in others])]
    return f"differs in {', '.join(differing)}" if differing else ""


def _part(fingerprint: str, number: int) -> str:
    return fingerprint[SHORT * number : SHORT * (number + 1)]


def _differs(own: str, parts: Sequence[str]) -> bool:
    return len(set(parts)) > 1 and own != compare_peers({str(number): part for number, part in enumerate(parts)}).hash


def excluded_rate_per_minute(exposure_s: float) -> float:
    """The smallest rate, in events per minute of exposure, that no finding in `exposure_s` excludes at 95 %."""
    return -math.log(1 - CONFIDENCE) / (_checked(exposure_s) / 60)


def statement(exposure_s: float) -> str:
    """One sentence for a report. The rate is rounded up: it may not promise more than was proved."""
    rate = excluded_rate_per_minute(exposure_s)
    digits = 1 - math.floor(math.log10(rate))
    rounded = math.ceil(rate * 10**digits) / 10**digits
    excluded = f"no corruption in {exposure_s:.3g} s excludes, at {CONFIDENCE:.0%}, {rounded:g} or more per minute"
    return f"{excluded}; rarer faults are not excluded"


def _checked(exposure_s: float) -> float:
    if not (math.isfinite(exposure_s) and exposure_s > 0):
        raise ValueError(f"exposure_s={exposure_s}: a finite number of seconds above zero, or nothing is excluded")
    return exposure_s


@dataclass(frozen=True)
class Survey:
    """All kernels of one device; `results` stand in the order of kernels.NAMES, and of each in that of kernels.SIZES."""

    results: tuple[RepeatResult, ...]
    unsupported: Mapping[str, str]  # kernel -> why this device cannot run it

    @property
    def by_kernel(self) -> dict[str, list[RepeatResult]]:
        """The results of each kernel that ran, one for each shape."""
        found: dict[str, list[RepeatResult]] = {}
        for result in self.results:
            found.setdefault(result.kernel, []).append(result)
        return found

    @property
    def num_mismatches(self) -> int:
        """Repetitions whose hash is not that of most of the same kernel and shape."""
        return sum(result.num_mismatches for result in self.results)

    @property
    def mismatches(self) -> str:
        """Which kernels they are of, and what is known of each; empty where there are none."""
        return "; ".join(_described(result) for result in self.results if result.num_mismatches)

    @property
    def num_inputs_changed(self) -> int:
        """Works whose inputs had another hash after the last repetition."""
        return sum(result.inputs_changed for result in self.results)

    @property
    def inputs_changed(self) -> str:
        """Which works those are; empty where there are none."""
        return "; ".join(work(result) for result in self.results if result.inputs_changed)

    @property
    def num_planted(self) -> int:
        """Repetitions that were spoiled on purpose."""
        return sum(result.planted.is_due(number) for result in self.results if result.planted for number in range(result.num_repetitions))

    @property
    def hash(self) -> str:
        """Of all inputs and outputs: 32 hexadecimal digits."""
        return _digest("".join(map(_hashes, self.results)), 32)

    @property
    def works(self) -> tuple[str, ...]:
        """What was run, in the order of the fingerprint: `mm_bf16 8191x8193x4099`."""
        return tuple(map(work, self.results))

    @property
    def fingerprint(self) -> str:
        """`SHORT` digits for each work: short enough that every rank can tell it to all others."""
        return "".join(_digest(_hashes(result), SHORT) for result in self.results)

    @property
    def detection_limit_per_minute(self) -> float:
        """The smallest rate of corruption, whatever kernel it strikes, that no finding excludes at 95 %."""
        return excluded_rate_per_minute(sum(result.exposure_s for result in self.results))

    @property
    def weakest_detection_limit_per_minute(self) -> float:
        """The same of a fault that strikes one kernel alone: of the kernel that had least of the device's time."""
        return excluded_rate_per_minute(min(sum(result.exposure_s for result in results) for results in self.by_kernel.values()))


def measure(*, device: torch.device, seconds: float, pulse_s: float | None = None, flip_every: int = 0) -> Survey:
    """Each kernel that the device can run, at each shape, for `seconds` of wall time and at least twice.

    `pulse_s`: in the second half of the time, as many seconds of load and of rest in turns.
    `flip_every`: a planted fault, one flipped bit in one of as many repetitions, counted over all kernels; 0: none.
    """
    able = [name for name in kernels.NAMES if not kernels.unsupported(name, device)]
    results: list[RepeatResult] = []
    with deterministic(device):
        for name in able:
            for size in kernels.SIZES:
                flip = _flip_after(sum(result.num_repetitions for result in results), flip_every) if flip_every else None
                results.append(repeat(kernels.make(name, size, device), seconds=seconds, pulse_s=pulse_s, steady_s=seconds / 2, flip=flip))
    return Survey(tuple(results), {name: kernels.unsupported(name, device) for name in kernels.NAMES if name not in able})


def work(result: RepeatResult) -> str:
    return f"{result.kernel} {result.shape}"


def _flip_after(num_done: int, every: int) -> Flip:
    return Flip(repetition=every - 1 - num_done % every, element=77, bit=3, every=every)


def _hashes(result: RepeatResult) -> str:
    return f"{work(result)} {result.input_hash} {result.hash}\n"


def _digest(text: str, num_digits: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:num_digits]


def _described(result: RepeatResult) -> str:
    seen = f"{work(result)}: {result.num_mismatches} of {result.num_repetitions} repetitions differ"
    assert result.differences is not None, "hashes differ, and no outputs were compared"
    found = "; ".join(map(_signature, result.differences)) or "its hash alone, and no bit of the output"
    return f"{seen} ({found}; {result.reruns_that_differ} of {NUM_RERUNS} re-runs differ{', planted' * bool(result.planted)})"


def _signature(difference: Difference) -> str:
    at = ", ".join(map(str, difference.first))
    more = ", ..." * (difference.num_elements > len(difference.first))
    period = f", period {difference.period}" if difference.period else ""
    elements = "element" if difference.num_elements == 1 else "elements"
    return f"{difference.num_elements} {elements} of output {difference.output} at {at}{more}{period}, bits {difference.xor_bits}"
