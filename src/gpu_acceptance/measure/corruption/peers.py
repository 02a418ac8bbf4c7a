"""Works compared over GPUs of one kind: the odd one out computes wrongly."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

SHORT = 6  # hexadecimal digits of one work in a fingerprint: 24 bits tell which of them differ
_LIBRARIES = ("torch", "cuda", "cudnn", "driver")


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
