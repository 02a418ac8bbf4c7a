"""Records of /dev/kmsg, the kernel's own log since boot.

The files of syslog (/var/log/kern.log, messages, syslog) are not read: they begin at the last rotation and hold several
boots, syslog filters and limits its input, and any user can log under the tag `kernel`. A message missing there proves nothing.
A log that may not be read (kernel.dmesg_restrict without CAP_SYSLOG, a container without the device) is Missing; XIDs during the run come
from NVML's events, which need no privilege.
"""

import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gpu_acceptance.inventory.answer import Answer, Missing, Why, missing_over

_RECORD_BYTES = 16_384  # the kernel refuses a buffer that is smaller than a record, which has up to 8 KiB (CONSOLE_EXT_LOG_MAX)
_MOST_BYTES = 64 << 20  # log_buf_len of a large node is some MiB
_MOST_S = 2.0

# Prefix, sequence number, microseconds since boot, flags and additions of later kernels before the semicolon; 64-bit numbers.
_RECORD = re.compile(rb"(\d{1,6}),(\d{1,20}),(\d{1,20}),[^;]*;(.*)")
_LOG_KERN = 0  # the facility: the prefix without its 3 bits of priority


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
