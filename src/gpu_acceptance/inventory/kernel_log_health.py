"""What of the kernel's log is judged, by topic: metric, answer, unit, and what it is of. docs/limits.md explains each. Pure.

What was found counts, however much of the log there is. That nothing was found counts only where all of it could be read, from boot on.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from gpu_acceptance.base.text import each_once
from gpu_acceptance.inventory.answer import Answer, Missing, Why
from gpu_acceptance.inventory.gpu import GpuReading
from gpu_acceptance.inventory.kernel_log import KernelLog, PcieError, SXid, Xid
from gpu_acceptance.inventory.pci_topology import Place, nvml_bus_id
from gpu_acceptance.inventory.xids import Remedy, XidMeaning, labels_of, meaning_of

T = TypeVar("T")

Finding = tuple[str, Answer[int], str, str] | tuple[str, Answer[int], str, str, dict[str, int]]  # metric, value, unit, what it is of
Findings = Iterator[Finding]

_NO_REPAIR = {Remedy.IGNORE, Remedy.RESTART_APPLICATION}


def errors(log: KernelLog, gpu: GpuReading, place: Answer[Place]) -> Findings:
    """Of one GPU, by its address on the PCI bus."""
    address = gpu.pci_bus_id
    if isinstance(address, Missing):
        yield from ((f"kernel_log.errors.{name}", address, "count", "") for name in ("xids", "lost", "pcie"))
        return
    to_repair = [meaning for meaning in _meanings(log.xids, {address}) if meaning.remedy not in _NO_REPAIR]
    yield (
        "kernel_log.errors.xids",
        _counted(to_repair, log, _unreadable(log)),
        "count",
        each_once(map(str, to_repair)),
        labels_of(to_repair),
    )
    lost = [f"{one.at_s:.0f} s after boot" for one in _known(log.lost_gpus) if one.pci_bus_id == address]
    yield "kernel_log.errors.lost", _counted(lost, log, _unreadable(log)), "count", each_once(lost)
    own = [error for error in _known(log.pcie_errors) if _is_above(error, address, place)]
    bad = [f"{error.pci_bus_id} {error.severity}" for error in own if error.severity in {"non-fatal", "fatal"}]
    yield "kernel_log.errors.pcie", _counted(bad, log, _doubts(own, log, place)), "count", each_once(bad)


def elsewhere(log: KernelLog, gpus: Iterable[GpuReading]) -> Findings:
    """What no GPU here answers for: those that NVML does not show, and the switches between them."""
    shown = [gpu.pci_bus_id for gpu in gpus]
    unknown = next((address for address in shown if isinstance(address, Missing)), None)
    addresses = [*(xid.pci_bus_id for xid in _known(log.xids)), *(one.pci_bus_id for one in _known(log.lost_gpus))]
    strange = [address for address in addresses if address not in shown]
    number = unknown if unknown and strange else _counted(strange, log, _unreadable(log))
    yield "kernel_log.elsewhere.gpus", number, "count", each_once(strange)
    fatal = [f"SXid {one.number} of {one.switch}" for one in _known(log.sxids) if one.is_fatal is True]
    doubtful = [one for one in _known(log.sxids) if isinstance(one.is_fatal, Missing)]
    yield (
        "kernel_log.elsewhere.sxids",
        _counted(fatal, log, _first_doubt(doubtful) or _unreadable(log)),
        "count",
        each_once(fatal),
    )


def _known(found: Answer[tuple[T, ...]]) -> tuple[T, ...]:
    return () if isinstance(found, Missing) else found


def _counted(found: Sequence[object], log: KernelLog, doubt: Missing | None) -> Answer[int]:
    """How many; that there is none only where nothing speaks against it."""
    if isinstance(log.reach, Missing):
        return log.reach
    if found:
        return len(found)
    if doubt:
        return doubt
    if not log.reach.is_since_boot:
        return Missing(Why.NOT_THERE, f"not all of the kernel log since boot is there: it begins {log.reach.first_s:.0f} s after it")
    return 0


def _unreadable(log: KernelLog) -> Missing | None:
    """A line of the GPU driver in no known form may be of any GPU, and as bad as any."""
    first = next(iter(_known(log.unreadable)), None)
    return Missing(Why.UNREADABLE, f"in no known form: {first.text}"[:200]) if first else None


def _first_doubt(sxids: Sequence[SXid]) -> Missing | None:
    return Missing(Why.UNREADABLE, f"SXid {sxids[0].number} of {sxids[0].switch}: {sxids[0].is_fatal}"[:200]) if sxids else None


def _meanings(xids: Answer[tuple[Xid, ...]], addresses: set[str]) -> list[XidMeaning]:
    return [meaning_of(xid.number, xid.text) for xid in _known(xids) if xid.pci_bus_id in addresses]


def _is_above(error: PcieError, address: str, place: Answer[Place]) -> bool:
    """Whether an error is of this device, or of a port between it and the CPU."""
    if error.pci_bus_id == address:
        return True
    if isinstance(place, Missing) or isinstance(place.pci_path, Missing):
        return False
    return error.pci_bus_id in {nvml_bus_id(part) for part in place.pci_path.split("/")[1:]}


def _doubts(own: Sequence[PcieError], log: KernelLog, place: Answer[Place]) -> Missing | None:
    """An error of unknown severity, or one of a port, where nobody knows which ports lie above this GPU."""
    unknown = next((error for error in own if isinstance(error.severity, Missing)), None)
    if unknown:
        return Missing(Why.UNREADABLE, f"{unknown.pci_bus_id}: {unknown.severity}"[:200])
    path = place if isinstance(place, Missing) else place.pci_path
    others = [error for error in _known(log.pcie_errors) if error.severity != "corrected"]
    return path if isinstance(path, Missing) and others else None
