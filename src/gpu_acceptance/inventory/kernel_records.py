"""Records of the kernel's log: the lines of one event belong together, in whatever order they come, and any of them may state its severity.

A line joins an open record of its kind that shares a key with it, lies near it, has no such line yet, and does not contradict its severity.
A line of detail without its head stays a record in doubt. So no fault is lost, and no detail is counted as a second fault.
"""

import re
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from gpu_acceptance.base.text import clip
from gpu_acceptance.inventory.answer import Answer, Missing, Why
from gpu_acceptance.inventory.kernel_lines import CORRECTED, FATAL, GPUS, NON_FATAL, UNCORRECTED, WORST_FIRST, Line

NEAR_S = 60.0  # the lines of one record are logged at once; recovery of a device takes some seconds
_MOST_OPEN = 16  # open records of one key
_MOST_NEAR = 100  # records among which one line is looked for
_NOT_TWICE = {
    *("head", "notice", "gone", "detail", "containment", "reason", "record"),
    *("lost", "init", "start", "open", "words", "check"),
}
_HEADS = {
    *("head", "notice", "detail", "containment", "record", "hotplug", "aftermath"),
    *("words", "check", "memory", "device", "killed"),
}
_MOST_TEXT = 300  # characters
OLD_SNAPSHOT = Missing(Why.NOT_THERE, "the snapshot is of an older version")
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

    `pci_bus_id` is the device that reported it or, where only a port did, that port; `also` are other devices that it names.
    """

    pci_bus_id: str
    severity: Answer[str]  # corrected, uncorrected (fatal or not), non-fatal, fatal
    at_s: float
    text: str
    also: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()  # those of these devices that are GPUs by their driver, or by the kernel's list of devices at boot
    gone: str = ""  # the device that the port names, which did not answer any more, and of which nothing says what it was


@dataclass(frozen=True)
class LostGpu:
    """A GPU that has fallen off the bus, or did not start, by its driver. XID 79 does not report either where the driver starts."""

    pci_bus_id: str
    at_s: float
    did_not_start: bool = False


@dataclass(frozen=True)
class HostError:
    """An error of the host's memory, CPUs or buses: machine checks, EDAC, records of the firmware."""

    at_s: float
    text: str
    kind: str = "machine check"  # or memory, firmware
    severity: Answer[str] = OLD_SNAPSHOT


@dataclass(frozen=True)
class DeviceError:
    """A fatal error of a device by its own driver."""

    pci_bus_id: str
    at_s: float
    text: str


@dataclass
class _Record:
    """Lines that belong together."""

    first: Line
    lines: list[Line] = field(default_factory=list)
    roles: set[str] = field(default_factory=set)
    severity: str = ""

    def add(self, line: Line) -> None:
        if line.role not in self.roles or len(self.lines) < _MOST_OPEN:
            self.lines.append(line)
        self.roles.add(line.role)
        self.severity = _worst_of([self.severity, line.severity])

    def fits(self, line: Line) -> bool:
        is_near = abs(line.at_s - self.first.at_s) <= NEAR_S
        return is_near and not (line.role in _NOT_TWICE and line.role in self.roles) and _agree(self.severity, line.severity)

    def fact(self, name: str) -> str:
        return next((line.facts[name] for line in self.lines if name in line.facts), "")


def _agree(one: str, other: str) -> bool:
    """Return True where both severities may be of one error: `uncorrected` is either of fatal and non-fatal."""
    return "" in {one, other} or one == other or (UNCORRECTED in {one, other} and CORRECTED not in {one, other})


def grouped(lines: Iterable[Line]) -> list[_Record]:
    """Return the records of lines, in the order of their first ones."""
    records: list[_Record] = []
    by_key: dict[tuple[str, str], deque[_Record]] = {}
    for line in lines:
        keys = [(line.kind, key) for key in line.keys]
        near = {id(record): record for key in keys for record in by_key.get(key, ()) if record.fits(line)}
        record = max(near.values(), key=lambda one: one.first.at_s, default=None)
        if record is None:
            record = _Record(line)
            records.append(record)
        record.add(line)
        for key in keys:
            its = by_key.setdefault(key, deque(maxlen=_MOST_OPEN))
            if not any(one is record for one in its):
                its.append(record)
    return records


