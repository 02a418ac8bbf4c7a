import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpu_acceptance.measure.gemm import operands
from gpu_acceptance.measure.gemm.operands import (
    DTYPES,
    Multiplication,
    Shape,
    allowed_error,
    backend_flags,
    prepared,
    square,
    unsupported,
)
from gpu_acceptance.measure.gemm.rates import CANDIDATES

CPU, GPU = torch.device("cpu"), torch.device("cuda", 3)
MATMUL, MKLDNN = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul
REDUCTIONS = ("allow_bf16_reduced_precision_reduction", "allow_fp16_reduced_precision_reduction")
ON_CPU = [name for name in DTYPES if not unsupported(name, CPU)]
small = st.integers(1, 40)


def flags():
    return (
        MATMUL.fp32_precision,
        MKLDNN.fp32_precision,
        MATMUL.allow_fp16_accumulation,
        *((getattr(MATMUL, flag), getattr(MATMUL, f"{flag}_split_k", None)) for flag in REDUCTIONS),
    )


@pytest.fixture
def flags_as_found():
    found = flags()
    yield
    MATMUL.fp32_precision, MKLDNN.fp32_precision, MATMUL.allow_fp16_accumulation = found[:3]
    for flag, (value, split_k) in zip(REDUCTIONS, found[3:], strict=True):
        setattr(MATMUL, flag, value if split_k is None else (value, split_k))
    assert flags() == found


# --- work ----------------------------------------------------------------------------------------------------------------------


def test_flops_of_8192_cubed():
    assert square(8192).num_flops == 1_099_511_627_776
    assert Shape(3, 5, 7).num_flops == Shape(7, 3, 5).num_flops == 210
    assert str(Shape(1, 2, 3)) == "1x2x3"


@given(st.integers(1, 10**5))
def test_more_products_and_a_coarser_dtype_are_never_allowed_a_smaller_error(K):
    for name in DTYPES:
        assert 0 < allowed_error(name, K) <= allowed_error(name, K + 1)
    errors = [allowed_error(name, 8192) for name in ("fp64", "fp32", "fp16", "tf32", "bf16", "fp8")]
    assert errors == sorted(errors)
    assert errors[-1] < 0.01


# --- what a device has ---------------------------------------------------------------------------------------------------------


def test_a_cpu_has_all_but_tf32_and_of_fp8_says_why_not():
    reasons = {name: unsupported(name, CPU) for name in DTYPES}
    fp8 = reasons.pop("fp8")
    assert fp8 == "" or re.fullmatch(r"fp8 does not run on cpu with torch \S+: .+", fp8)
    assert reasons == {**dict.fromkeys(reasons, ""), "tf32": "tf32 is a mode of the tensor cores of a GPU; a CPU has none"}
    with pytest.raises(ValueError, match=f"^{reasons['tf32']}$"), prepared(square(4), "tf32", CPU):
        pass


