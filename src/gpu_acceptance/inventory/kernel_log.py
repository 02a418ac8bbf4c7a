"""The kernel's messages since boot about GPUs, NVSwitches, PCIe, network cards and the host's own hardware, and the figures of them."""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_acceptance.base.text import each_once
from gpu_acceptance.inventory.answer import Answer, Missing, Why, all_missing, is_absent, known
from gpu_acceptance.inventory.gpu import GpuReading
from gpu_acceptance.inventory.infiniband import RdmaDevice
from gpu_acceptance.inventory.kernel_forms import CORRECTED, FATAL, GPUS, HOST, PCIE, UNCORRECTED, WORDS
from gpu_acceptance.inventory.kernel_lines import read_line
from gpu_acceptance.inventory.kernel_records import (
    OLD_SNAPSHOT,
    AnyMessage,
    DeviceError,
    HostError,
    LostGpu,
    Message,
    PcieError,
    SXid,
    Xid,
    messages,
)
from gpu_acceptance.inventory.kmsg import Reach, read_kmsg
from gpu_acceptance.inventory.pci_topology import Place, nvml_bus_id
from gpu_acceptance.inventory.xids import XidMeaning, labels_of, meaning_of

MOST_ALIKE = 100  # listed messages that differ in nothing that is judged; one that repeats endlessly must not hide another
_NEVER_DECIDES = {"at_s", "text", "pid", "process"}
Finding = tuple[str, Answer[int], str, str] | tuple[str, Answer[int], str, str, dict[str, int]]  # metric, value, unit, detail, labels
Findings = Iterator[Finding]

_LISTS = ("xids", "sxids", "lost_gpus", "pcie_errors", "host_errors", "unreadable", "device_errors")


@dataclass(frozen=True)
class KernelLog:
    """Lists in the order of the log. All are Missing where the log could not be read, which never means "no XIDs"."""

    reach: Answer[Reach]
    xids: Answer[tuple[Xid, ...]]
    sxids: Answer[tuple[SXid, ...]]
    lost_gpus: Answer[tuple[LostGpu, ...]]
    pcie_errors: Answer[tuple[PcieError, ...]]
    host_errors: Answer[tuple[HostError, ...]]
    unreadable: Answer[tuple[Message, ...]]  # lines in an unknown format: each may be as bad as any
    num_left_out: Answer[int]  # further messages of a kind that is listed
    device_errors: Answer[tuple[DeviceError, ...]] = OLD_SNAPSHOT


def read(root: Path = Path("/")) -> KernelLog:
    """Read the log of this boot."""
    records = read_kmsg(root / "dev" / "kmsg", WORDS)
    if isinstance(records, Missing):
        return KernelLog(*[records] * 9)
    lines = [read_line(at_s, text.decode("utf-8", "backslashreplace")) for at_s, text in records.kept]
    lists: dict[str, Any] = {name: [] for name in _LISTS}
    seen: Counter[Hashable] = Counter()
    for name, message in messages([line for line in lines if line]):
        kind = name, _what_decides(message)
        seen[kind] += 1
        if seen[kind] <= MOST_ALIKE:
            lists[name].append(message)
    num_left_out = sum(max(0, number - MOST_ALIKE) for number in seen.values())
    return KernelLog(records.reach, **{name: tuple(found) for name, found in lists.items()}, num_left_out=num_left_out)


def _what_decides(message: AnyMessage) -> Hashable:
    """Return all of a message that a figure depends on: a flood of harmless messages must not hide one that counts."""
    meaning = meaning_of(message.number, message.text) if isinstance(message, Xid) else None
    told = [(name, value) for name, value in vars(message).items() if name not in _NEVER_DECIDES]
    decides = meaning and (meaning.remedy, bool(meaning.doubt))
    return decides, *((name, value.missing if isinstance(value, Missing) else value) for name, value in told)