# --- kinds of record ------------------------------------------------------------------------------------------------------------


def messages(lines: Sequence[Line]) -> Iterator[tuple[str, object, object]]:
    """Yield each record of a log: the list of KernelLog to which it belongs, a key that similar records share, and the message."""
    by_kind: dict[str, list[Line]] = {}
    for line in lines:
        by_kind.setdefault(line.kind, []).append(line)
    firmware = list(_firmware_records([line for line in by_kind.get("host_errors", ()) if line.role == "firmware"]))
    host = [*(line for line in by_kind.get("host_errors", ()) if line.role not in {"firmware", "info"})]
    host += [line for line in firmware if line.kind == "host_errors"]
    pcie = [*by_kind.get("pcie_errors", ()), *(line for line in firmware if line.kind == "pcie_errors")]
    links = _pcie_records(sorted(pcie, key=lambda line: line.at_s))
    gpus = {line.device for line in by_kind.get("gpu_devices", ())}
    for line in by_kind.get("xids", ()):
        yield "xids", line.keys, _xid(line)
    for line in by_kind.get("unreadable", ()):
        yield "unreadable", line.role, Message(line.at_s, clip(line.text, _MOST_TEXT), line.role)
    for record in grouped(by_kind.get("sxids", ())):
        yield "sxids", record.first.keys, _sxid(record)
    for record in grouped(by_kind.get("lost_gpus", ())):
        yield "lost_gpus", record.first.device, LostGpu(record.first.device, record.first.at_s, "lost" not in record.roles)
    for record in grouped(by_kind.get("device_errors", ())):
        yield "device_errors", record.first.device, DeviceError(record.first.device, record.first.at_s, clip(record.first.text, _MOST_TEXT))
    for record in links:
        error = _pcie(record, gpus)
        yield "pcie_errors", (error.pci_bus_id, str(error.severity)), error
    for record in _host_records(host, links):
        error_of_host = _host(record)
        yield "host_errors", (error_of_host.kind, str(error_of_host.severity)), error_of_host


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


def _sxid(record: _Record) -> SXid:
    """Return an event of a switch. Its lines of detail say nothing without the head, which names the error."""
    head = next((line for line in record.lines if line.role == "head"), None)
    line = head or record.first
    is_fatal = {FATAL: True, NON_FATAL: False}.get(record.severity) if head else None
    text = line.facts.get("rest") or line.text.partition("): ")[2].partition(", ")[2]
    known = _NO_FATALITY if is_fatal is None else is_fatal
    return SXid(int(line.facts["number"]), line.facts["switch"], line.device, line.at_s, known, clip(text, _MOST_TEXT))


def _pcie_records(lines: Sequence[Line]) -> list[_Record]:
    """Return the errors of links. What the kernel says of recovery names every device below the port, so it comes to the others last."""
    records = grouped(line for line in lines if line.role != "aftermath")
    bad = [record for record in records if record.severity not in {"", CORRECTED}]
    starts = [record.first.at_s for record in bad]
    alone = []
    for line in (line for line in lines if line.role == "aftermath"):
        begin = bisect_left(starts, line.at_s - NEAR_S)
        near = [record for record in bad[begin : begin + _MOST_NEAR] if record.fits(line)]
        own = [record for record in near if {key for one in record.lines for key in one.keys}.intersection(line.keys)]
        of_port = [record for record in near if any(one.facts.get("driver") == "pcieport" for one in record.lines)]
        if joined := own or of_port:
            joined[-1].add(line)
        else:
            alone.append(line)
    return sorted([*records, *grouped(alone)], key=lambda record: record.first.at_s)


