"""What `gpu-acceptance watch` shows: a line for each GPU and each RDMA port of a node. Pure. GB = 1e9 bytes, GiB = 2**30."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from gpu_acceptance.cli.plain_text import Column, TableRow, form_answer, say_why, table
from gpu_acceptance.inventory.answer import Answer, Missing, Why
from gpu_acceptance.inventory.event_reasons import names_of
from gpu_acceptance.inventory.fields import all_of
from gpu_acceptance.inventory.port_traffic import PortTraffic
from gpu_acceptance.inventory.sample import Sample

T = TypeVar("T")

_GPU_COLUMNS = (
    *(Column("GPU", 3), Column("name", 24), Column("SM MHz", 6), Column("mem MHz", 7), Column("power W", 13), Column("GPU C", 5)),
    *(Column("mem C", 5), Column("util %", 6), Column("memory GiB", 13), Column("NVLink tx GB/s", 14), Column("NVLink rx GB/s", 14)),
    *(Column("PCIe tx GB/s", 12), Column("PCIe rx GB/s", 12), Column("clock event reasons", 60)),
)
_PORT_COLUMNS = (Column("RDMA port", 24), Column("tx GB/s", 9), Column("rx GB/s", 9))
_ONE_SAMPLE = Missing(Why.NOT_THERE, "a rate needs two samples")


@dataclass(frozen=True)
class Board:
    """What a GPU does not change while it is watched."""

    index: int  # NVML's
    name: Answer[str]
    uuid: Answer[str]
    total_bytes: Answer[int]
    limit_w: Answer[float]


@dataclass(frozen=True)
class GpuRow:
    board: Board
    now: Answer[Sample]


def gpu_lines(rows: Sequence[GpuRow]) -> list[str]:
    return table(_GPU_COLUMNS, [TableRow(f"GPU {row.board.index}", _gpu_cells(row)) for row in rows])


def port_lines(before: Answer[Mapping[str, PortTraffic]], now: Answer[Mapping[str, PortTraffic]]) -> list[str]:
    """Nothing where there are no ports."""
    if isinstance(now, Missing):
        return [f"  RDMA ports: {say_why(now)}"]
    earlier = {} if isinstance(before, Missing) else before
    rows = [TableRow(port, (port, *_port_rates(earlier.get(port), traffic))) for port, traffic in now.items()]
    return table(_PORT_COLUMNS, rows) if rows else []


def _gpu_cells(row: GpuRow) -> tuple[Answer[str], ...]:
    board, now = row.board, row.now
    return (
        str(board.index),
        board.name,
        _cell(now, lambda sample: sample.sm_clock_mhz, str),
        _cell(now, lambda sample: sample.memory_clock_mhz, str),
        _of(_cell(now, lambda sample: sample.power_w, "{:.0f}".format), form_answer(board.limit_w, "{:.0f}".format)),
        _cell(now, lambda sample: sample.gpu_temperature_c, str),
        _cell(now, lambda sample: sample.memory_temperature_c, str),
        _cell(now, lambda sample: sample.utilisation_percent, str),
        _of(_cell(now, lambda sample: sample.memory_used_bytes, _gib), form_answer(board.total_bytes, _gib)),
        _cell(now, lambda sample: sample.nvlink_tx_gb_per_s, _rate),
        _cell(now, lambda sample: sample.nvlink_rx_gb_per_s, _rate),
        _cell(now, lambda sample: sample.pcie_tx_gb_per_s, _rate),
        _cell(now, lambda sample: sample.pcie_rx_gb_per_s, _rate),
        _cell(now, lambda sample: sample.event_reasons, lambda mask: ", ".join(names_of(mask)) or "none"),
    )


def _cell(sample: Answer[Sample], value: Callable[[Sample], Answer[T]], form: Callable[[T], str]) -> Answer[str]:
    return sample if isinstance(sample, Missing) else form_answer(value(sample), form)


def _of(part: Answer[str], whole: Answer[str]) -> Answer[str]:
    """`692 / 700`; `692 / ?` where nobody knows the second."""
    return part if isinstance(part, Missing) else f"{part} / {'?' if isinstance(whole, Missing) else whole}"


def _port_rates(before: PortTraffic | None, now: PortTraffic) -> tuple[Answer[str], ...]:
    if before is None:
        return (_ONE_SAMPLE, _ONE_SAMPLE)
    elapsed_s = now.at_s - before.at_s
    return tuple(_risen(pair, elapsed_s) for pair in ((before.tx_bytes, now.tx_bytes), (before.rx_bytes, now.rx_bytes)))


def _risen(counts: tuple[Answer[int], Answer[int]], elapsed_s: float) -> Answer[str]:
    both = all_of(counts)
    if isinstance(both, Missing):
        return both
    if both[1] < both[0] or elapsed_s <= 0:
        return Missing(Why.UNREADABLE, f"fell from {both[0]} to {both[1]}: it was reset, or began again")
    return _rate((both[1] - both[0]) / elapsed_s / 1e9)


def _rate(gb_per_s: float) -> str:
    return f"{gb_per_s:.2f}"


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.1f}"
