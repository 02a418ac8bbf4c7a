"""Verbs about a machine: show its hardware, keep it in a file, judge it, and watch its GPUs.

`watch` touches no GPU, and a driver that hangs does not stop it.
"""

import argparse
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from gpu_acceptance.base.text import one_line, plural, visible
from gpu_acceptance.cli.arguments import (
    INCOMPLETE,
    INTERRUPTED,
    UNREADABLE,
    Verbs,
    add_overlays,
    add_verb,
    fail,
    new_file,
    not_allowed,
    whole_number,
)
from gpu_acceptance.cli.devices import Column, say_why, table
from gpu_acceptance.cli.node import inventory_lines
from gpu_acceptance.cli.snapshot_file import NoGpusError, gpus_of, judge_snapshot, read_snapshot, redact, take, write_snapshot
from gpu_acceptance.inventory import counters
from gpu_acceptance.inventory.answer import Answer, Missing, Why, all_of, then
from gpu_acceptance.inventory.counters import PortTraffic
from gpu_acceptance.inventory.gpu import event_reasons_of, text, watts
from gpu_acceptance.inventory.nvml import Asker, NoNvmlError, Patience, library
from gpu_acceptance.inventory.telemetry import Sample
from gpu_acceptance.inventory.telemetry_sampler import Sampler
from gpu_acceptance.run.suite import FOLDER, suite_for
from gpu_acceptance.thresholds.profile import load_profile, select_profile, shipped_dir

SHORTEST_S, LONGEST_S = 0.1, 3600.0


@dataclass(frozen=True)
class Board:
    """The fixed properties of a GPU."""

    index: int  # NVML's
    name: Answer[str]
    uuid: Answer[str]
    total_bytes: Answer[int]
    limit_w: Answer[float]


@dataclass(frozen=True)
class GpuRow:
    board: Board
    now: Answer[Sample]


def _sampled(name: str, form: Callable[[Any], str]) -> Callable[[GpuRow], Answer[str]]:
    """Return the cell of one value of the sample."""
    return lambda row: then(row.now, lambda sample: then(getattr(sample, name), form))


def _of(part: Answer[str], whole: Answer[str]) -> Answer[str]:
    """Return `692 / 700`, or `692 / ?` if the second is missing."""
    return part if isinstance(part, Missing) else f"{part} / {'?' if isinstance(whole, Missing) else whole}"


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.1f}"


_RATE = "{:.2f}".format
_WATTS = "{:.0f}".format
_GPU_COLUMNS: tuple[Column[GpuRow], ...] = (
    Column("GPU", 3, lambda row: str(row.board.index)),
    Column("name", 24, lambda row: row.board.name),
    Column("SM MHz", 6, _sampled("sm_clock_mhz", str)),
    Column("mem MHz", 7, _sampled("memory_clock_mhz", str)),
    Column("power W", 13, lambda row: _of(_sampled("power_w", _WATTS)(row), then(row.board.limit_w, _WATTS))),
    Column("GPU C", 5, _sampled("gpu_temperature_c", str)),
    Column("mem C", 5, _sampled("memory_temperature_c", str)),
    Column("util %", 6, _sampled("utilisation_percent", str)),
    Column("memory GiB", 13, lambda row: _of(_sampled("memory_used_bytes", _gib)(row), then(row.board.total_bytes, _gib))),
    Column("NVLink tx GB/s", 14, _sampled("nvlink_tx_gb_per_s", _RATE)),
    Column("NVLink rx GB/s", 14, _sampled("nvlink_rx_gb_per_s", _RATE)),
    Column("PCIe tx GB/s", 12, _sampled("pcie_tx_gb_per_s", _RATE)),
    Column("PCIe rx GB/s", 12, _sampled("pcie_rx_gb_per_s", _RATE)),
    Column("clock event reasons", 60, _sampled("event_reasons", lambda mask: ", ".join(event_reasons_of(mask)) or "none")),
)


def gpu_lines(rows: Sequence[GpuRow]) -> list[str]:
    """Return a table with a line per GPU."""
    return table(_GPU_COLUMNS, rows, lambda row: f"GPU {row.board.index}")


def port_lines(before: Answer[Mapping[str, PortTraffic]], now: Answer[Mapping[str, PortTraffic]]) -> list[str]:
    """Return a table with a line per port; nothing without ports."""
    if isinstance(now, Missing):
        return [f"  RDMA ports: {say_why(now)}"]
    earlier = {} if isinstance(before, Missing) else before
    columns: tuple[Column[str], ...] = (
        Column("RDMA port", 24, lambda port: port),
        Column("tx GB/s", 9, lambda port: _port_rate(earlier.get(port), now[port], "tx_bytes")),
        Column("rx GB/s", 9, lambda port: _port_rate(earlier.get(port), now[port], "rx_bytes")),
    )
    return table(columns, list(now), str) if now else []


