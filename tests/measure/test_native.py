"""all_reduce_perf: what it printed on 4 H200, and a program of its name that prints that."""

import stat
from pathlib import Path

import pytest

from gpu_acceptance.measure import native

PRINTED = Path(__file__).with_name("nccl_tests") / "all_reduce-4-h200.txt"
GiB = 2**30


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Puts a program on PATH that runs these lines of shell."""

    def put(lines):
        path = tmp_path / native.PROGRAM
        path.write_text(f"#!/bin/sh\n{lines}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    return put


@pytest.mark.parametrize(("num_bytes", "busbw"), [(4 * GiB, 362.45), (2**20, 85.95), (8 * GiB, 365.03)])
def test_the_figure_of_a_size_is_that_in_place(num_bytes, busbw):
    assert native.in_place(PRINTED.read_text(), num_bytes) == busbw


@pytest.mark.parametrize(("text", "number"), [("", 0), ("nothing\n", 0), (PRINTED.read_text() * 2, 2)])
def test_no_row_or_several_are_no_figure(text, number):
    with pytest.raises(native.NativeError, match=f"^all_reduce_perf: {number} rows of 1048576 bytes, not 1$"):
        native.in_place(text, 2**20)


def test_it_is_asked_for_one_size_on_all_gpus(program, tmp_path):
    program(f'echo "$@" >{tmp_path}/asked; cat {PRINTED}')
    assert native.is_installed()
    assert native.busbw_gb_per_s(4 * GiB, 4) == 362.45
    assert (tmp_path / "asked").read_text().split()[:6] == ["--minbytes", str(4 * GiB), "--maxbytes", str(4 * GiB), "--ngpus", "4"]


def test_one_that_fails_says_how(program):
    program("echo no device >&2; exit 3")
    with pytest.raises(native.NativeError, match=r"^all_reduce_perf: exit code 3: no device$"):
        native.busbw_gb_per_s(8, 2)


def test_one_that_hangs_is_ended(program, monkeypatch):
    monkeypatch.setattr(native, "_TIMEOUT_S", 0.2)
    program("exec sleep 3600")
    with pytest.raises(native.NativeError, match=r"^all_reduce_perf: TimeoutExpired: .* timed out after 0.2 seconds$"):
        native.busbw_gb_per_s(8, 2)


def test_where_there_is_none_it_is_not_installed(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not native.is_installed()