def errors(log: KernelLog, gpu: GpuReading, place: Answer[Place]) -> Findings:
    """Yield errors of one GPU, found by its address on the PCI bus."""
    address = gpu.pci_bus_id
    if isinstance(address, Missing):
        yield from all_missing("kernel_log.errors", address, xids="count", lost="count", pcie="count")
        return
    xids = [meaning_of(xid.number, xid.text) for xid in known(log.xids) if xid.pci_bus_id == address]
    to_repair = [meaning for meaning in xids if meaning.needs_repair]
    number = _counted(to_repair, log, _doubt_of_xid(xids) or _doubt_of_line(log, GPUS))
    yield "kernel_log.errors.xids", number, "count", each_once(map(str, to_repair)), labels_of(to_repair)
    lost = [_loss(one) for one in known(log.lost_gpus) if one.pci_bus_id == address]
    yield "kernel_log.errors.lost", _counted(lost, log, _doubt_of_line(log, GPUS)), "count", each_once(lost)
    path = place if isinstance(place, Missing) else place.pci_path
    own = _on_path(log, address, path)
    bad = [f"{_names(error)} {error.severity}" for error in own if error.severity != CORRECTED and not isinstance(error.severity, Missing)]
    yield "kernel_log.errors.pcie", _counted(bad, log, _doubt_of_path(own, log, path)), "count", each_once(bad)


def elsewhere(log: KernelLog, gpus: Iterable[GpuReading]) -> Findings:
    """Yield errors of GPUs that NVML does not show, and of the switches between GPUs, which it never shows."""
    shown = [gpu.pci_bus_id for gpu in gpus]
    unknown = next((address for address in shown if isinstance(address, Missing)), None)
    bad = [error for error in known(log.pcie_errors) if error.severity != CORRECTED]
    xids = [(xid.pci_bus_id, meaning_of(xid.number, xid.text)) for xid in known(log.xids)]
    addresses = [*(address for address, one in xids if one.needs_repair), *(one.pci_bus_id for one in known(log.lost_gpus))]
    addresses += [gpu for error in bad if not isinstance(error.severity, Missing) for gpu in error.gpus]
    strange = [address for address in addresses if address not in shown]
    gone = [error.gone for error in bad if error.gone and error.gone not in shown]
    doubt = Missing(Why.UNREADABLE, f"not known, and may be a GPU: {gone[0]}"[:200]) if gone else _doubt_of_line(log, GPUS)
    doubt = _doubt_of_xid([one for address, one in xids if address not in shown]) or doubt
    number = unknown if unknown and strange else _counted(strange, log, doubt)
    yield "kernel_log.elsewhere.gpus", number, "count", each_once(strange)
    fatal = [f"SXid {one.number} of {one.switch}" for one in known(log.sxids) if one.is_fatal is True]
    doubtful = [f"SXid {one.number} of {one.switch}: {one.is_fatal}" for one in known(log.sxids) if isinstance(one.is_fatal, Missing)]
    doubt = Missing(Why.UNREADABLE, doubtful[0][:200]) if doubtful else _doubt_of_line(log, GPUS)
    yield "kernel_log.elsewhere.sxids", _counted(fatal, log, doubt), "count", each_once(fatal)


def host(log: KernelLog) -> Findings:
    """Yield errors of the host's own hardware that were not corrected."""
    found = known(log.host_errors)
    bad = [one for one in found if one.severity != CORRECTED and not isinstance(one.severity, Missing)]
    unclear = [one for one in found if isinstance(one.severity, Missing)]
    doubt = Missing(Why.UNREADABLE, f"{unclear[0].severity}: {unclear[0].text}"[:200]) if unclear else _doubt_of_line(log, HOST)
    memory = [one.text for one in bad if one.kind == "memory"]
    yield "kernel_log.host.memory", _counted(memory, log, doubt), "count", each_once(memory)
    others = [f"{one.kind}, {one.severity}: {one.text}" for one in bad if one.kind != "memory"]
    yield "kernel_log.host.machine_checks", _counted(others, log, doubt), "count", each_once(others)


