"""The kernel's messages since boot about GPUs, NVSwitches, PCIe and the host's own hardware.

Only /dev/kmsg is read, not the files of syslog (/var/log/kern.log, messages, syslog): they begin at the last rotation and hold several
boots, syslog filters and limits its input, and any user can log under the tag `kernel`. A message missing there proves nothing.
A log that may not be read (kernel.dmesg_restrict without CAP_SYSLOG, a container without the device) is Missing; XIDs during the run come
from NVML's events, which need no privilege.
"""

import os
import re
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gpu_acceptance.base.text import clip, each_once
from gpu_acceptance.inventory.answer import Answer, Missing, Why, all_missing, known, missing_over
from gpu_acceptance.inventory.gpu import GpuReading
from gpu_acceptance.inventory.pci_topology import Place, nvml_bus_id
from gpu_acceptance.inventory.xids import Remedy, labels_of, meaning_of

_RECORD_BYTES = 16_384  # the kernel refuses a buffer that is smaller than a record, which has up to 8 KiB (CONSOLE_EXT_LOG_MAX)
_MOST_BYTES = 64 << 20  # log_buf_len of a large node is some MiB
_MOST_S = 2.0

# Prefix, sequence number, microseconds since boot, flags and additions of later kernels before the semicolon; 64-bit numbers.
_RECORD = re.compile(rb"(\d{1,6}),(\d{1,20}),(\d{1,20}),[^;]*;(.*)")
_LOG_KERN = 0  # the facility: the prefix without its 3 bits of priority

_MOST_TEXT = 300  # characters
_MOST_ALIKE = 100  # listed messages of one kind about one device; one that repeats endlessly must not hide another
Finding = tuple[str, Answer[int], str, str] | tuple[str, Answer[int], str, str, dict[str, int]]  # metric, value, unit, detail, labels
Findings = Iterator[Finding]

_NO_REPAIR = {Remedy.IGNORE, Remedy.RESTART_APPLICATION}


@dataclass(frozen=True)
class Reach:
    """Part of the log that was read. Only with `is_since_boot` does it prove that a message was never logged."""

    first_sequence: int  # 0 is the first record of this boot
    first_s: float  # seconds since boot, by the kernel's own clock
    last_s: float
    num_records: int
    num_lost: int  # overwritten while being read: numbers missing in the sequence
    num_unreadable: int  # lines that are not records
    is_cut_short: bool  # reading stopped at its bound in bytes or seconds
    is_since_boot: bool


@dataclass(frozen=True)
class Records:
    """The kernel's own records with one of the words."""

    reach: Reach
    kept: tuple[tuple[float, bytes], ...]  # seconds since boot, and the text with the escapes of the kernel


def read_kmsg(path: Path, words: tuple[bytes, ...]) -> Answer[Records]:
    """Read the kernel's own records that have one of the words, up to the present end of the log."""
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
    """Read until the end, and return True where a bound ended it. The device returns one record a time, and EAGAIN after the last."""
    chunks: list[bytes] = []
    num_bytes, give_up_at = 0, time.monotonic() + _MOST_S
    while num_bytes < _MOST_BYTES and time.monotonic() < give_up_at:
        try:
            chunk = read_some()
        except BlockingIOError:
            return b"".join(chunks), False
        except BrokenPipeError:  # EPIPE: the next record has been overwritten; the one after the gap comes next
            continue
        if not chunk:
            return b"".join(chunks), False
        chunks.append(chunk)
        num_bytes += len(chunk)
    return b"".join(chunks), True


def split_records(text: bytes, words: tuple[bytes, ...] = (b"",), is_cut_short: bool = False) -> Records | None:
    """Return None without any record: even a node that has just booted has logged its kernel's version.

    Only the kernel writes with facility 0. Users who may write to the device can put any text there, but not with that facility.
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
    num_lost = max(0, int(last[2]) - int(first[2]) + 1 - num_records)
    reach = Reach(
        first_sequence=int(first[2]),
        first_s=_seconds(first),
        last_s=_seconds(last),
        num_records=num_records,
        num_lost=num_lost,
        num_unreadable=num_unreadable,
        is_cut_short=is_cut_short,
        is_since_boot=int(first[2]) == 0 and not (num_lost or num_unreadable or is_cut_short),
    )
    return Records(reach, tuple(kept))


def _seconds(record: re.Match[bytes]) -> float:
    return int(record[3]) / 1e6


@dataclass(frozen=True)
class Message:
    """One line of the log. `at_s`: seconds since boot, by the kernel's own clock."""

    at_s: float
    text: str


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
    """A GPU that has fallen off the bus by its driver. XID 79 reports it too, but not where the driver misses the GPU at its start."""

    pci_bus_id: str
    at_s: float