def _port_rate(before: PortTraffic | None, now: PortTraffic, counter: str) -> Answer[str]:
    if before is None:
        return Missing(Why.NOT_THERE, "a rate needs two samples")
    both, elapsed_s = all_of([getattr(before, counter), getattr(now, counter)]), now.at_s - before.at_s
    if isinstance(both, Missing):
        return both
    if both[1] < both[0] or elapsed_s <= 0:
        return Missing(Why.UNREADABLE, f"fell from {both[0]} to {both[1]}: it was reset, or began again")
    return _RATE((both[1] - both[0]) / elapsed_s / 1e9)


_BOARDS_S = 60.0  # a driver without persistence sets up each GPU at its first query, which takes seconds
_LATE_S = 2.0  # without a new sample for that long, and for two intervals, a GPU is said not to answer
_PORTS_S = 2.0
_STOP_S = 0.5
_TOP, _END_OF_LINE, _BELOW = "\x1b[H", "\x1b[K", "\x1b[J"  # ECMA-48: cursor to the top, erase the rest of the line, of the screen

_BOARDS: Patience[tuple[Board, ...] | None] = Patience(_BOARDS_S, None)


def watch(out: TextIO, *, interval_s: float, most_frames: int | None, root: Path = Path("/")) -> None:
    """Write a frame every `interval_s`, in place on a terminal, else one below the other. `most_frames` None: without end.

    Raises NoNvmlError if NVML shows no GPU.
    """
    boards = _boards()
    samplers = {board.index: Sampler(board.uuid, period_s=interval_s) for board in boards if isinstance(board.uuid, str)}
    ports: Patience[Answer[Mapping[str, PortTraffic]]] = Patience(_PORTS_S, Missing(Why.UNREADABLE, f"no answer for {_PORTS_S:g} s"))
    for sampler in samplers.values():
        sampler.start()
    begin_s = time.monotonic()
    ports_before = ports.call(lambda: counters.read_traffic(root))
    _wait_for_samples(samplers.values(), interval_s)
    try:
        for _ in _ticks(interval_s, most_frames):
            ports_now = ports.call(lambda: counters.read_traffic(root))
            rows = [_row(board, samplers.get(board.index), interval_s, begin_s) for board in boards]
            head = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC, {plural(len(boards), 'GPU')}"
            _show(out, [head, *gpu_lines(rows), *port_lines(ports_before, ports_now)])
            ports_before = ports_now
    finally:
        for sampler in samplers.values():
            sampler.stop(_STOP_S)


def _boards() -> tuple[Board, ...]:
    boards = _BOARDS.call(_read_boards)
    if boards is None:
        raise NoNvmlError(f"NVML has not answered for {_BOARDS_S:g} s")
    if not boards:
        raise NoNvmlError("NVML shows no GPU")
    return boards


def _read_boards() -> tuple[Board, ...]:
    boards = []
    with library() as pynvml:
        asker = Asker(pynvml)
        number = asker.ask("nvmlDeviceGetCount", make=int)
        if isinstance(number, Missing):
            raise NoNvmlError(f"NVML does not say how many GPUs there are: {number}")
        for index in range(number):
            handle = asker.ask("nvmlDeviceGetHandleByIndex", index, make=lambda handle: handle)
            name, uuid = asker.ask("nvmlDeviceGetName", handle, make=text), asker.ask("nvmlDeviceGetUUID", handle, make=text)
            total_bytes = asker.ask("nvmlDeviceGetMemoryInfo", handle, make=lambda info: int(info.total))
            boards.append(Board(index, name, uuid, total_bytes, asker.ask("nvmlDeviceGetEnforcedPowerLimit", handle, make=watts)))
    return tuple(boards)


def _wait_for_samples(samplers: Collection[Sampler], interval_s: float) -> None:
    """Wait until port rates can be computed and each GPU has a sample, or one does not answer."""
    begin_s = time.monotonic()
    time.sleep(interval_s)
    while time.monotonic() < begin_s + interval_s + _LATE_S and any(sampler.latest() is None for sampler in samplers):
        time.sleep(0.01)


def _ticks(interval_s: float, most: int | None) -> Iterator[int]:
    """Yield by the clock; missed frames are left out."""
    begin_s, number = time.monotonic(), 0
    while most is None or number < most:
        yield number
        number += 1
        if number != most:
            late_s = (time.monotonic() - begin_s) % interval_s
            time.sleep(interval_s - late_s)


def _row(board: Board, sampler: Sampler | None, interval_s: float, begin_s: float) -> GpuRow:
    if sampler is None:
        assert isinstance(board.uuid, Missing)
        return GpuRow(board, board.uuid)
    now = sampler.latest()
    silent_s = time.monotonic() - (now.at_s if now else begin_s)
    if now is None or silent_s > max(_LATE_S, 2 * interval_s):
        return GpuRow(board, Missing(Why.UNREADABLE, f"NVML has not answered for {silent_s:.0f} s"))
    return GpuRow(board, now)


def _show(out: TextIO, lines: Sequence[str]) -> None:
    """Write from the top of a terminal; a line that wraps does no harm, since lines are not counted."""
    if out.isatty():
        out.write(_TOP + "".join(f"{line}{_END_OF_LINE}\n" for line in lines) + _BELOW)
    else:
        out.write("".join(f"{line}\n" for line in (*lines, "")))
    out.flush()


