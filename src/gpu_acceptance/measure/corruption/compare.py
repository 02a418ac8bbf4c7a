"""GPUs that did equal work must have equal hashes. Pure: it sees texts, no devices.

cuBLAS promises equal bits from run to run for the same library on GPUs of the same architecture with the same number of
SMs (its documentation, "Results reproducibility"). So peers are GPUs of one model, with the same versions.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


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
