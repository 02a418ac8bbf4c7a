import itertools
import math
import statistics

import pytest
import torch

from gpu_acceptance.measure.gemm import rates
from gpu_acceptance.measure.gemm.operands import DTYPES, Shape, allowed_error, square, unsupported

CPU = torch.device("cpu")
REAL_MM = torch.mm
SHAPE = Shape(66, 35, 40)
ON_CPU = [name for name in DTYPES if not unsupported(name, CPU)]
MATMUL = torch.backends.cuda.matmul


def measure_sustained(name="fp32", shape=SHAPE, **options):
    return rates.measure_sustained(shape, dtype=name, device=CPU, **{"preheat_s": 0.01, "block_s": 0.01, "num_blocks": 3, **options})


def measure_burst(name="fp32", shape=SHAPE, **options):
    return rates.measure_burst(shape, dtype=name, device=CPU, **{"work_s": 0.003, "idle_s": 0.005, "num_bursts": 4, **options})


def measure_best_shape(name="fp32", **options):
    candidates = (SHAPE, square(16))
    return rates.measure_best_shape(
        name, device=CPU, **{"candidates": candidates, "flush_bytes": 4096, "num_warmup": 2, "num_iterations": 5, **options}
    )


MEASURES = (measure_sustained, measure_burst, measure_best_shape)


def spoil(monkeypatch, change):
    """torch.mm as it would be on a GPU that goes wrong."""

    def mm(A_MK, B_KN, *, out):
        REAL_MM(A_MK, B_KN, out=out)
        change(out)
        return out

    monkeypatch.setattr(torch, "mm", mm)


# --- all three -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ON_CPU)
@pytest.mark.parametrize("measure", MEASURES)
def test_every_dtype_of_this_device_is_measured_and_right(measure, name):
    result = measure(name)
    assert 0 < result.tflop_per_s < math.inf
    assert result.dtype == name
    assert result.error <= allowed_error(name, SHAPE.K)
    assert result.num_wrong == 0


@pytest.mark.parametrize("measure", MEASURES)
def test_one_wrong_element_is_reported_beside_the_speed_and_a_dtype_that_the_device_lacks_is_refused(measure, monkeypatch):
    spoil(monkeypatch, lambda out: out[-1, 3].fill_(math.nan))
    result = measure()
    assert result.num_wrong == (2 if measure is measure_best_shape else 1)  # one for each candidate
    assert result.error == math.inf
    with pytest.raises(ValueError, match=r"^tf32 is a mode of the tensor cores of a GPU; a CPU has none$"):
        measure("tf32")


@pytest.mark.parametrize("measure", MEASURES)
def test_flags_hold_for_every_operation_and_are_put_back(measure, monkeypatch):
    found, during = MATMUL.fp32_precision, set()
    spoil(monkeypatch, lambda out: during.add((MATMUL.fp32_precision, MATMUL.allow_bf16_reduced_precision_reduction)))
    try:
        MATMUL.fp32_precision = "tf32"
        measure()
        assert MATMUL.fp32_precision == "tf32"
    finally:
        MATMUL.fp32_precision = found
    assert during == {("ieee", False)}


@pytest.mark.parametrize("measure", [measure_sustained, measure_burst])
def test_spans_hold_their_work_one_after_the_other(measure, monkeypatch):
    seen_s = []
    spoil(monkeypatch, lambda out: seen_s.append(rates.time.monotonic()))
    result = measure()
    assert len(result.spans) == {measure_sustained: 3, measure_burst: 4}[measure]
    for span in result.spans:
        assert 0 < span.elapsed_s <= span.end_s - span.begin_s
        assert any(span.begin_s <= moment_s <= span.end_s for moment_s in seen_s)
    assert all(earlier.end_s <= later.begin_s for earlier, later in itertools.pairwise(result.spans))
    between = [moment_s for moment_s in seen_s if result.begin_s <= moment_s <= result.end_s]
    assert all(any(span.begin_s <= moment_s <= span.end_s for span in result.spans) for moment_s in between)


# --- sustained and burst -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("measure", [measure_sustained, measure_burst])
def test_the_rate_is_that_of_the_median_block_of_whole_operations(measure):
    result = measure(shape=Shape(30, 20, 10))
    assert (result.shape, result.num_iterations >= 1) == ((30, 20, 10), True)
    assert result.operation_s * result.num_iterations == pytest.approx(statistics.median(span.elapsed_s for span in result.spans))
    assert result.tflop_per_s == pytest.approx(2 * 30 * 20 * 10 / result.operation_s / 1e12)
    assert math.isfinite(result.spread.percent)


def test_the_preheat_runs_in_full_before_the_first_block_and_the_device_rests_before_every_burst():
    begin_s = rates.time.monotonic()
    assert measure_sustained(preheat_s=0.2).begin_s - begin_s >= 0.2
    bursts = measure_burst(idle_s=0.03, work_s=0.0)
    assert bursts.num_iterations == 1  # of an operation longer than a burst
    assert all(later.begin_s - earlier.end_s >= 0.03 for earlier, later in itertools.pairwise(bursts.spans))


# --- best shape ----------------------------------------------------------------------------------------------------------------


def test_the_result_is_that_of_the_candidate_with_the_highest_median(monkeypatch):
    times_s = iter([[9.0] * 2, [3e-6, 1e-6, 2e-6], [9.0] * 2, [1e-9, 1.0, 1.0]])  # warm-up and operations of each candidate
    monkeypatch.setattr(rates, "time_each", lambda *_: next(times_s))
    result = measure_best_shape()
    assert (result.shape, result.operation_s, result.tflop_per_s) == (SHAPE, 2e-6, pytest.approx(SHAPE.num_flops / 2e-6 / 1e12))


def test_before_each_operation_l2_is_flushed_and_the_output_reset(monkeypatch):
    flushed, real_zero = [], torch.Tensor.zero_
    monkeypatch.setattr(torch.Tensor, "zero_", lambda tensor: (flushed.append(tensor.numel()), real_zero(tensor))[1])
    outputs, flushes = [], []

    def mm(A_MK, B_KN, *, out):
        outputs.append(out.clone())
        flushes.append(len(flushed))
        REAL_MM(A_MK, B_KN, out=out)

    monkeypatch.setattr(torch, "mm", mm)
    measure_best_shape(candidates=[SHAPE], num_warmup=3, num_iterations=4)
    timed = slice(1, 8)  # after the trial on a CPU; the check comes last
    assert flushes[timed] == list(range(1, 8))
    assert set(flushed) == {4096}
    assert all(torch.equal(output, outputs[1]) for output in outputs[timed])
    assert bool(torch.isfinite(outputs[1]).all())
    assert not torch.equal(outputs[1], REAL_MM(torch.zeros(66, 1), torch.zeros(1, 35)))


@pytest.mark.parametrize(
    ("dtype", "size", "expected"),
    [
        ("bf16", 8192, rates.CANDIDATES["bf16"]),
        ("fp8", 16384, rates.CANDIDATES["fp8"]),
        ("fp64", 4096, (square(4096),)),
        ("fp64", 2048, (square(2048),)),
        ("bf16", 32, (square(32),)),
    ],
)
def test_candidates_are_no_more_work_than_the_square(dtype, size, expected):
    assert rates.candidates_within(dtype, size) == expected