def _pcie(record: _Record, gpus: set[str]) -> PcieError:
    told = [line for line in record.lines if line.role not in {"notice", "gone", "aftermath"}]
    main = (told or record.lines)[0]
    named = [line.device for line in record.lines if line.role not in {"notice", "gone"}]
    named += [] if told else [line.source for line in record.lines]
    also = tuple(dict.fromkeys(address for address in named if address not in {"", main.device}))
    driven = {line.device for line in record.lines if line.facts.get("driver") == "nvidia"}
    known = tuple(address for address in (main.device, *also) if address in gpus | driven)
    gone = next((line.source for line in record.lines if line.role == "gone" and not told and line.source not in gpus), "")
    text = clip(main.text, _MOST_TEXT)
    return PcieError(main.device, _severity_of_link(record), record.first.at_s, text, also[:_MOST_OPEN], known[:_MOST_OPEN], gone)


def _severity_of_link(record: _Record) -> Answer[str]:
    """Return the severity that any line states; of a record of the firmware, fatal where a bit is set that counts as fatal."""
    said = next((line.said for line in record.lines if line.said), "")
    if said:
        return Missing(Why.UNREADABLE, said)
    if not record.roles & _HEADS or not record.severity:
        return _NO_SEVERITY
    status, fatal_bits = record.fact("status"), record.fact("fatal_bits")
    if record.severity == UNCORRECTED and status and fatal_bits:
        return FATAL if int(status, 16) & int(fatal_bits, 16) else NON_FATAL
    return record.severity


# --- the host -------------------------------------------------------------------------------------------------------------------

_FIRMWARE_FIELD = re.compile(
    r" *(?:event severity|Error \d+, type|section[_ ]type|fru_|(?:im)?precise tstamp|flags|port_type|version|command|device_id|slot"
    r"|secondary_bus|vendor_id|class_code|serial number|bridge|aer_|TLP Header|physical_address|error_type|error_status|node|APEI generic"
    r"|Hardware error from APEI|It has been corrected)\b.*"
)
_FACTS = {
    "severity": re.compile(r" *event severity: (\w+).*"),
    "type": re.compile(r" *Error \d+, type: (\w+).*"),
    "section": re.compile(r" *section[_ ]type: (.*)"),
    "device": re.compile(r" *device_id: ([0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]).*"),
    "address": re.compile(r" *physical_address: 0x([0-9a-f]+).*"),
    "corrected": re.compile(r" *It has been (corrected) by h/w.*"),
}
_OF_FIRMWARE = {"corrected": CORRECTED, "info": CORRECTED, "recoverable": UNCORRECTED, "fatal": FATAL}  # cper_severity_str


def _firmware_records(lines: Sequence[Line]) -> Iterator[Line]:
    """Yield each record of the firmware as one line, and each line of a machine check as it is read.

    The kernel numbers the lines of a record, `{7}[Hardware Error]`. Without a number a new one begins with its severity.
    """
    records: dict[tuple[str, int], list[tuple[Line, dict[str, str]]]] = {}
    unnumbered = 0
    for line in lines:
        number, text = line.facts.get("record", ""), line.facts["field"]
        if not number and not _FIRMWARE_FIELD.fullmatch(text):
            yield _machine_check(line)
            continue
        facts = {name: match[1] for name, pattern in _FACTS.items() if (match := pattern.fullmatch(text))}
        unnumbered += not number and "severity" in facts
        records.setdefault((number, 0 if number else unnumbered), []).append((line, facts))
    for record in records.values():
        yield from _sections(record)


def _sections(record: Sequence[tuple[Line, dict[str, str]]]) -> Iterator[Line]:
    """Yield a line for each error of a record: each has a type and a section, and the record the severity of the worst one."""
    parts: list[dict[str, str]] = [{}]
    for _, facts in record:
        if ("type" in facts and "type" in parts[-1]) or ("section" in facts and "section" in parts[-1]):
            parts.append({})
        parts[-1].update(facts)
    of_all = _worst(facts.get("severity", facts.get("corrected", "")) for _, facts in record)
    of_each = [_worst([facts.get("type", "")]) for facts in parts]
    explained = of_all in {"", *of_each} or _worst_of(of_each) == _worst_of([*of_each, of_all])
    for facts, severity in zip(parts, of_each, strict=True):
        yield _section(record[0][0], facts, severity if severity and explained else of_all)


