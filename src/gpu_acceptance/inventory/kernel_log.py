"""What the kernel has logged since boot about GPUs, NVSwitches, PCIe and the host's own hardware.

Only /dev/kmsg is read, not the files of syslog (/var/log/kern.log, messages, syslog) in its stead: they begin at the last rotation and hold
several boots, syslog filters and limits what gets there, and any user can log under the tag `kernel`. That they name none proves nothing.
A log that may not be read (kernel.dmesg_restrict without CAP_SYSLOG, a container without the device) is Missing; XIDs during the run come
from NVML's events, which need no privilege.
"""

import os
import re
import time
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from gpu_acceptance.base.text import clip
from gpu_acceptance.inventory.answer import Answer, Missing, Why, missing_over
from gpu_acceptance.inventory.pci_topology import nvml_bus_id

_RECORD_BYTES = 16_384  # the kernel refuses a buffer that is smaller than a record, which has up to 8 KiB (CONSOLE_EXT_LOG_MAX)
_MOST_BYTES = 64 << 20  # log_buf_len of a large node is some MiB
_MOST_S = 2.0

# Prefix, sequence number, microseconds since boot, flags and whatever later kernels add before the semicolon; 64-bit numbers.
_RECORD = re.compile(rb"(\d{1,6}),(\d{1,20}),(\d{1,20}),[^;]*;(.*)")
_LOG_KERN = 0  # the facility: the prefix without its 3 bits of priority
T = TypeVar("T")

_MOST_TEXT = 300  # characters
_MOST_ALIKE = 100  # messages of one kind about one device that are listed; one that repeats for ever must not hide another


@dataclass(frozen=True)
class Reach:
    """Which part of the log was there to read. That something is not in it proves only where `is_since_boot` that it never was."""

    first_sequence: int  # 0 is the first record of this boot
    first_s: float  # seconds since boot, by the kernel's own clock
    last_s: float
    num_records: int
    num_lost: int  # overwritten while they were read: numbers missing in the sequence
    num_unreadable: int  # lines that are no records
    is_cut_short: bool  # reading stopped at its bound in bytes or seconds
    is_since_boot: bool


@dataclass(frozen=True)
class Records:
    reach: Reach
    kept: tuple[tuple[float, bytes], ...]  # seconds since boot, and the text as the kernel escapes it


def read_kmsg(path: Path, words: tuple[bytes, ...]) -> Answer[Records]:
    """The kernel's own records that have one of the words. Reads to the end of what is there now and does not wait for more."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return missing_over(error, path)
    try:
        text, is_cut_short = drain(partial(os.read, descriptor, _RECORD_BYTES))
    except OSError as error:
        return missing_over(error, path)
    finally:
        os.close(descriptor)
    return split_records(text, words, is_cut_short) or Missing(Why.UNREADABLE, f"{path} holds no record of a kernel log: {text[:60]!r:.80}")


def drain(read_some: Callable[[], bytes]) -> tuple[bytes, bool]:
    """All that can be read at once, and whether a bound ended it. The device answers with one record a time, and EAGAIN behind the last."""
    chunks: list[bytes] = []
    num_bytes, give_up_at = 0, time.monotonic() + _MOST_S
    while num_bytes < _MOST_BYTES and time.monotonic() < give_up_at:
        try:
            chunk = read_some()
        except BlockingIOError:
            return b"".join(chunks), False
        except BrokenPipeError:  # EPIPE: the next record has been overwritten; the one behind the gap comes next
            continue
        if not chunk:
            return b"".join(chunks), False
        chunks.append(chunk)
        num_bytes += len(chunk)
    return b"".join(chunks), True


def split_records(text: bytes, words: tuple[bytes, ...] = (b"",), is_cut_short: bool = False) -> Records | None:
    """None where there is no record at all: even a node that has just booted has logged its kernel's version.

    Facility 0 is what the kernel wrote itself. Whoever may write to the device can put any text there, but not with that facility.
    """
    present = tuple(word for word in words if word in text)
    first = last = None
    kept, num_records, num_unreadable = [], 0, 0
    for line in text.split(b"\n"):
        if not line or line.startswith(b" "):  # " KEY=value" belongs to the record above
            continue
        record = _RECORD.fullmatch(line)
        if record is None:
            num_unreadable += 1
            continue
        first, last, num_records = first or record, record, num_records + 1
        if present and any(word in line for word in present) and int(record[1]) >> 3 == _LOG_KERN:
            kept.append((_seconds(record), record[4]))
    if first is None or last is None:
        return None
    return Records(_reach(first, last, num_records, num_unreadable, is_cut_short), tuple(kept))


def _reach(first: re.Match[bytes], last: re.Match[bytes], num_records: int, num_unreadable: int, is_cut_short: bool) -> Reach:
    num_lost = max(0, int(last[2]) - int(first[2]) + 1 - num_records)
    return Reach(
        first_sequence=int(first[2]),
        first_s=_seconds(first),
        last_s=_seconds(last),
        num_records=num_records,
        num_lost=num_lost,
        num_unreadable=num_unreadable,
        is_cut_short=is_cut_short,
        is_since_boot=int(first[2]) == 0 and not (num_lost or num_unreadable or is_cut_short),
    )


def _seconds(record: re.Match[bytes]) -> float:
    return int(record[3]) / 1e6


@dataclass(frozen=True)
class Message:
    """One line of the log. `at_s` is its time stamp: seconds since boot, by the kernel's own clock."""

    at_s: float
    text: str