@dataclass(frozen=True)
class KernelLog:
    """Lists in the order of the log. All are Missing where the log could not be read, which never means "no XIDs"."""

    reach: Answer[Reach]
    xids: Answer[tuple[Xid, ...]]
    sxids: Answer[tuple[SXid, ...]]
    lost_gpus: Answer[tuple[LostGpu, ...]]
    pcie_errors: Answer[tuple[PcieError, ...]]
    host_errors: Answer[tuple[Message, ...]]  # machine checks, memory (EDAC), errors that firmware reports (GHES)
    unreadable: Answer[tuple[Message, ...]]  # XIDs, SXids or lost GPUs in an unknown format: each may be as bad as any
    num_left_out: Answer[int]  # further messages of a kind that is listed


def read(root: Path = Path("/")) -> KernelLog:
    """Read the log of this boot."""
    records = read_kmsg(root / "dev" / "kmsg", _WORDS)
    if isinstance(records, Missing):
        return KernelLog(*[records] * 8)
    lists: dict[str, Any] = {name: [] for name in ("xids", "sxids", "lost_gpus", "pcie_errors", "host_errors", "unreadable")}
    seen: Counter[Hashable] = Counter()
    for at_s, text in records.kept:
        if parsed := _parse(at_s, text.decode("utf-8", "backslashreplace")):
            name, kind, message = parsed
            seen[name, kind] += 1
            if seen[name, kind] <= _MOST_ALIKE:
                lists[name].append(message)
    num_left_out = sum(max(0, number - _MOST_ALIKE) for number in seen.values())
    return KernelLog(records.reach, **{name: tuple(found) for name, found in lists.items()}, num_left_out=num_left_out)


_WORDS = (b"Xid", b"fallen off the bus", b"PCIe Bus Error", b"aer_status", b"[Hardware Error]", b"EDAC ")  # one in each line of interest

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
_SEVERITIES = {  # of older and of newer kernels
    "Corrected": "corrected",
    "Correctable": "corrected",
    "Uncorrected (Non-Fatal)": "non-fatal",
    "Uncorrectable (Non-Fatal)": "non-fatal",
    "Uncorrected (Fatal)": "fatal",
    "Uncorrectable (Fatal)": "fatal",
}
_NO_PROCESS = Missing(Why.NOT_THERE, "the line names none")
_NO_SEVERITY = Missing(Why.NOT_THERE, "the line names no severity")
_NO_FATALITY = Missing(Why.NOT_THERE, "the line says neither Fatal nor Non-fatal")


def _parse(at_s: float, line: str) -> tuple[str, Hashable, object] | None:
    """Return the list of KernelLog to which a line belongs, a key that similar lines share, and the message; None for other lines."""
    text = clip(line, _MOST_TEXT)
    if match := _XID.fullmatch(line):
        return "xids", (match[1], match[3]), _xid(match, at_s)
    if match := _SXID.fullmatch(line):
        switch, bus, function, number, rest = match.groups(default="")
        is_fatal = {"Fatal": True, "Non-fatal": False}.get(rest.partition(",")[0], _NO_FATALITY)
        return "sxids", (bus, number), SXid(int(number), switch, _bus_id(bus, function), at_s, is_fatal, clip(rest, _MOST_TEXT))
    if match := _LOST.fullmatch(line):
        return "lost_gpus", match[1], LostGpu(_bus_id(match[1], match[2]), at_s)
    if match := _PCIE.fullmatch(line):
        unknown = Missing(Why.UNREADABLE, f"severity={match[3]:.40}") if match[3] else _NO_SEVERITY
        severity = _SEVERITIES.get(match[3], unknown)
        return "pcie_errors", (match[1], match[2], match[3]), PcieError(_bus_id(match[1], match[2]), severity, at_s, text)
    if _HOST.fullmatch(line):
        return "host_errors", None, Message(at_s, text)
    return ("unreadable", None, Message(at_s, text)) if _DOUBTFUL.fullmatch(line) else None


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