def test_what_torch_answers_is_the_reason_but_a_gpu_that_does_not_answer_is_no_gpu_without_the_dtype(monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("not compiled with fp8\nException raised from ...")

    monkeypatch.setattr(torch, "_scaled_mm", fail)
    assert unsupported("fp8", CPU) == f"fp8 does not run on cpu with torch {torch.__version__}: not compiled with fp8"
    monkeypatch.setattr(torch.cuda, "get_device_capability", fail)
    with pytest.raises(RuntimeError, match="not compiled"):
        unsupported("bf16", GPU)


@pytest.mark.parametrize(
    ("name", "capability", "reason"),
    [
        ("fp8", (8, 0), "fp8 needs compute capability 8.9, cuda:3 has 8.0"),
        ("fp8", (8, 9), ""),
        ("fp8", (10, 0), ""),
        ("bf16", (7, 5), "bf16 needs compute capability 8.0, cuda:3 has 7.5"),
        ("tf32", (7, 0), "tf32 needs compute capability 8.0, cuda:3 has 7.0"),
        ("tf32", (9, 0), ""),
        ("fp64", (9, 0), ""),
    ],
)
def test_a_gpu_is_known_by_its_compute_capability(name, capability, reason, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert unsupported(name, GPU) == reason


def test_candidates_can_be_multiplied_and_checked():
    for name, shapes in CANDIDATES.items():
        assert max(shape.K for shape in shapes) * DTYPES[name].largest ** 2 <= 2 ** DTYPES[name].sum_bits
    assert all(shape.N % 16 == shape.K % 16 == 0 for shape in CANDIDATES["fp8"])


# --- flags ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["tf32", "ieee", "none"])
@pytest.mark.parametrize("reduced", [True, False])
@pytest.mark.parametrize("name", list(DTYPES))
@pytest.mark.usefixtures("flags_as_found")
def test_flags_are_set_while_multiplying_and_put_back(name, precision, reduced):
    MATMUL.fp32_precision, MATMUL.allow_fp16_accumulation = precision, reduced
    MATMUL.allow_bf16_reduced_precision_reduction = MATMUL.allow_fp16_reduced_precision_reduction = reduced
    before = flags()
    with backend_flags(name):
        assert MATMUL.fp32_precision == ("tf32" if name == "tf32" else "ieee")
        assert MKLDNN.fp32_precision == "ieee"
        assert not MATMUL.allow_fp16_accumulation
        assert not any(getattr(MATMUL, flag) for flag in REDUCTIONS)
    assert flags() == before
    with pytest.raises(ZeroDivisionError), backend_flags(name):
        raise ZeroDivisionError
    assert flags() == before


@pytest.mark.usefixtures("flags_as_found")
@pytest.mark.skipif(not hasattr(MATMUL, f"{REDUCTIONS[0]}_split_k"), reason="this torch has no choice of split-K")
def test_a_choice_of_split_k_is_put_back():
    MATMUL.allow_bf16_reduced_precision_reduction = (False, False)
    before = flags()
    with backend_flags("bf16"):
        assert not any(getattr(MATMUL, flag) for flag in REDUCTIONS)
    assert flags() == before


# --- operands ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ON_CPU)
def test_every_gpu_gets_the_same_operands_in_the_layout_tn(name):
    first, second = (Multiplication(Shape(16, 24, 32), name, CPU) for _ in range(2))
    assert torch.equal(first.A_MK.double(), second.A_MK.double())
    assert torch.equal(first.B_KN.double(), second.B_KN.double())
    assert not torch.equal(first.A_MK.double(), first.B_KN.t()[:16].double())
    assert (first.A_MK.shape, first.B_KN.shape, first.out_MN.shape) == ((16, 32), (32, 24), (16, 24))
    assert (first.A_MK.stride(), first.B_KN.stride(), first.out_MN.stride()) == ((32, 1), (1, 32), (24, 1))
    assert (first.A_MK.dtype, first.out_MN.dtype) == (DTYPES[name].operand, DTYPES[name].output)


@pytest.mark.parametrize("name", [name for name in DTYPES if name != "tf32"])
def test_operands_are_random_normal_whatever_the_dtype_and_those_of_fp8_use_its_whole_range(name):
    multiplication = Multiplication(Shape(100, 100, 100), name, CPU)
    for operand, scale in ((multiplication.A_MK, multiplication.scale_a), (multiplication.B_KN, multiplication.scale_b)):
        numbers = operand.double() * scale.double()
        assert abs(float(numbers.mean())) < 0.1
        assert 0.9 < float(numbers.std()) < 1.1
        assert 3 < float(numbers.abs().max()) < 7
        assert name != "fp8" or float(operand.double().abs().max()) == 448


@pytest.mark.skipif("fp8" not in ON_CPU, reason="torch multiplies no fp8 on this CPU")
def test_fp8_is_summed_without_fast_accumulation(monkeypatch):
    real, seen = torch._scaled_mm, []
    monkeypatch.setattr(torch, "_scaled_mm", lambda *operands, **options: (seen.append(options), real(*operands, **options)))
    Multiplication(square(16), "fp8", CPU).run()
    assert seen[0]["use_fast_accum"] is False
    assert seen[0]["out_dtype"] is torch.bfloat16


# --- integers ------------------------------------------------------------------------------------------------------------------


@given(st.sampled_from(list(DTYPES)), small, small, st.integers(1, 700))
def test_integers_are_exact_in_the_dtype_and_no_sum_is_zero(name, M, N, K):
    dtype = DTYPES[name]
    A_MK, B_KN = operands.integers(Shape(M, N, K), dtype, CPU)
    assert (A_MK.shape, B_KN.shape) == ((M, K), (K, N))
    for operand in (A_MK, B_KN):
        assert torch.equal(operand.to(dtype.operand).float(), operand)
    exact = A_MK.long() @ B_KN.long()
    assert bool((exact % 2 == 1).all())
    assert int(exact.abs().max()) <= 2**dtype.output_bits
    assert torch.equal(exact.to(dtype.output).long(), exact)
    assert int((A_MK.long().abs() @ B_KN.long().abs()).max()) <= 2**dtype.sum_bits


def test_no_slice_of_products_cancels():
    A_MK, B_KN = operands.integers(Shape(64, 64, 8192), DTYPES["bf16"], CPU)
    for begin in range(0, 8192, 16):
        part = A_MK[:, begin : begin + 16] @ B_KN[begin : begin + 16]
        assert int((part != 0).sum()) > 1000, f"products {begin} to {begin + 15}"


def test_products_that_no_accumulator_sums_exactly_are_refused():
    with pytest.raises(ValueError, match=r"^K=17459: sums of integers are exact up to 17458 products$"):
        operands.integers(Shape(1, 1, 17459), DTYPES["fp32"], CPU)


@given(st.integers(1, 5000))
def test_weights_of_a_checksum_are_odd_and_unequal(num):
    weights = operands.weights(num, CPU)
    assert bool((weights % 2 == 1).all())
    assert 0 < int(weights.min()) <= int(weights.max()) < 2**10
    assert num < 100 or len(weights.unique()) > num / 20
