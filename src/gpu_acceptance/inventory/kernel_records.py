"""Records of the kernel's log: each kind of message from the lines that belong together."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from gpu_acceptance.base.text import clip
from gpu_acceptance.inventory.answer import Answer, Missing, Why
from gpu_acceptance.inventory.kernel_firmware import firmware_records
from gpu_acceptance.inventory.kernel_forms import CORRECTED, FATAL, GPUS, NON_FATAL, UNCORRECTED
from gpu_acceptance.inventory.kernel_lines import MOST_OPEN, NEAR_S, Line, Record, grouped, severity_by_bits, worst_of

OLD_SNAPSHOT = Missing(Why.NOT_THERE, "the snapshot is of an older version")
_MOST_NEAR = 100  # records among which one line is looked for
_CUT_OFF = {"containment", "hotplug", "aftermath"}  # whatever the error was, the device is out of use: as bad as a fatal one
_HEADS = {
    *("head", "notice", "detail", "status", "containment", "record", "hotplug", "recovered", "aftermath"),
    *("words", "check", "reset", "memory", "device", "killed", "fault", "disk"),
}
_RECOVERY = {"recovered", "aftermath"}
_OF_STATUS = {"bit", "layer", "uncorrected"}
_NVIDIA = "10de"
_CLASSES = ("03", "0680")  # display, which GPUs without one have as well; other bridge: an NVSwitch up to Hopper
_DRIVERS = {"nvidia", "nvidia-nvswitch"}
_MOST_TEXT = 300  # characters
_NO_PROCESS = Missing(Why.NOT_THERE, "the line names none")
_NO_SEVERITY = Missing(Why.NOT_THERE, "the line names no severity")
_NO_FATALITY = Missing(Why.NOT_THERE, "the line says neither Fatal nor Non-fatal")


@dataclass(frozen=True)
class Message:
    """One line of the log. `at_s`: seconds since boot, by the kernel's own clock."""

    at_s: float
    text: str
    about: str = GPUS  # or pcie, host


@dataclass(frozen=True)
class Xid:
    """A message of the GPU driver. `pci_bus_id` is written as in NVML. Meaning of the numbers: xids.yaml."""

    number: int
    pci_bus_id: str
    at_s: float
    pid: Answer[int]  # of the process that owns the channel, if the driver knows it
    process: Answer[str]
    text: str  # the rest of the line


@dataclass(frozen=True)
class SXid:
    """An event of the NVSwitch driver (up to Hopper). Numbers: NVIDIA Fabric Manager User Guide, "NVSwitch SXid Errors"."""

    number: int
    switch: str  # nvidia-nvswitch0
    pci_bus_id: str
    at_s: float
    is_fatal: Answer[bool]
    text: str


@dataclass(frozen=True)
class PcieError:
    """One error on a PCIe link, of a GPU, a network card, or a port above them.

    `pci_bus_id` is the device that reported it or that a port above it names, else that port; `also` are others in its lines.
    """

    pci_bus_id: str
    severity: Answer[str]  # corrected, uncorrected (fatal or not), non-fatal, fatal
    at_s: float
    text: str
    also: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()  # GPUs and NVSwitches among these devices, by their driver or by the kernel's list of devices at boot
    gone: str = ""  # the device that the port names, of which no line and no list of devices says what it was


@dataclass(frozen=True)
class LostGpu:
    """A GPU or NVSwitch that has fallen off the bus, or did not start, by its driver. XID 79 reports neither where that starts."""

    pci_bus_id: str
    at_s: float
    did_not_start: bool = False


@dataclass(frozen=True)
class HostError:
    """An error of the host's memory, CPUs, buses or disks: machine checks, EDAC, records of the firmware."""

    at_s: float
    text: str
    kind: str = "machine check"  # or memory, firmware, disk
    severity: Answer[str] = OLD_SNAPSHOT


@dataclass(frozen=True)
class DeviceError:
    """A fatal error of a device by its own driver, which names its address or, once it is registered, its name as an RDMA device."""

    pci_bus_id: str
    at_s: float
    text: str
    rdma_device: str = ""


AnyMessage = Message | Xid | SXid | PcieError | LostGpu | HostError | DeviceError


