import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_acceptance.measure.gemm import correctness
from gpu_acceptance.measure.gemm.operands import DTYPES, Shape, allowed_error, prepared, square, unsupported

CPU = torch.device("cpu")
SHAPE = Shape(130, 65, 77)  # no square, and a multiple of nothing; more rows than are sampled
ON_CPU = [name for name in DTYPES if not unsupported(name, CPU)]
BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
SAMPLED = correctness._sampled_rows(SHAPE.M).tolist()
NOT_SAMPLED = [row for row in range(SHAPE.M) if row not in SAMPLED]


def check(name="fp32", shape=SHAPE, plant=None):
    with prepared(shape, name, CPU) as multiplication:
        return correctness.check(multiplication, plant=plant)


def flip(row, column, bit):
    """One bit of one element."""

    def plant(out_MN):
        kind = BITS[out_MN.element_size()]
        out_MN.view(kind)[row, column] ^= torch.tensor(1).bitwise_left_shift(bit).to(kind)

    return plant


@pytest.mark.parametrize("name", ON_CPU)
def test_a_sound_product_has_no_wrong_element_and_the_error_of_its_dtype(name):
    right = check(name)
    assert right.num_wrong == 0
    assert right.error <= allowed_error(name, SHAPE.K)
    assert right.error > allowed_error(name, SHAPE.K) / 10 or name == "fp64"  # its reference may round just as it does


@given(st.sampled_from(ON_CPU), st.integers(1, 90), st.integers(1, 40), st.integers(1, 300))
@settings(max_examples=30)
def test_products_of_any_shape_are_right(name, M, N, K):
    right = check(name, Shape(M, N, K))
    assert right.num_wrong == 0
    assert right.error <= allowed_error(name, K) or M * N < 256  # of few elements the exact ones may nearly cancel


@pytest.mark.parametrize("name", ON_CPU)
def test_sums_longer_than_the_output_can_hold_without_care_are_exact(name):
    assert check(name, Shape(3, 3, 8192)).num_wrong == 0


# --- a planted element ---------------------------------------------------------------------------------------------------------


@given(st.sampled_from(ON_CPU), st.integers(0, SHAPE.M - 1), st.integers(0, SHAPE.N - 1), st.data())
@settings(max_examples=60)
def test_one_flipped_bit_anywhere_is_one_wrong_element(name, row, column, data):
    num_bits = 8 * DTYPES[name].output.itemsize
    bit = data.draw(st.integers(0, num_bits - 1))
    assert check(name, plant=flip(row, column, bit)).num_wrong == 1


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.0, -0.0, 0.5, 1e4, 2.0])
@pytest.mark.parametrize("row", [0, SAMPLED[1], NOT_SAMPLED[0], SHAPE.M - 1])
@pytest.mark.parametrize("name", ["bf16", "fp32"])
def test_one_wrong_value_is_one_wrong_element_and_one_that_is_not_finite_makes_the_error_infinite(name, row, value):
    right = check(name, plant=lambda out: out.__setitem__((row, 40), value))
    assert right.num_wrong == 1
    assert math.isfinite(value) or right.error == math.inf


FREE = torch.tensor(NOT_SAMPLED[:5])


@pytest.mark.parametrize(
    ("plant", "num_wrong"),
    [
        (lambda out: out[NOT_SAMPLED[3], 5:7].add_(torch.tensor([2.0, -2.0]).to(out.dtype)), 2),  # in the plain sum of a row they cancel
        (lambda out: out.__setitem__((FREE, FREE % SHAPE.N), 77.0), 5),  # in as many rows and columns
        (lambda out: out[SAMPLED[2]].add_(2), SHAPE.N),  # all of a sampled row
        (lambda out: out.__setitem__(FREE[:2], out[FREE[:2]].flip(0)), SHAPE.N),  # two rows in the wrong places, at most so many unlike
    ],
)
@pytest.mark.parametrize("name", ON_CPU)
def test_wrong_elements_are_counted_each(name, plant, num_wrong):
    found = check(name, plant=plant).num_wrong
    assert found == num_wrong or (num_wrong == SHAPE.N and 1 < found <= 2 * SHAPE.N)


def test_a_missing_slice_of_products_is_found(monkeypatch):
    real = torch.mm

    def mm(A_MK, B_KN, *, out):
        real(A_MK[:, :-16], B_KN[:-16], out=out)

    monkeypatch.setattr(torch, "mm", mm)
    right = check(shape=square(128))
    assert right.error > 0.2
    assert right.num_wrong > 64


@pytest.mark.parametrize("left_out", [{1, 2, 3}, {3}])
def test_a_kernel_that_writes_nothing_has_every_element_wrong_and_is_not_judged_by_its_first_product(left_out, monkeypatch):
    calls = itertools.count(1)  # the first is the trial on a CPU, the second that of random operands
    real = torch.mm
    monkeypatch.setattr(torch, "mm", lambda *operands, out: next(calls) in left_out or real(*operands, out=out))
    right = check()
    assert right.num_wrong == SHAPE.M * SHAPE.N
    assert (right.error == math.inf) == (2 in left_out)


# --- the error -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ON_CPU)
def test_a_band_of_rows_left_out_and_a_wrong_scale_are_more_than_arithmetic_allows(name):
    assert check(name, plant=lambda out: out[:3].zero_()).error > 10 * allowed_error(name, SHAPE.K)
    assert check("bf16", plant=lambda out: out.mul_(1.01)).error > allowed_error("bf16", SHAPE.K)


def test_a_product_of_zeros_is_no_proof():
    with prepared(SHAPE, "fp32", CPU) as multiplication:
        multiplication.A_MK.zero_()
        assert correctness.check(multiplication).error == math.inf


@pytest.mark.parametrize("name", ["fp32", "bf16"])
def test_nothing_depends_on_the_chunks(name, monkeypatch):
    places = [(NOT_SAMPLED[0], 0), (NOT_SAMPLED[-1], SHAPE.N - 1), (SAMPLED[0], 7)]

    def plant(out_MN):
        for place in places:
            out_MN[place] = 99.0

    whole = check(name, plant=plant)
    monkeypatch.setattr(correctness, "_CHUNK_BYTES", 8 * SHAPE.K * 7)
    parts = check(name, plant=plant)
    assert parts.error == pytest.approx(whole.error)
    assert parts.num_wrong == whole.num_wrong == 3


@given(st.integers(1, 20_000))
def test_one_row_is_sampled_from_each_band(num_rows):
    rows = correctness._sampled_rows(num_rows)
    bands = min(64, num_rows)
    assert len(rows) == bands
    assert [int(row) * bands // num_rows for row in rows] == pytest.approx(list(range(bands)), abs=1)
    assert sorted(set(rows.tolist())) == rows.tolist()
    assert 0 <= int(rows[0]) <= int(rows[-1]) < num_rows
