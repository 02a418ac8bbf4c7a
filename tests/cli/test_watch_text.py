"""The table of `gpu-acceptance watch`, from samples: read as a person does, by title and line."""

import re
from dataclasses import replace
from itertools import takewhile

import pytest
from inventory.replay import sample

from gpu_acceptance.cli.machine import Board, GpuRow, gpu_lines, port_lines
from gpu_acceptance.inventory.answer import Missing, Why
from gpu_acceptance.inventory.counters import PortTraffic

BOARD = Board(0, "NVIDIA H200", "GPU-1", 143_771 * 2**20, 700.0)
NOW = sample(12.0, nvlink_tx_gb_per_s=350.0, nvlink_rx_gb_per_s=0.5, pcie_tx_gb_per_s=50.0, pcie_rx_gb_per_s=0.0)


def cells(lines):
    """Each line below the titles, by title; then what follows the table."""
    starts = [match.start() for match in re.finditer(r"(?:^|(?<=  ))\S", lines[0])]
    titles = cut(lines[0], starts)
    rows = list(takewhile(lambda line: not line.startswith("  ? ("), lines[1:]))
    return [dict(zip(titles, cut(line, starts), strict=True)) for line in rows], lines[1 + len(rows) :]


def cut(line, starts):
    return [line[begin:end].strip() for begin, end in zip(starts, [*starts[1:], None], strict=True)]


def shown(*rows):
    return cells(gpu_lines(rows))


def test_a_gpu_under_load():
    ((row,), reasons) = shown(GpuRow(BOARD, NOW))
    assert row == {
        "GPU": "0",
        "name": "NVIDIA H200",
        "SM MHz": "1455",
        "mem MHz": "3201",
        "power W": "692 / 700",
        "GPU C": "61",
        "mem C": "70",
        "util %": "100",
        "memory GiB": "20.0 / 140.4",
        "NVLink tx GB/s": "350.00",
        "NVLink rx GB/s": "0.50",
        "PCIe tx GB/s": "50.00",
        "PCIe rx GB/s": "0.00",
        "clock event reasons": "sw power cap",
    }
    assert reasons == []


def test_all_reasons_by_name():
    mask = 0x4 | 0x40 | 0x400
    ((row, nothing), _) = shown(GpuRow(BOARD, replace(NOW, event_reasons=mask)), GpuRow(BOARD, replace(NOW, event_reasons=0)))
    assert row["clock event reasons"] == "sw power cap, hw thermal slowdown, bits 0x400"
    assert nothing["clock event reasons"] == "none"


def test_what_is_missing_is_a_question_mark_with_its_reason():
    ((row,), reasons) = shown(GpuRow(BOARD, replace(sample(12.0), power_w=Missing(Why.NOT_PERMITTED))))
    assert row["power W"] == row["NVLink tx GB/s"] == "?"
    assert reasons == [
        "  ? (not supported): NVLink tx GB/s, NVLink rx GB/s, PCIe tx GB/s, PCIe rx GB/s (all)",
        "  ? (not permitted): power W (all)",
    ]


def test_an_unknown_power_limit():
    board = replace(BOARD, limit_w=Missing(Why.NOT_SUPPORTED), total_bytes=Missing(Why.NOT_SUPPORTED))
    ((row,), _) = shown(GpuRow(board, NOW))
    assert (row["power W"], row["memory GiB"]) == ("692 / ?", "20.0 / ?")


@pytest.mark.parametrize("name", ["\x1b[2J\x1b]0;mine\x07", "H200\nACCEPTED", "\u202e002H", "x" * 5000])
def test_a_hostile_name_moves_nothing(name):
    lines = gpu_lines([GpuRow(replace(BOARD, name=name), NOW)])
    assert len(lines) == 2
    assert all(line.isprintable() and len(line) < 250 for line in lines)


def ports(at_s, tx_bytes, rx_bytes):
    return {"mlx5_0 port 1": PortTraffic(at_s, tx_bytes, rx_bytes)}


def test_ports_send_and_receive():
    ((row,), reasons) = cells(port_lines(ports(10.0, 0, 5), ports(12.0, 98 * 10**9, 5)))
    assert row == {"RDMA port": "mlx5_0 port 1", "tx GB/s": "49.00", "rx GB/s": "0.00"}
    assert reasons == []


def test_a_port_that_was_reset_or_is_new_has_no_rate():
    _, reasons = cells(port_lines(ports(10.0, 9, 5), ports(12.0, 4, 5)))
    assert reasons == ["  ? (unreadable: fell from 9 to 4: it was reset, or began again): tx GB/s (all)"]
    _, reasons = cells(port_lines({}, ports(12.0, 4, 5)))
    assert reasons == ["  ? (not there: a rate needs two samples): tx GB/s, rx GB/s (all)"]


def test_ports_that_do_not_answer_are_named_and_without_ports_there_is_no_table():
    silent = Missing(Why.UNREADABLE, "no answer for 2 s")
    assert port_lines({}, silent) == ["  RDMA ports: ? (unreadable: no answer for 2 s)"]
    assert port_lines({}, {}) == []
    ((row,), _) = cells(port_lines(silent, ports(12.0, 4, 5)))
    assert row["tx GB/s"] == "?"


def test_a_hostile_device_moves_nothing():
    (title, row, *_) = port_lines({}, {"mlx5\x1b[H port 1": PortTraffic(1.0, 1, 1)})
    assert title.isprintable()
    assert "mlx5\\x1b[H port 1" in row
