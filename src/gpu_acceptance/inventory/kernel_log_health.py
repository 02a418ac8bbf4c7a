"""Findings in the kernel's log by topic: metric, answer, unit, detail. docs/limits.md explains each. Pure.

A message counts, however much of the log was read. The absence of messages counts only where all of it was read, from boot on.
"""

from collections.abc import Iterable, Iterator, Sequence

from gpu_acceptance.base.text import each_once
from gpu_acceptance.inventory.answer import Answer, Missing, Why, all_missing, known
from gpu_acceptance.inventory.gpu import GpuReading
from gpu_acceptance.inventory.kernel_log import KernelLog, PcieError
from gpu_acceptance.inventory.pci_topology import Place, nvml_bus_id
from gpu_acceptance.inventory.xids import Remedy, labels_of, meaning_of

Finding = tuple[str, Answer[int], str, str] | tuple[str, Answer[int], str, str, dict[str, int]]  # metric, value, unit, detail, labels
Findings = Iterator[Finding]

_NO_REPAIR = {Remedy.IGNORE, Remedy.RESTART_APPLICATION}


def errors(log: KernelLog, gpu: GpuReading, place: Answer[Place]) -> Findings:
    """Yield errors of one GPU, found by its address on the PCI bus."""
    address = gpu.pci_bus_id
    if isinstance(address, Missing):
        yield from all_missing("kernel_log.errors", address, xids="count", lost="count", pcie="count")
        return
    xids = [meaning_of(xid.number, xid.text) for xid in known(log.xids) if xid.pci_bus_id == address]
    to_repair = [meaning for meaning in xids if meaning.remedy not in _NO_REPAIR]
    number = _counted(to_repair, log, _unreadable(log))
    yield "kernel_log.errors.xids", number, "count", each_once(map(str, to_repair)), labels_of(to_repair)
    lost = [f"{one.at_s:.0f} s after boot" for one in known(log.lost_gpus) if one.pci_bus_id == address]
    yield "kernel_log.errors.lost", _counted(lost, log, _unreadable(log)), "count", each_once(lost)
    # A device above it: a port between the GPU and the CPU.
    above = () if isinstance(place, Missing) or isinstance(place.pci_path, Missing) else place.pci_path.split("/")[1:]
    own = [error for error in known(log.pcie_errors) if error.pci_bus_id in {address, *map(nvml_bus_id, above)}]
    bad = [f"{error.pci_bus_id} {error.severity}" for error in own if error.severity in {"non-fatal", "fatal"}]
    yield "kernel_log.errors.pcie", _counted(bad, log, _doubt(own, log, place)), "count", each_once(bad)


def elsewhere(log: KernelLog, gpus: Iterable[GpuReading]) -> Findings:
    """Yield errors of GPUs that NVML does not show, and of the switches between GPUs."""
    shown = [gpu.pci_bus_id for gpu in gpus]
    unknown = next((address for address in shown if isinstance(address, Missing)), None)
    addresses = [*(xid.pci_bus_id for xid in known(log.xids)), *(one.pci_bus_id for one in known(log.lost_gpus))]
    strange = [address for address in addresses if address not in shown]
    number = unknown if unknown and strange else _counted(strange, log, _unreadable(log))
    yield "kernel_log.elsewhere.gpus", number, "count", each_once(strange)
    fatal = [f"SXid {one.number} of {one.switch}" for one in known(log.sxids) if one.is_fatal is True]
    doubtful = [f"SXid {one.number} of {one.switch}: {one.is_fatal}" for one in known(log.sxids) if isinstance(one.is_fatal, Missing)]
    doubt = Missing(Why.UNREADABLE, doubtful[0][:200]) if doubtful else _unreadable(log)
    yield "kernel_log.elsewhere.sxids", _counted(fatal, log, doubt), "count", each_once(fatal)


def _counted(found: Sequence[object], log: KernelLog, doubt: Missing | None) -> Answer[int]:
    """Return the number of findings; 0 only where the whole log was read and no line is in doubt."""
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
    """Return a doubt about a line of the GPU driver in an unknown format: it may concern any GPU, and be as bad as any."""
    first = next(iter(known(log.unreadable)), None)
    return Missing(Why.UNREADABLE, f"in no known form: {first.text}"[:200]) if first else None


def _doubt(own: Sequence[PcieError], log: KernelLog, place: Answer[Place]) -> Missing | None:
    """Return a doubt about an error of unknown severity, or of a port where the ports above this GPU are unknown."""
    unknown = next((error for error in own if isinstance(error.severity, Missing)), None)
    if unknown:
        return Missing(Why.UNREADABLE, f"{unknown.pci_bus_id}: {unknown.severity}"[:200])
    path = place if isinstance(place, Missing) else place.pci_path
    others = any(error.severity != "corrected" for error in known(log.pcie_errors))
    return path if isinstance(path, Missing) and others else None
