"""Lines of the kernel's log about hardware: what each says by itself, and which ones are of one event. Their forms: kernel_forms.py.

A line joins an open record of its kind that shares a key with it, lies near it, has no such line yet, and does not contradict its severity.
A line of detail without its head stays a record in doubt. So no fault is lost, and no detail is counted as a second fault.
"""

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from gpu_acceptance.inventory.kernel_forms import (
    CORRECTED,
    DRIVER_GIVES_UP,
    FATAL,
    FORMS,
    GPUS,
    HOST,
    NON_FATAL,
    PCIE,
    UNCORRECTED,
    WORDS_OF,
    WORST_FIRST,
    Form,
)
from gpu_acceptance.inventory.pci_topology import nvml_bus_id

NEAR_S = 60.0  # the lines of one record are logged at once; recovery of a device takes some seconds
MOST_OPEN = 16  # open records of one key
MACHINE_CHECK = "machine check"  # key of what several sources say of a failure of a processor
_NOT_TWICE = {
    *("head", "notice", "gone", "detail", "status", "containment", "reason", "record"),
    *("lost", "init", "start", "open", "refused", "probe", "words", "check"),
}
_CORRECTABLE = 0xF1C1  # bits of the register of correctable errors (PCI Express, 7.8.4.5)
_LEAST_HARMLESS_HEALTH = 4  # WARNING; 0 to 3 are EMERGENCY, ALERT, CRITICAL, ERROR


@dataclass(frozen=True)
class Line:
    """One line that was understood. Lines of one kind that share a key, and lie near each other, are of one record."""

    kind: str  # the list of KernelLog
    role: str  # part of the record; kernel_records says which ones a record has once
    text: str
    at_s: float = 0.0
    keys: tuple[str, ...] = ()
    severity: str = ""  # one of WORST_FIRST; empty where the line does not say
    said: str = ""  # a severity in unknown words
    device: str = ""  # PCI address that reports
    source: str = ""  # PCI address that the reporting port blames
    facts: dict[str, str] = field(default_factory=dict)

    @property
    def owner(self) -> str:
        """Return the device that the line is about: the one that a port blames, else the one that reports."""
        return self.source or self.device

    @property
    def is_uncorrectable(self) -> bool:
        """Return True for a status with bits that only the register of uncorrectable errors has."""
        return "status" in self.facts and int(self.facts["status"], 16) & ~_CORRECTABLE != 0


_NOT_FATAL = re.compile(r"(?i)\bnon-?\s?fatal\b")
# Lines that look like one of the above: each may be as bad as any.
_DOUBTFUL = (
    (
        re.compile(
            r"NVRM: Xid.*|.*: SXid .*|NVRM: .*(?:fallen off the bus|lost from the bus).*"
            r"|NVRM: .*(?:probe routine failed|global fatal error|requiring os reboot|GPU is probably locked).*"
            r"|INFO: task nv\S*:\d+ blocked for more than .*"
        ),
        GPUS,
    ),
    (re.compile(r".*(?:PCIe Bus Error|AER: Uncorrect|aer_status|DPC: containment event|DPC containment event).*"), PCIE),
    (
        re.compile(
            r".*\[Hardware Error\].*|EDAC .*\bUE\b.*|.*Memory failure: 0x.*"
            r"|.*\bBUG: soft lockup .*|.*\bhard LOCKUP\b.*|.*\bNMI received for unknown reason .*"
            r"|NMI: (?:PCI system error|memory parity error|IOCK error).*"
            r"|EXT4-fs .*Remounting filesystem read-only.*|XFS \(.*(?:Shutting down filesystem|has been shut down).*"
        ),
        HOST,
    ),
)
_SEVERITIES = {  # of older and of newer kernels
    "Corrected": CORRECTED,
    "Correctable": CORRECTED,
    "Uncorrected (Non-Fatal)": NON_FATAL,
    "Uncorrectable (Non-Fatal)": NON_FATAL,
    "Uncorrected (Fatal)": FATAL,
    "Uncorrectable (Fatal)": FATAL,
    "Uncorrected": UNCORRECTED,
    "Uncorrectable": UNCORRECTED,
}
_REASONS = {"unmasked uncorrectable error": UNCORRECTED, "ERR_NONFATAL": NON_FATAL, "software trigger": ""}  # every other one is fatal
_CORRECTED_BITS = {  # names of aer.c, of newer and of older kernels
    *("RxErr", "BadTLP", "BadDLLP", "Rollover", "Timeout", "NonFatalErr", "CorrIntErr", "HeaderOF"),
    *("Receiver Error", "Bad TLP", "Bad DLLP", "RELAY_NUM Rollover", "Replay Timer Timeout", "Advisory Non-Fatal"),
    *("Corrected Internal Error", "Header Log Overflow"),
}
_UNCORRECTED_BITS = {
    *("Undefined", "DLP", "SDES", "TLP", "FCP", "CmpltTO", "CmpltAbrt", "UnxCmplt", "RxOF", "MalfTLP", "ECRC", "UnsupReq", "ACSViol"),
    *("UncorrIntErr", "BlockedTLP", "AtomicOpBlocked", "TLPBlockedErr", "PoisonTLPBlocked", "DMWrReqBlocked", "IDECheck", "MisIDETLP"),
    *("PCRC_CHECK", "TLPXlatBlocked", "Data Link Protocol", "Surprise Down Error", "Poisoned TLP", "Flow Control Protocol"),
    *("Completion Timeout", "Completer Abort", "Unexpected Completion", "Receiver Overflow", "Malformed TLP", "Unsupported Request"),
    *("ACS Violation", "Uncorrectable Internal Error", "MC Blocked TLP", "AtomicOp Egress Blocked", "TLP Prefix Blocked Error"),
}