@dataclass(frozen=True)
class Xid:
    """A message of the GPU driver. The same GPU has the same `pci_bus_id` in NVML. What the numbers mean: xids.py."""

    number: int
    pci_bus_id: str
    at_s: float
    pid: Answer[int]  # of the process that owns the channel, where the driver knows one
    process: Answer[str]
    text: str  # the rest of the line


@dataclass(frozen=True)
class SXid:
    """A message of the NVSwitch driver (up to Hopper). Numbers: NVIDIA Fabric Manager User Guide, "NVSwitch SXid Errors"."""

    number: int
    switch: str  # nvidia-nvswitch0
    pci_bus_id: str
    at_s: float
    is_fatal: Answer[bool]
    text: str


@dataclass(frozen=True)
class PcieError:
    """Reported by Advanced Error Reporting (drivers/pci/pcie/aer.c) for one device: a GPU, a NIC, or a port above them."""

    pci_bus_id: str
    severity: Answer[str]  # corrected, non-fatal, fatal
    at_s: float
    text: str


@dataclass(frozen=True)
class LostGpu:
    """A GPU that the driver says has fallen off the bus. XID 79 says so too, but not where the driver finds it gone when it starts."""

    pci_bus_id: str
    at_s: float


@dataclass(frozen=True)
class KernelLog:
    """Each list in the order of the log. All is Missing where the log could not be read: that is never "no XIDs"."""

    reach: Answer[Reach]
    xids: Answer[tuple[Xid, ...]]
    sxids: Answer[tuple[SXid, ...]]
    lost_gpus: Answer[tuple[LostGpu, ...]]
    pcie_errors: Answer[tuple[PcieError, ...]]
    host_errors: Answer[tuple[Message, ...]]  # machine checks, memory (EDAC), errors that firmware reports (GHES)
    unreadable: Answer[tuple[Message, ...]]  # of an XID, an SXid or a lost GPU in no form known here: as bad as any of them may be
    num_left_out: Answer[int]  # more of a kind that is listed already


def read(root: Path = Path("/")) -> KernelLog:
    records = read_kmsg(root / "dev" / "kmsg", _WORDS)
    if isinstance(records, Missing):
        return KernelLog(records, records, records, records, records, records, records, records)
    found = _Found()
    for at_s, text in records.kept:
        found.add(at_s, text.decode("utf-8", "backslashreplace"))
    return KernelLog(
        reach=records.reach,
        xids=tuple(found.xids),
        sxids=tuple(found.sxids),
        lost_gpus=tuple(found.lost_gpus),
        pcie_errors=tuple(found.pcie_errors),
        host_errors=tuple(found.host_errors),
        unreadable=tuple(found.unreadable),
        num_left_out=found.num_left_out,
    )


_WORDS = (b"Xid", b"fallen off the bus", b"PCIe Bus Error", b"aer_status", b"[Hardware Error]", b"EDAC ")  # of each line known here