def _worst(words: Iterable[str]) -> str:
    return _worst_of([_OF_FIRMWARE.get(word, "") for word in words])


def _worst_of(severities: Sequence[str]) -> str:
    return next((one for one in WORST_FIRST if one in severities), "")


def _section(first: Line, facts: dict[str, str], severity: str) -> Line:
    section = facts.get("section", "")
    if "PCIe" in section and "device" in facts:
        device = _nvml(facts["device"])
        return Line("pcie_errors", "record", first.text, first.at_s, (device,), severity, "", device, "", {})
    if "memory" in section:
        page = int(facts.get("address", "0"), 16) >> 12
        return Line("host_errors", "memory", first.text, first.at_s, (f"page {page:#x}",) if page else (), severity)
    return Line("host_errors", "record", first.text, first.at_s, (), severity, facts={} if section else {"no_section": "yes"})


def _nvml(address: str) -> str:
    domain, _, rest = address.partition(":")
    return f"{int(domain, 16):08X}:{rest.upper()}"


# MCi_STATUS: bit 61 uncorrected, 57 the processor's context is corrupt (Intel SDM 3B, 17.3.2.2); AMD's decoder prints the flags.
_CHECK = re.compile(r" *CPU ?\d+: Machine Check(?: Exception)?: [0-9a-f]+ Bank \d+: ([0-9a-f]{1,16}).*")
_DECODED = re.compile(r".*\bMC\d+_STATUS\[([^\]]*)\]: 0x([0-9a-f]{1,16}).*")
_VERDICTS = {
    re.compile(r" *Corrected error, no action required\..*"): CORRECTED,
    re.compile(r" *(?:Deferred error|Uncorrected, software (?:restartable|containable)).*"): UNCORRECTED,
    re.compile(r" *System Fatal error\..*"): FATAL,
}


def _machine_check(line: Line) -> Line:
    """Return a line of a machine check by its status word, or by what the kernel says about it."""
    text, role, severity = line.facts["field"], "line", ""
    for pattern, verdict in _VERDICTS.items():
        if pattern.fullmatch(text):
            role, severity = "words", verdict
    if match := _CHECK.fullmatch(text) or _DECODED.fullmatch(text):
        status, flags = int(match[match.lastindex or 1], 16), match[1] if match.lastindex == 2 else ""
        is_bad = status >> 61 & 1 or "Deferred" in flags
        role, severity = "check", (FATAL if status >> 57 & 1 else UNCORRECTED) if is_bad else CORRECTED
    return Line("host_errors", role, line.text, line.at_s, ("machine check",), severity)


def _host_records(lines: Sequence[Line], links: Sequence[_Record]) -> Iterator[_Record]:
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
    others = grouped(line for line in lines if line.role not in {"memory", "killed"})
    for record in sorted([*records, *others], key=lambda one: one.first.at_s):
        if "no_section" in record.first.facts and record.severity == UNCORRECTED:
            near = [one for one in _around(by_firmware, starts, record.first.at_s) if "record" not in one.roles]
            if near:
                near[0].roles.add("record")
                continue
        yield record


def _around(records: Sequence[_Record], starts: Sequence[float], at_s: float) -> list[_Record]:
    begin = bisect_left(starts, at_s - NEAR_S)
    return [one for one in records[begin : begin + _MOST_NEAR] if abs(one.first.at_s - at_s) <= NEAR_S]


def _host(record: _Record) -> HostError:
    kind = "memory" if record.roles & {"memory", "killed"} else "firmware" if "record" in record.roles else "machine check"
    severity: Answer[str] = record.severity if record.roles & _HEADS and record.severity else _NO_SEVERITY
    return HostError(record.first.at_s, clip(record.first.text, _MOST_TEXT), kind, severity)
