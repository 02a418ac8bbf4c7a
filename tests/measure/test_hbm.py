import math
from types import SimpleNamespace

import pytest
import torch

from gpu_acceptance.measure import hbm
from gpu_acceptance.measure.timing import Blocks

CPU = torch.device("cpu")
NUM_ELEMENTS = 1000
OPERATION = {"copy": "mul", "scale": "mul", "add": "add", "triad": "add", "read": "sum"}  # what each kernel calls in torch


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(hbm, "_CHUNK", 300)


def measure(kernel, array_bytes=4 * NUM_ELEMENTS):
    return hbm.measure(kernel, array_bytes=array_bytes, device=CPU, block_s=0.002, num_blocks=2)


def spoil(kernel, monkeypatch, change):
    """The kernel as it would be on a GPU that goes wrong: `change` gets the output after every operation."""
    if kernel == "write":
        real_fill = torch.Tensor.fill_
        monkeypatch.setattr(torch.Tensor, "fill_", lambda out, value: (real_fill(out, value), change(out))[0])
        return
    real = getattr(torch, OPERATION[kernel])

    def operation(*arguments, out, **options):
        real(*arguments, out=out, **options)
        change(out)

    monkeypatch.setattr(torch, OPERATION[kernel], operation)


@pytest.mark.parametrize("kernel", list(hbm.KERNELS))
def test_a_sound_memory_has_no_wrong_element(kernel):
    result = measure(kernel)
    assert result.num_wrong == 0
    assert result.gb_per_s == pytest.approx(hbm.num_bytes(kernel, 4 * NUM_ELEMENTS) / result.operation_s / 1e9)
    assert math.isfinite(result.spread.percent)


@pytest.mark.parametrize(("kernel", "arrays"), [("copy", 2), ("scale", 2), ("add", 3), ("triad", 3), ("read", 1), ("write", 1)])
def test_all_moved_bytes_in_the_median_block_are_the_figure_and_in_the_fastest_the_best(kernel, arrays, monkeypatch):
    monkeypatch.setattr(hbm, "time_blocks", lambda operation, **_: Blocks((4e-6, 1e-6, 2e-6), 20))
    result, moved_gb = measure(kernel), arrays * 4 * NUM_ELEMENTS / 1e9
    assert (result.gb_per_s, result.spread.best) == (pytest.approx(moved_gb / 2e-6), pytest.approx(moved_gb / 1e-6))
    assert result.operation_s == 2e-6


@pytest.mark.parametrize("value", [math.nan, -99.0])
@pytest.mark.parametrize("index", [0, 299, 300, 999])
@pytest.mark.parametrize("kernel", ["copy", "scale", "add", "triad", "write"])
def test_one_wrong_element_is_one(kernel, index, value, monkeypatch):
    spoil(kernel, monkeypatch, lambda out: out.__setitem__(index, value))
    assert measure(kernel).num_wrong == 1


@pytest.mark.parametrize("change", [lambda out: out.add_(1), lambda out: out.mul_(math.nan)])
def test_a_wrong_sum_is_one_wrong_element(change, monkeypatch):
    spoil("read", monkeypatch, change)
    assert measure("read").num_wrong == 1


@pytest.mark.parametrize("kernel", ["copy", "scale", "add", "triad"])
def test_one_flipped_bit_is_seen(kernel, monkeypatch):
    spoil(kernel, monkeypatch, lambda out: out.view(torch.int32)[500].bitwise_xor_(1))
    assert measure(kernel).num_wrong == 1


@pytest.mark.parametrize(("kernel", "num_wrong"), [*dict.fromkeys(["copy", "scale", "add", "triad"], NUM_ELEMENTS).items(), ("read", 1)])
def test_a_kernel_that_writes_nothing_has_every_element_wrong(kernel, num_wrong, monkeypatch):
    monkeypatch.setattr(torch, OPERATION[kernel], lambda *_, **__: None)
    assert measure(kernel).num_wrong == num_wrong


def test_every_array_and_chunk_holds_something_else_and_the_same_when_made_again():
    for make in (hbm._random, hbm._integers):
        made, again = ({tuple(make(array, chunk, 16, CPU).tolist()) for array in range(3) for chunk in range(10)} for _ in range(2))
        assert len(made) == 30
        assert made == again


def test_the_clock_runs_on_random_data_in_every_array(monkeypatch):
    seen = []
    monkeypatch.setitem(hbm.KERNELS, "copy", hbm._Kernel(2, lambda out, x, y: seen.append((x.std(), y.std())), hbm._random, lambda x, y: x))
    measure("copy")
    assert all(0.8 < deviation < 1.2 for deviation in seen[0])


@pytest.mark.parametrize("kernel", ["copy", "scale", "add", "triad"])
def test_each_kernel_computes_what_stream_says(kernel):
    out, x, y = torch.zeros(3), torch.tensor([1.0, -2.0, 0.5]), torch.tensor([10.0, 20.0, 40.0])
    hbm.KERNELS[kernel].run(out, x, y)
    assert torch.equal(out, {"copy": x, "scale": 3 * x, "add": x + y, "triad": x + 3 * y}[kernel])


@pytest.mark.parametrize(
    ("array_bytes", "error", "text"),
    [
        (16 * 52_428_800 - 4, ValueError, r"^array_bytes=838860796: at least 838860800, 16 times the L2 of cuda:0 \(52428800 bytes\)$"),
        (16 * 52_428_800, ZeroDivisionError, "by zero"),  # enough: the GPU is touched
    ],
)
def test_arrays_that_a_cache_could_hold_are_refused_before_the_gpu_is_touched(array_bytes, error, text, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(L2_cache_size=52_428_800))
    monkeypatch.setattr(torch, "empty", lambda *_, **__: 1 / 0)
    with pytest.raises(error, match=text):
        hbm.measure("copy", array_bytes=array_bytes, device=torch.device("cuda", 0), block_s=0.0, num_blocks=2)