def messages(lines: Sequence[Line]) -> Iterator[tuple[str, AnyMessage]]:
    """Yield each record of a log as a message, behind the list of KernelLog to which it belongs."""
    by_kind: dict[str, list[Line]] = {}
    for line in lines:
        by_kind.setdefault(line.kind, []).append(line)
    firmware = list(firmware_records([line for line in by_kind.get("host_errors", ()) if line.role == "firmware"]))
    host = [*(line for line in by_kind.get("host_errors", ()) if line.role != "firmware")]
    host += [line for line in firmware if line.kind == "host_errors"]
    pcie = [*by_kind.get("pcie_errors", ()), *(line for line in firmware if line.kind == "pcie_errors")]
    links = _pcie_records(sorted(pcie, key=lambda line: line.at_s))
    devices = {line.device: line.facts for line in by_kind.get("devices", ())}
    gpus = {device for device, facts in devices.items() if facts["vendor"] == _NVIDIA and facts["class"].startswith(_CLASSES)}
    by_kind["lost_gpus"], by_kind["device_errors"] = _lost_lines(by_kind, gpus)
    found: dict[str, Iterable[AnyMessage]] = {
        "xids": map(_xid, by_kind.get("xids", ())),
        "unreadable": [*map(_message, by_kind.get("unreadable", ())), *_unexplained(by_kind["lost_gpus"])],
        "sxids": map(_sxid, grouped(by_kind.get("sxids", ()))),
        "lost_gpus": map(_lost, grouped(line for line in by_kind["lost_gpus"] if line.device)),
        "device_errors": (_of_driver(one) for one in grouped(by_kind["device_errors"]) if one.severity != CORRECTED),
        "pcie_errors": (_pcie(record, gpus, devices) for record in links),
        "host_errors": map(_host, _host_records(host, links)),
    }
    yield from ((name, message) for name, its in found.items() for message in its)


def _message(line: Line) -> Message:
    return Message(line.at_s, clip(line.text, _MOST_TEXT), line.role)


def _lost_lines(by_kind: dict[str, list[Line]], gpus: set[str]) -> tuple[list[Line], list[Line]]:
    """Return the lines about GPUs and NVSwitches that were lost or did not start, and those about other devices.

    Another driver may refuse a GPU without a fault (nouveau); what the kernel itself says of it counts.
    """
    lost, others = list(by_kind.get("lost_gpus", ())), []
    for line in by_kind.get("device_errors", ()):
        of_driver = line.role in {"probe", "inaccessible"} and line.facts["driver"] in _DRIVERS
        if of_driver or (line.role == "inaccessible" and line.device in gpus):
            lost.append(replace(line, kind="lost_gpus"))
        else:
            others.append(line)
    return sorted(lost, key=lambda line: line.at_s), others


def _unexplained(lost: Sequence[Line]) -> Iterator[Message]:
    """Yield each line that says that GPUs did not start, where fewer are named near it. `lost` is in the order of time."""
    times = [line.at_s for line in lost]
    for line in (one for one in lost if one.role == "refusals"):
        near = lost[bisect_left(times, line.at_s - NEAR_S) : bisect_right(times, line.at_s + NEAR_S)]
        if len({one.device for one in near if one.device}) < int(line.facts.get("refused", "1")):
            yield Message(line.at_s, clip(line.text, _MOST_TEXT))


def _lost(record: Record) -> LostGpu:
    return LostGpu(record.first.device, record.first.at_s, record.roles.isdisjoint({"lost", "inaccessible"}))


def _of_driver(record: Record) -> DeviceError:
    first = record.first
    return DeviceError(first.device, first.at_s, clip(first.text, _MOST_TEXT), first.facts.get("rdma_device", ""))


_PROCESS = re.compile(r"pid=(?:(\d{1,10})|'<unknown>')(?:, name=(.*?))?(?:, (.*))?")


def _xid(line: Line) -> Xid:
    rest = line.facts.get("rest", "")
    named = _PROCESS.fullmatch(rest)
    pid, process, text = named.groups(default="") if named else ("", "", rest)
    return Xid(
        number=int(line.facts["number"]),
        pci_bus_id=line.device,
        at_s=line.at_s,
        pid=int(pid) if pid else _NO_PROCESS,
        process=clip(process, _MOST_TEXT) if process not in {"", "<unknown>"} else _NO_PROCESS,
        text=clip(text, _MOST_TEXT),
    )


def _sxid(record: Record) -> SXid:
    """Return an event of a switch. Its lines of detail say nothing without the head, which names the error."""
    head = next((line for line in record.lines if line.role == "head"), None)
    line = head or record.first
    is_fatal = {FATAL: True, NON_FATAL: False}.get(record.severity) if head else None
    text = line.facts.get("rest") or line.text.partition("): ")[2].partition(", ")[2]
    known = _NO_FATALITY if is_fatal is None else is_fatal
    return SXid(int(line.facts["number"]), line.facts["switch"], line.device, line.at_s, known, clip(text, _MOST_TEXT))


def _pcie_records(lines: Sequence[Line]) -> list[Record]:
    """Return the errors of links. What the kernel says of recovery names every device below the port, so it comes to the others last."""
    last = [line for line in lines if line.role in _RECOVERY]
    records = grouped(line for line in _with_registers(lines) if line.role not in _RECOVERY)
    bad = [record for record in records if record.severity not in {"", CORRECTED}]
    starts = [record.first.at_s for record in bad]
    alone = []
    for line in last:
        begin = bisect_left(starts, line.at_s - NEAR_S)
        near = [record for record in bad[begin : begin + _MOST_NEAR] if record.fits(line)]
        own = [record for record in near if {key for one in record.lines for key in one.keys}.intersection(line.keys)]
        of_port = [record for record in near if any(one.facts.get("driver") == "pcieport" for one in record.lines)]
        if joined := own or of_port:
            joined[-1].add(line)
        else:
            alone.append(line)
    return sorted([*records, *grouped(alone)], key=lambda record: record.first.at_s)