def nics(log: KernelLog, used: Answer[tuple[RdmaDevice, ...]], every: Answer[tuple[RdmaDevice, ...]]) -> Findings:
    """Yield fatal errors of the network cards that the job uses, by their drivers or of the PCIe links to them.

    Where it is not known which ones it uses, a log without an error of any card is enough.
    """
    unknown = used if isinstance(used, Missing) and not is_absent(used) else None
    number, detail = _fatal_of_cards(log, every if unknown else used)
    yield "kernel_log.nics.fatal", unknown if unknown and number != 0 else number, "count", detail


def _fatal_of_cards(log: KernelLog, devices: Answer[tuple[RdmaDevice, ...]]) -> tuple[Answer[int], str]:
    if isinstance(devices, Missing) and not is_absent(devices):
        return devices, ""
    bad: dict[str, None] = {}
    doubts: list[Missing] = []
    for device in known(devices):
        if isinstance(device.pci_address, Missing):
            doubts.append(device.pci_address)
            continue
        address = _address_of(device.pci_address)
        own = _on_path(log, address, device.pci_path)
        for error in own:
            if error.severity == FATAL:
                bad[f"{device.name}: {_names(error)} fatal, {error.at_s:.3f} s after boot"] = None
            if error.severity == UNCORRECTED:
                doubts.append(Missing(Why.UNREADABLE, f"{_names(error)} uncorrected, fatal or not: {error.text}"[:200]))
        for one in known(log.device_errors):
            if one.pci_bus_id == address or one.rdma_device == device.name:
                bad[f"{device.name}, {one.at_s:.3f} s after boot: {one.text}"] = None
        doubt = _doubt_of_path(own, log, device.pci_path)
        doubts += [doubt] if doubt else []
    if known(devices) and isinstance(log.device_errors, Missing):
        doubts.append(log.device_errors)
    return _counted(list(bad), log, next(iter(doubts), None)), each_once(list(bad))


def _loss(one: LostGpu) -> str:
    return f"{'did not start, ' if one.did_not_start else ''}{one.at_s:.0f} s after boot"


def _names(error: PcieError) -> str:
    return f"{error.pci_bus_id} (also {', '.join(error.also)})" if error.also else error.pci_bus_id


def _address_of(text: str) -> str:
    """Return an address as NVML writes it, or the text where it is none: a snapshot may have been edited."""
    try:
        return nvml_bus_id(text)
    except ValueError:
        return text


def _on_path(log: KernelLog, address: str, path: Answer[str]) -> list[PcieError]:
    """Return the errors of a device and of the ports between it and the CPU."""
    above = () if isinstance(path, Missing) else path.split("/")[1:]
    own = {address, *map(_address_of, above)}
    return [error for error in known(log.pcie_errors) if own.intersection((error.pci_bus_id, *error.also))]


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


def _doubt_of_xid(xids: Iterable[XidMeaning]) -> Missing | None:
    return next((Missing(Why.UNREADABLE, f"XID {one.number}: {one.doubt}"[:200]) for one in xids if one.doubt), None)


def _doubt_of_line(log: KernelLog, about: str) -> Missing | None:
    """Return a doubt about a line in an unknown format: it may concern any device of its kind, and be as bad as any."""
    first = next((one for one in known(log.unreadable) if one.about == about), None)
    return Missing(Why.UNREADABLE, f"in no known form: {first.text}"[:200]) if first else None


def _doubt_of_path(own: Sequence[PcieError], log: KernelLog, path: Answer[str]) -> Missing | None:
    """Return a doubt about an error of unknown severity, or of a port where the ports above this device are unknown."""
    unknown = next((error for error in own if isinstance(error.severity, Missing)), None)
    if unknown:
        return Missing(Why.UNREADABLE, f"{unknown.pci_bus_id}: {unknown.severity}"[:200])
    others = any(error.severity != CORRECTED for error in known(log.pcie_errors))
    return path if isinstance(path, Missing) and others else _doubt_of_line(log, PCIE)