def read_line(at_s: float, line: str) -> Line | None:
    """Return what a line says; None where it is about no hardware that is judged."""
    for form in FORMS:
        if not any(word in line for word in WORDS_OF[form.kind]):
            continue
        if (match := form.pattern.fullmatch(line)) and (found := _line_of(form, match, at_s)):
            return found
    about = next((about for pattern, about in _DOUBTFUL if pattern.fullmatch(line)), None)
    return Line("unreadable", about, line, at_s) if about else None


def _line_of(form: Form, match: re.Match[str], at_s: float) -> Line | None:
    found = {name: text for name, text in match.groupdict().items() if text is not None}
    if form.role == "driver" and not _is_fatal(match[0]):
        return None
    device = nvml_bus_id(found["bus"] + found.get("function", ".0")) if "bus" in found else ""  # the GPU driver leaves out the function, 0
    if "slot" in found:
        device = nvml_bus_id(f"0000:{found['slot']}")
    source = _source_of(found.get("source", ""), device)
    words = found.get("words", "")
    severity = form.severity or _severity_of(found)
    keys = (f"{device} {found.get('number', '')}",) if form.kind in {"xids", "sxids"} else (source or device, *_page(found, match[0]))
    keys = {"killed": ("killed",), "reset": (MACHINE_CHECK,), "iommu": (f"iommu {device}",)}.get(
        form.role, (*keys, found.get("rdma_device", ""), found.get("disk", ""))
    )
    said = f"severity={words:.40}" if words and not severity else ""
    return Line(form.kind, form.role, match[0], at_s, tuple(filter(None, keys)), severity, said, device, source, found)


def _is_fatal(text: str) -> bool:
    return re.search(rf"(?i:\bfatal\b)|{DRIVER_GIVES_UP}", _NOT_FATAL.sub("", text)) is not None


def _severity_of(found: dict[str, str]) -> str:
    """Return the severity that the line states, in the words of the table."""
    if "trigger" in found:
        return _severity_of_trigger(int(found["trigger"], 16))
    if "reason" in found:
        return _REASONS.get(found["reason"], FATAL)
    if "bit" in found:
        return CORRECTED if found["bit"] in _CORRECTED_BITS else UNCORRECTED if found["bit"] in _UNCORRECTED_BITS else ""
    if "health" in found:
        return FATAL if int(found["health"]) < _LEAST_HARMLESS_HEALTH else CORRECTED
    if "edac" in found:
        return CORRECTED if found["edac"] == "CE" else UNCORRECTED
    if "fatality" in found or "level" in found:
        return {"Fatal": FATAL, "Non-fatal": NON_FATAL, "1": FATAL, "0": NON_FATAL}.get(found.get("fatality", found.get("level", "")), "")
    return _SEVERITIES.get(found.get("severity", found.get("words", "")), "")