def add_verbs(verbs: Verbs) -> None:
    """Add `inventory`, `snapshot`, `health` and `watch`."""
    written = "written by `gpu-acceptance snapshot`"
    add_verb(verbs, "inventory", _inventory).add_argument("file", metavar="FILE", nargs="?", type=Path, help=written)
    snapshot = add_verb(verbs, "snapshot", _snapshot)
    snapshot.add_argument("file", metavar="FILE", type=new_file, help="the file; an existing one is replaced")
    snapshot.add_argument("--redact", action="store_true", help="replace serial numbers, UUIDs and host names")
    health = add_verb(verbs, "health", _health)
    health.add_argument("file", metavar="FILE", type=Path, help=written)
    health.add_argument("--hardware", metavar="NAME", help="the profile to judge by (default: the one for the GPUs of the snapshot)")
    add_overlays(health)
    health.add_argument("--allow-busy", action="store_true", help="judge a snapshot that was taken under load; shown in the verdict")
    gpus = "number of GPUs that the node must have (default: what it shows)"
    health.add_argument("--expect-gpus", metavar="N", type=whole_number(9_999), help=gpus)
    watch = add_verb(verbs, "watch", _watch)
    watch.add_argument("--interval", metavar="S", type=_seconds, default=1.0, help="seconds from one table to the next (default: 1)")
    watch.add_argument("--count", metavar="N", type=whole_number(999_999_999), help="number of tables to show (default: no end)")


def _inventory(options: argparse.Namespace) -> int:
    """Show the hardware of this machine, or of a snapshot, on one screen.

    Show this machine, or a snapshot of one: host, CPUs, memory, GPUs, links, RDMA devices, mounts, the resources that a process may use,
    and the XIDs of the kernel log. Nothing is judged. `?` stands for a value that the machine does not give.
    """
    print("\n".join(inventory_lines(read_snapshot(options.file) if options.file else take())))
    return 0


def _snapshot(options: argparse.Namespace) -> int:
    """Write everything that this machine reports about itself to a file.

    Write everything that this node reports (GPUs through NVML, PCI bus, kernel) to FILE, as JSON. Touches no GPU and needs no privilege. A
    value that the machine does not give is in the file with the reason.
    """
    snapshot = take()
    write_snapshot(options.file, redact(snapshot) if options.redact else snapshot)
    gpus = snapshot.node.gpus.gpus
    seen = f"GPUs: {gpus}" if isinstance(gpus, Missing) else f"{len(gpus)} GPUs"
    print(f"{one_line(str(options.file))}: {one_line(snapshot.node.host) if not options.redact else 'node-00'}, {one_line(seen)}")
    return 0


def _health(options: argparse.Namespace) -> int:
    """Judge the GPUs of a snapshot as a run would.

    Judge the GPUs of a snapshot by the limits of subject gpu_health, as a run on that machine would. Its RDMA devices and its kernel log
    are judged where the profile or an overlay requires infiniband or kernel_log. Print what is wrong, then the verdict line, and return
    its exit code.
    """
    snapshot, directory = read_snapshot(options.file), shipped_dir()
    try:
        first = gpus_of(snapshot)[0]
    except NoGpusError as error:
        print(f"INCOMPLETE: {one_line(str(error))} | {one_line(str(options.file))}, taken {one_line(snapshot.taken_at)}")
        return INCOMPLETE
    if isinstance(first.name, Missing) and not options.hardware:
        raise ValueError(f"{options.file}: the name of GPU 0 could not be read: {first.name}; name a profile with --hardware=NAME")
    name = options.hardware or select_profile(str(first.name), directory, first.nvlink_to)
    profile = load_profile(name, directory, options.limits, suite_for(Path.cwd()) / FOLDER)
    _, rows, conclusion = judge_snapshot(snapshot, profile, allow_busy=options.allow_busy, num_gpus=options.expect_gpus)
    for row in rows:
        if row.message:
            print(visible(row.message))
    print(f"{one_line(conclusion.line)} | {one_line(str(options.file))}, taken {one_line(snapshot.taken_at)} | {profile.name}")
    return conclusion.exit_code


def _seconds(text: str) -> float:
    if not (re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,3})?", text) and SHORTEST_S <= float(text) <= LONGEST_S):
        raise not_allowed(text, f"{SHORTEST_S:g} to {LONGEST_S:g} seconds")
    return float(text)


def _watch(options: argparse.Namespace) -> int:
    """Show clocks, power, heat and traffic of this node's GPUs, every second.

    Show what each GPU of this node does now, from NVML, and what each RDMA port sends and receives: in place on a terminal, else one table
    below the other. Ctrl-C ends it. Nothing is judged, no GPU is touched, no privilege is needed. `?` stands for a value that the machine
    does not give, with the reason. GB = 1e9 bytes, GiB = 2**30. Exit code 3: NVML shows no GPU.
    """
    # A KeyboardInterrupt would be dropped where it comes inside a weakref's callback, and each frame frees threads that have one.
    signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    try:
        watch(sys.stdout, interval_s=options.interval, most_frames=options.count)
    except NoNvmlError as error:
        return fail(error, UNREADABLE)
    return 0
