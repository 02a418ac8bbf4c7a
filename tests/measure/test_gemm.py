import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpu_acceptance.measure import gemm

CPU = torch.device("cpu")
REAL_MM = torch.mm
sizes = st.integers(1, 10**5)


def measure(size=130, dtype="fp32"):
    return gemm.measure(size, dtype=dtype, device=CPU, preheat_s=0.01, block_s=0.01, num_blocks=3)


def spoil(monkeypatch, change):
    """torch.mm as it would be on a GPU that goes wrong."""

    def mm(A_MK, B_KN, *, out):
        REAL_MM(A_MK, B_KN, out=out)
        change(out)
        return out

    monkeypatch.setattr(torch, "mm", mm)


def test_flops_of_8192_cubed():
    assert gemm.num_flops(8192, 8192, 8192) == 1_099_511_627_776


@given(sizes, sizes, sizes, st.integers(1, 100))
def test_flops_are_linear_in_every_size(M, N, K, factor):
    assert gemm.num_flops(factor * M, N, K) == factor * gemm.num_flops(M, N, K)
    assert gemm.num_flops(M, N, K) == gemm.num_flops(N, K, M) == gemm.num_flops(K, M, N)


@pytest.mark.parametrize(("dtype", "low", "high"), [("fp32", 1e-9, 1e-6), ("bf16", 5e-4, 4e-3)])
def test_the_error_is_that_of_the_dtype(dtype, low, high):
    result = measure(dtype=dtype)
    assert low < result.error < high
    assert result.tflop_per_s == pytest.approx(2 * 130**3 / result.operation_s / 1e12)
    assert (result.size, result.dtype) == (130, dtype)


def test_the_error_does_not_depend_on_the_chunks(monkeypatch):
    whole = measure().error
    monkeypatch.setattr(gemm, "_CHUNK_BYTES", 8 * 130 * 7)
    assert measure().error == pytest.approx(whole)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("place", [(0, 0), (129, 129), (64, 3)])
def test_one_element_that_is_not_finite_makes_the_error_infinite(value, place, monkeypatch):
    spoil(monkeypatch, lambda out: out.__setitem__(place, value))
    assert measure().error == math.inf


def test_a_kernel_that_writes_nothing_is_not_judged_by_an_older_result(monkeypatch):
    calls = []

    def mm(A_MK, B_KN, *, out):
        calls.append(out)
        return REAL_MM(A_MK, B_KN, out=out) if len(calls) < 25 else out

    monkeypatch.setattr(torch, "mm", mm)
    assert measure().error == math.inf


def test_a_kernel_that_leaves_a_band_of_rows_out_is_seen(monkeypatch):
    spoil(monkeypatch, lambda out: out[:3].zero_())
    assert measure().error > 0.05


def test_a_product_of_zeros_is_no_proof(monkeypatch):
    monkeypatch.setattr(gemm, "_random_operands", lambda size, dtype, device: (torch.zeros(size, size), torch.zeros(size, size)))
    assert measure().error == math.inf


def test_every_gpu_gets_the_same_operands_in_the_layout_tn():
    (first_A, first_B), (second_A, second_B) = (gemm._random_operands(16, "bf16", CPU) for _ in range(2))
    assert torch.equal(first_A, second_A)
    assert torch.equal(first_B, second_B)
    assert not torch.equal(first_A, first_B)
    assert (first_A.stride(), first_B.stride()) == ((16, 1), (1, 16))


@given(st.integers(1, 20_000))
def test_one_row_is_sampled_from_each_band(num_rows):
    rows = gemm._sampled_rows(num_rows)
    bands = min(64, num_rows)
    assert len(rows) == bands
    assert [int(row) * bands // num_rows for row in rows] == pytest.approx(list(range(bands)), abs=1)
    assert sorted(set(rows.tolist())) == rows.tolist()
    assert 0 <= int(rows[0]) <= int(rows[-1]) < num_rows


@pytest.mark.parametrize("before", ["tf32", "ieee", "none"])
def test_flags_are_set_while_multiplying_and_put_back(before, monkeypatch):
    matmul = torch.backends.cuda.matmul
    found = matmul.fp32_precision, matmul.allow_bf16_reduced_precision_reduction
    during = set()
    spoil(monkeypatch, lambda out: during.add((matmul.fp32_precision, matmul.allow_bf16_reduced_precision_reduction)))
    try:
        matmul.fp32_precision, matmul.allow_bf16_reduced_precision_reduction = before, True
        measure()
        assert (matmul.fp32_precision, matmul.allow_bf16_reduced_precision_reduction) == (before, True)
    finally:
        matmul.fp32_precision, matmul.allow_bf16_reduced_precision_reduction = found
    assert during == {("ieee", False)}


def test_flags_are_put_back_after_an_error(monkeypatch):
    before = torch.backends.cuda.matmul.fp32_precision
    monkeypatch.setattr(torch, "mm", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        measure()
    assert torch.backends.cuda.matmul.fp32_precision == before


def test_unknown_dtypes_are_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"^unknown dtype 'int3'; known: bf16, fp32$"):
        measure(dtype="int3")


def test_empty_matrices_are_refused():
    with pytest.raises(ValueError, match=r"^size=0: at least 1$"):
        measure(size=0)