def _severity_of_trigger(status: int) -> str:
    """Return the severity of a containment: bits 1-2 of the DPC status are the reason, 5-6 its extension (PCI Express, 7.9.14.5)."""
    reason, extension = status >> 1 & 3, status >> 5 & 3
    return (UNCORRECTED, NON_FATAL, FATAL, "" if extension == 1 else FATAL)[reason]


def _source_of(text: str, port: str) -> str:
    """Return the address that a port names, or an empty text; older kernels write the 16 bits of bus, device and function."""
    if not text:
        return ""
    if ":" not in text:
        number = int(text, 16)
        text = f"{port.partition(':')[0]}:{number >> 8:02x}:{number >> 3 & 31:02x}.{number & 7}"
    address = nvml_bus_id(text)
    return "" if address.endswith(":00:00.0") else address


_PAGE = re.compile(r"\bpage:?[ =]?0x([0-9a-f]+)")


def _page(found: dict[str, str], text: str) -> Iterator[str]:
    """Yield the key of a page of memory. Page 0 stands for an unknown one."""
    number = int(found["page"], 16) if "page" in found else int(found["address"], 16) >> 12 if "address" in found else 0
    if "edac" in found and (match := _PAGE.search(text)):
        number = int(match[1], 16)
    if number:
        yield f"page {number:#x}"


# --- groups of lines ------------------------------------------------------------------------------------------------------------


def worst_of(severities: Sequence[str]) -> str:
    return next((one for one in WORST_FIRST if one in severities), "")


def severity_by_bits(severity: str, status: str, fatal_bits: str) -> str:
    """Return the severity of an error on a link: one that was not corrected is fatal where a bit of its status is a fatal one."""
    if severity != UNCORRECTED or not status or not fatal_bits:
        return severity
    return FATAL if int(status, 16) & int(fatal_bits, 16) else NON_FATAL


@dataclass
class Record:
    """Lines that belong together."""

    first: Line
    lines: list[Line] = field(default_factory=list)
    roles: set[str] = field(default_factory=set)
    severity: str = ""

    def add(self, line: Line) -> None:
        if line.role not in self.roles or len(self.lines) < MOST_OPEN:
            self.lines.append(line)
        self.roles.add(line.role)
        self.severity = worst_of([self.severity, line.severity])

    def fits(self, line: Line) -> bool:
        is_near = abs(line.at_s - self.first.at_s) <= NEAR_S
        is_second = line.role in _NOT_TWICE and line.role in self.roles
        return is_near and not is_second and agree(self.severity, line.severity) and not self._contradicts(line)

    def _contradicts(self, line: Line) -> bool:
        """Return True where one calls the error corrected, and the other has a status that no corrected error has."""
        return CORRECTED in {self.severity, line.severity} and any(one.is_uncorrectable for one in (*self.lines, line))

    def fact(self, name: str) -> str:
        return next((line.facts[name] for line in self.lines if name in line.facts), "")


def agree(one: str, other: str) -> bool:
    """Return True where both severities may be of one error: `uncorrected` is either of fatal and non-fatal."""
    return "" in {one, other} or one == other or (UNCORRECTED in {one, other} and CORRECTED not in {one, other})


def grouped(lines: Iterable[Line]) -> list[Record]:
    """Return the records of lines, in the order of their first ones."""
    records: list[Record] = []
    by_key: dict[tuple[str, str], deque[Record]] = {}
    for line in lines:
        keys = [(line.kind, key) for key in line.keys]
        near = {id(record): record for key in keys for record in by_key.get(key, ()) if record.fits(line)}
        nearest = min if line.role == "status" else max  # records of the firmware come first, all registers after them in the same order
        record = nearest(near.values(), key=lambda one: one.first.at_s, default=None)
        if record is None:
            record = Record(line)
            records.append(record)
        record.add(line)
        for key in keys:
            its = by_key.setdefault(key, deque(maxlen=MOST_OPEN))
            if not any(one is record for one in its):
                its.append(record)
    return records
