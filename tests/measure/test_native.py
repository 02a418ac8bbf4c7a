"""all_reduce_perf: what it printed on 4 H200, and a program of its name that prints that."""

import stat
from pathlib import Path

import pytest

from gpu_acceptance.measure import nccl

PRINTED = Path(__file__).with_name("nccl_tests") / "all_reduce-4-h200.txt"
GiB = 2**30


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Puts a program on PATH that runs these lines of shell."""

    def put(lines):
        path = tmp_path / nccl.PROGRAM
        path.write_text(f"#!/bin/sh\n{lines}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    return put


@pytest.mark.parametrize(
    ("text", "num_bytes", "found"),
    [
        (PRINTED.read_text(), 4 * GiB, 362.45),  # in place
        (PRINTED.read_text(), 2**20, 85.95),
        (PRINTED.read_text(), 8 * GiB, 365.03),
        ("nothing\n", 2**20, "all_reduce_perf: 0 rows of 1048576 bytes, expected 1"),
        (PRINTED.read_text() * 2, 2**20, "all_reduce_perf: 2 rows of 1048576 bytes, expected 1"),
    ],
)
def test_the_figure_is_that_of_the_one_row_of_a_size(text, num_bytes, found):
    assert nccl.in_place_busbw(text, num_bytes) == found


def test_it_is_asked_for_one_size_on_all_gpus(program, tmp_path):
    program(f'echo "$@" >{tmp_path}/asked; cat {PRINTED}')
    assert nccl.ask_nccl_tests(4 * GiB, num_gpus=4, num_nodes=1) == 362.45
    assert (tmp_path / "asked").read_text().split()[:6] == ["--minbytes", str(4 * GiB), "--maxbytes", str(4 * GiB), "--ngpus", "4"]


def test_one_that_fails_says_how(program):
    program("echo no device >&2; exit 3")
    assert nccl.ask_nccl_tests(8, num_gpus=2, num_nodes=1) == "all_reduce_perf: exit code 3: no device"


def test_one_that_hangs_is_ended(program, monkeypatch):
    monkeypatch.setattr(nccl, "_TIMEOUT_S", 0.2)
    program("exec sleep 3600")
    said = nccl.ask_nccl_tests(8, num_gpus=2, num_nodes=1)
    assert said.startswith("all_reduce_perf: TimeoutExpired: Command ")
    assert said.endswith(" timed out after 0.2 seconds")


def test_where_there_is_none_it_is_not_on_path(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert nccl.ask_nccl_tests(8, num_gpus=2, num_nodes=1) == "all_reduce_perf is not on PATH"


@pytest.mark.parametrize(("num_gpus", "num_nodes"), [(16, 2), (0, 1), (1, 1)])
def test_elsewhere_it_is_not_asked(program, num_gpus, num_nodes):
    program("exit 1")
    said = f"all_reduce_perf runs only on one node of 2 GPUs or more; this job has {num_nodes} nodes and {num_gpus} GPUs"
    assert nccl.ask_nccl_tests(8, num_gpus=num_gpus, num_nodes=num_nodes) == said
