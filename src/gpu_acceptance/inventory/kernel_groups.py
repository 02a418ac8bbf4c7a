"""Groups of lines: the lines of one event belong together, in whatever order they come, and any of them may state its severity.

A line joins an open record of its kind that shares a key with it, lies near it, has no such line yet, and does not contradict its severity.
A line of detail without its head stays a record in doubt. So no fault is lost, and no detail is counted as a second fault.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from gpu_acceptance.inventory.kernel_forms import CORRECTED, FATAL, NON_FATAL, UNCORRECTED, WORST_FIRST
from gpu_acceptance.inventory.kernel_lines import Line

NEAR_S = 60.0  # the lines of one record are logged at once; recovery of a device takes some seconds
MOST_OPEN = 16  # open records of one key
_NOT_TWICE = {
    *("head", "notice", "gone", "detail", "status", "containment", "reason", "record"),
    *("lost", "init", "start", "open", "refused", "probe", "words", "check"),
}


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
        is_uncorrectable = CORRECTED in {self.severity, line.severity} and any(one.is_uncorrectable for one in (*self.lines, line))
        return is_near and not is_second and not is_uncorrectable and agree(self.severity, line.severity)

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