def _with_registers(lines: Sequence[Line]) -> list[Line]:
    """Return the lines, each `aer_status` with the bits, layer and mask behind it as one line: two of one device must not mix."""
    found: list[Line] = []
    status_of: dict[str, int] = {}  # the place of the last one of each device
    for line in lines:
        place = status_of.get(line.device)
        if place is not None and line.role in _OF_STATUS and line.at_s - found[place].at_s <= NEAR_S:
            found[place] = _with_register(found[place], line)
            continue
        if line.role == "status":
            status_of[line.device] = len(found)
        elif line.role == "detail":
            status_of.pop(line.device, None)
        found.append(line)
    return found


def _with_register(status: Line, line: Line) -> Line:
    """Return a status with the register of another line: of an error that was not corrected, a bit that counts as fatal is one."""
    facts = {**line.facts, **status.facts}
    severity = worst_of([status.severity, line.severity])
    return replace(status, facts=facts, severity=severity_by_bits(severity, facts.get("status", ""), facts.get("fatal_bits", "")))


def _pcie(record: Record, gpus: set[str], devices: Container[str]) -> PcieError:
    told = [line for line in record.lines if line.role not in {"notice", "gone", *_RECOVERY}]
    main = (told or record.lines)[0]
    also = tuple(dict.fromkeys(line.owner for line in record.lines if line.owner != main.owner))
    driven = {line.device for line in record.lines if line.facts.get("driver") in _DRIVERS}
    known = tuple(address for address in (main.owner, *also) if address in gpus | driven)
    named = (line.source for line in record.lines if line.source not in {"", line.device} and not told)  # a port may name itself
    gone = next((source for source in named if source not in devices), "")
    text = clip(main.text, _MOST_TEXT)
    return PcieError(main.owner, _severity_of_link(record), record.first.at_s, text, also[:MOST_OPEN], known[:MOST_OPEN], gone)


def _severity_of_link(record: Record) -> Answer[str]:
    """Return the severity that any line states, or fatal where the device was cut off."""
    said = next((line.said for line in record.lines if line.said), "")
    if said:
        return Missing(Why.UNREADABLE, said)
    if not record.roles & _HEADS or not record.severity:
        return _NO_SEVERITY
    if record.roles & _CUT_OFF:
        return FATAL
    return severity_by_bits(record.severity, record.fact("status"), record.fact("fatal_bits"))


# --- the host -------------------------------------------------------------------------------------------------------------------


def _host_records(lines: Sequence[Line], links: Sequence[Record]) -> Iterator[Record]:
    """Yield the errors of the host, without what is part of another record.

    A recoverable record of the firmware that names no section belongs to the PCIe error that the kernel prints after it.
    """
    by_firmware = [one for one in links if one.fact("status") and "record" not in one.roles and one.severity not in {"", CORRECTED}]
    starts = [one.first.at_s for one in by_firmware]
    memory = [line for line in lines if line.role in {"memory", "killed"}]
    records = grouped(line for line in memory if line.role == "memory")
    bad = [record for record in records if record.severity not in {"", CORRECTED}]
    bad_starts = [one.first.at_s for one in bad]
    killed = [line for line in memory if line.role == "killed"]
    records += grouped(line for line in killed if not _around(bad, bad_starts, line.at_s))
    injected = {key for line in lines if line.role == "injected" for key in line.keys}
    records += grouped(line for line in lines if line.role not in {"memory", "killed", "injected", "info"})
    records += _unexplained_events([line for line in lines if line.role == "info"], records)
    for record in sorted(records, key=lambda one: one.first.at_s):
        if injected.intersection(record.first.keys) and all("page" in line.facts for line in record.lines):
            continue
        if "no_section" in record.first.facts and record.severity == UNCORRECTED:
            near = [one for one in _around(by_firmware, starts, record.first.at_s) if "record" not in one.roles]
            if near:
                near[0].roles.add("record")
                continue
        yield record


def _unexplained_events(lines: Sequence[Line], records: Sequence[Record]) -> list[Record]:
    """Return a record for each line that says no more than that there was an event, where no other record is near it."""
    starts = sorted(record.first.at_s for record in records)
    near = [bisect_left(starts, line.at_s - NEAR_S) < bisect_right(starts, line.at_s + NEAR_S) for line in lines]
    return [Record(line, [line]) for line, is_explained in zip(lines, near, strict=True) if not is_explained]


def _around(records: Sequence[Record], starts: Sequence[float], at_s: float) -> list[Record]:
    begin = bisect_left(starts, at_s - NEAR_S)
    return [one for one in records[begin : begin + _MOST_NEAR] if abs(one.first.at_s - at_s) <= NEAR_S]


def _host(record: Record) -> HostError:
    kind = "memory" if record.roles & {"memory", "killed"} else "firmware" if "record" in record.roles else "machine check"
    kind = "disk" if "disk" in record.roles else kind
    severity: Answer[str] = record.severity if record.roles & _HEADS and record.severity else _NO_SEVERITY
    return HostError(record.first.at_s, clip(record.first.text, _MOST_TEXT), kind, severity)