_BUS = r"(?:PCI:)?([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})(\.[0-7])?"
# krcReportXid of the open kernel modules (kernel_rc.c), under MIG with instances; the catalogue also shows the older form without `PCI:`.
_XID = re.compile(rf"NVRM: Xid \({_BUS}(?: GPU-I:\d+)?(?: GPU-CI:\d+)?\): (\d{{1,9}})(?:, *(.*))?")
_PROCESS = re.compile(r"pid=(?:(\d{1,10})|'<unknown>')(?:, name=(.*?))?(?:, (.*))?")
_SXID = re.compile(rf"(nvidia-nvswitch\d+): SXid \({_BUS}\): (\d{{1,9}})(?:, *(.*))?")
# "NVRM: GPU 0000:91:00.0: GPU has fallen off the bus."; when the driver starts: "NVRM: The NVIDIA GPU 0000:91:00.0\x0aNVRM: (PCI ID: ..."
_LOST = re.compile(rf"NVRM: (?:The NVIDIA )?GPU(?: at)? {_BUS}\b.*fallen off the bus.*")
_PCIE = re.compile(rf"\S+ {_BUS}: (?:AER: )?(?:PCIe Bus Error: severity=([^,]+), .*|aer_status: 0x.*)")
_HOST = re.compile(r".*\[Hardware Error\].*|EDAC \S+: \d+ [CU]E .*")
_DOUBTFUL = re.compile(r"NVRM: Xid.*|.*: SXid .*|NVRM: .*fallen off the bus.*")
_SEVERITIES = {  # in the words of older and of newer kernels
    "Corrected": "corrected",
    "Correctable": "corrected",
    "Uncorrected (Non-Fatal)": "non-fatal",
    "Uncorrectable (Non-Fatal)": "non-fatal",
    "Uncorrected (Fatal)": "fatal",
    "Uncorrectable (Fatal)": "fatal",
}
_NO_PROCESS = Missing(Why.NOT_THERE, "the line names none")


@dataclass
class _Found:
    xids: list[Xid] = field(default_factory=list)
    sxids: list[SXid] = field(default_factory=list)
    lost_gpus: list[LostGpu] = field(default_factory=list)
    pcie_errors: list[PcieError] = field(default_factory=list)
    host_errors: list[Message] = field(default_factory=list)
    unreadable: list[Message] = field(default_factory=list)
    num_left_out: int = 0
    _seen: Counter[Hashable] = field(default_factory=Counter)

    def add(self, at_s: float, line: str) -> None:
        if match := _XID.fullmatch(line):
            self._keep(self.xids, _xid(match, at_s), match[1], match[3])
        elif match := _SXID.fullmatch(line):
            self._keep(self.sxids, _sxid(match, at_s), match[2], match[4])
        elif match := _LOST.fullmatch(line):
            self._keep(self.lost_gpus, LostGpu(_bus_id(match[1], match[2]), at_s), match[1])
        elif match := _PCIE.fullmatch(line):
            error = PcieError(_bus_id(match[1], match[2]), _severity(match[3]), at_s, clip(line, _MOST_TEXT))
            self._keep(self.pcie_errors, error, error.pci_bus_id, match[3])
        elif _HOST.fullmatch(line):
            self._keep(self.host_errors, Message(at_s, clip(line, _MOST_TEXT)))
        elif _DOUBTFUL.fullmatch(line):
            self._keep(self.unreadable, Message(at_s, clip(line, _MOST_TEXT)))

    def _keep(self, kept: list[T], message: T, *kind: Hashable) -> None:
        self._seen[id(kept), kind] += 1
        if self._seen[id(kept), kind] <= _MOST_ALIKE:
            kept.append(message)
        else:
            self.num_left_out += 1


def _xid(match: re.Match[str], at_s: float) -> Xid:
    bus, function, number, rest = match.groups(default="")
    named = _PROCESS.fullmatch(rest)
    pid, process, text = named.groups(default="") if named else ("", "", rest)
    return Xid(
        number=int(number),
        pci_bus_id=_bus_id(bus, function),
        at_s=at_s,
        pid=int(pid) if pid else _NO_PROCESS,
        process=clip(process, _MOST_TEXT) if process not in {"", "<unknown>"} else _NO_PROCESS,
        text=clip(text, _MOST_TEXT),
    )


def _sxid(match: re.Match[str], at_s: float) -> SXid:
    switch, bus, function, number, text = match.groups(default="")
    return SXid(int(number), switch, _bus_id(bus, function), at_s, _is_fatal(text), clip(text, _MOST_TEXT))


def _is_fatal(text: str) -> Answer[bool]:
    word = text.partition(",")[0]
    if word in {"Fatal", "Non-fatal"}:
        return word == "Fatal"
    return Missing(Why.NOT_THERE, "the line says neither Fatal nor Non-fatal")


def _severity(word: str | None) -> Answer[str]:
    if word is None:
        return Missing(Why.NOT_THERE, "the line names no severity")
    return _SEVERITIES.get(word, Missing(Why.UNREADABLE, f"severity={word:.40}"))


def _bus_id(bus: str, function: str | None) -> str:
    """The GPU driver leaves out the function, which is 0."""
    return nvml_bus_id(bus + (function or ".0"))