def _bus_id(bus: str, function: str | None) -> str:
    """Return the address as NVML writes it. The GPU driver leaves out the function, which is 0."""
    return nvml_bus_id(bus + (function or ".0"))


def errors(log: KernelLog, gpu: GpuReading, place: Answer[Place]) -> Findings:
    """Yield errors of one GPU, found by its address on the PCI bus."""
    address = gpu.pci_bus_id
    if isinstance(address, Missing):
        yield from all_missing("kernel_log.errors", address, xids="count", lost="count", pcie="count")
        return
    xids = [meaning_of(xid.number, xid.text) for xid in known(log.xids) if xid.pci_bus_id == address]
    to_repair = [meaning for meaning in xids if meaning.remedy not in _NO_REPAIR]
    number = _counted(to_repair, log, _doubt_of_line(log))
    yield "kernel_log.errors.xids", number, "count", each_once(map(str, to_repair)), labels_of(to_repair)
    lost = [f"{one.at_s:.0f} s after boot" for one in known(log.lost_gpus) if one.pci_bus_id == address]
    yield "kernel_log.errors.lost", _counted(lost, log, _doubt_of_line(log)), "count", each_once(lost)
    # A device above it: a port between the GPU and the CPU.
    above = () if isinstance(place, Missing) or isinstance(place.pci_path, Missing) else place.pci_path.split("/")[1:]
    own = [error for error in known(log.pcie_errors) if error.pci_bus_id in {address, *map(nvml_bus_id, above)}]
    bad = [f"{error.pci_bus_id} {error.severity}" for error in own if error.severity in {"non-fatal", "fatal"}]
    yield "kernel_log.errors.pcie", _counted(bad, log, _doubt_of_port(own, log, place)), "count", each_once(bad)


def elsewhere(log: KernelLog, gpus: Iterable[GpuReading]) -> Findings:
    """Yield errors of GPUs that NVML does not show, and of the switches between GPUs."""
    shown = [gpu.pci_bus_id for gpu in gpus]
    unknown = next((address for address in shown if isinstance(address, Missing)), None)
    addresses = [*(xid.pci_bus_id for xid in known(log.xids)), *(one.pci_bus_id for one in known(log.lost_gpus))]
    strange = [address for address in addresses if address not in shown]
    number = unknown if unknown and strange else _counted(strange, log, _doubt_of_line(log))
    yield "kernel_log.elsewhere.gpus", number, "count", each_once(strange)
    fatal = [f"SXid {one.number} of {one.switch}" for one in known(log.sxids) if one.is_fatal is True]
    doubtful = [f"SXid {one.number} of {one.switch}: {one.is_fatal}" for one in known(log.sxids) if isinstance(one.is_fatal, Missing)]
    doubt = Missing(Why.UNREADABLE, doubtful[0][:200]) if doubtful else _doubt_of_line(log)
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


def _doubt_of_line(log: KernelLog) -> Missing | None:
    """Return a doubt about a line of the GPU driver in an unknown format: it may concern any GPU, and be as bad as any."""
    first = next(iter(known(log.unreadable)), None)
    return Missing(Why.UNREADABLE, f"in no known form: {first.text}"[:200]) if first else None


def _doubt_of_port(own: Sequence[PcieError], log: KernelLog, place: Answer[Place]) -> Missing | None:
    """Return a doubt about an error of unknown severity, or of a port where the ports above this GPU are unknown."""
    unknown = next((error for error in own if isinstance(error.severity, Missing)), None)
    if unknown:
        return Missing(Why.UNREADABLE, f"{unknown.pci_bus_id}: {unknown.severity}"[:200])
    path = place if isinstance(place, Missing) else place.pci_path
    others = any(error.severity != "corrected" for error in known(log.pcie_errors))
    return path if isinstance(path, Missing) and others else None
