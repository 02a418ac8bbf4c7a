"""Reads event files as TensorBoard does, a folder with one is a run, but strictly: what does not add up is an error. Makes curves, too."""

import struct
from pathlib import Path

from tensorboardX.proto.event_pb2 import Event

from gpu_acceptance.record.figure import curve_of
from gpu_acceptance.record.row import Attempt
from gpu_acceptance.record.run_record import RunRecord

_POLYNOMIAL = 0x82F63B78  # of CRC-32C (RFC 3720, appendix B.4), reflected


def read_runs(folder: Path) -> dict[str, dict[str, list[tuple[int, float]]]]:
    """By run and tag: step and value of each point."""
    paths = {str(path.parent.relative_to(folder)): path for path in folder.rglob("*tfevents*")}
    return {run: _scalars(events_of(paths[run])) for run in sorted(paths)}


def events_of(path: Path) -> list[Event]:
    """Each record is its length, the checksum of that, what it holds, and the checksum of that (tensorflow/core/lib/io/record_writer.h)."""
    data, events = path.read_bytes(), []
    while data:
        length, of_length = struct.unpack("<QI", data[:12])
        held, (of_held,) = data[12 : 12 + length], struct.unpack("<I", data[12 + length : 16 + length])
        assert (of_length, of_held) == (_masked_crc32c(data[:8]), _masked_crc32c(held))
        events.append(Event.FromString(held))
        data = data[16 + length :]
    return events


def _scalars(events: list[Event]) -> dict[str, list[tuple[int, float]]]:
    first, *others = events
    assert first.file_version == "brain.Event:2"
    assert [event.step for event in others] == sorted({event.step for event in others})
    found: dict[str, list[tuple[int, float]]] = {}
    for event in others:
        for value in event.summary.value:
            found.setdefault(value.tag, []).append((event.step, value.simple_value))
    return found


def _masked_crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def with_curves(record: RunRecord) -> RunRecord:
    """Add a curve to the first rank of the first validation."""
    row, *others = record.rows
    attempt, *repeats = row.attempts
    return record.model_copy(update={"rows": (row.model_copy(update={"attempts": (with_curve(attempt), *repeats)}), *others)})


def with_curve(attempt: Attempt) -> Attempt:
    first, *others = attempt.ranks
    kept = first.model_copy(update={"curves": (curve_of("a.loss", [2.5], "nats"),)})
    return attempt.model_copy(update={"ranks": (kept, *others)})
