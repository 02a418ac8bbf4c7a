"""Kernels and their inputs have the same bits at every call."""

import json
import os
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpu_acceptance.measure.corruption import kernels
from gpu_acceptance.measure.corruption.kernels import SEED, drawing
from gpu_acceptance.measure.corruption.repeat import deterministic

CPU = torch.device("cpu")
NAMES = [name for name in kernels.NAMES if name != "mm_tf32"]
EACH = pytest.mark.parametrize("each", [f"{name} {size}" for name in NAMES for size in kernels.SIZES])


@pytest.fixture(autouse=True)
def _deterministic():
    with deterministic(CPU):
        yield


@pytest.fixture(scope="module")
def processes():
    """The hashes from three processes: two with one seed, and one with another."""
    script = Path(__file__).with_name("hash_kernels.py")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3] / "src"), "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen([sys.executable, "-W", "error", str(script), str(seed)], env=environment, stdout=PIPE, stderr=PIPE, text=True)
        for seed in (SEED, SEED, SEED + 1)
    ]
    try:
        outputs = [process.communicate(timeout=200) for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()
    assert [process.returncode for process in running] == [0, 0, 0], "\n".join(errors for _, errors in outputs)
    return [json.loads(lines) for lines, _ in outputs]


@pytest.mark.slow
@EACH
def test_two_processes_give_the_same_bits_and_another_seed_gives_others(each, processes):
    (inputs, output, again), same, other = (process[each] for process in processes)
    assert output == again
    assert [inputs, output, again] == same
    assert inputs != other[0]
    assert output != other[1]


@EACH
def test_outputs_are_new_contiguous_finite_and_not_all_equal(each):
    kernel = kernels.make(*each.split(), CPU)
    first, second = kernel.run(), kernel.run()
    memory = [tensor.untyped_storage().data_ptr() for tensor in (*kernel.inputs, *first, *second)]
    assert len(set(memory)) == len(memory)
    for output in first:
        assert output.is_contiguous()
        assert not output.requires_grad
        assert bool(output.double().isfinite().all())
    assert len(first[0].unique()) > 20


def test_the_shapes_of_a_kernel_differ_and_one_fits_no_tile():
    for name in NAMES:
        shapes = [kernels.make(name, size, CPU).shape for size in kernels.SIZES]
        assert len(set(shapes)) == 3
        assert any(int(number) % 8 for number in shapes[2].split("x"))


@pytest.mark.parametrize("name", ["mm_bf16", "mm_fp16", "mm_fp32", "mm_fp64", "mm_fp8"])
@pytest.mark.parametrize("size", kernels.SIZES)
def test_a_multiplication_is_one(name, size):
    kernel = kernels.make(name, size, CPU)
    A_MK, B_NK = (tensor.double() for tensor in kernel.inputs)
    (out_MN,) = kernel.run()
    tolerance = {"mm_fp64": 1e-13, "mm_fp32": 1e-5}.get(name, 1e-2)
    assert float((out_MN.double() - A_MK @ B_NK.T).norm() / (A_MK @ B_NK.T).norm()) < tolerance
    assert kernel.shape == f"{A_MK.shape[0]}x{B_NK.shape[0]}x{A_MK.shape[1]}"


def test_attention_and_its_gradients_are_those_of_the_plain_formula():
    kernel = kernels.make("attention", "ragged", CPU)
    q, k, v = leaves = [tensor.double().requires_grad_() for tensor in kernel.inputs[:3]]
    scores = q @ k.mT / q.shape[-1] ** 0.5
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    output = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v
    expected = (output, *torch.autograd.grad(output, leaves, kernel.inputs[3].double()))
    for seen, right in zip(kernel.run(), expected, strict=True):
        assert float((seen.double() - right).norm().detach() / right.norm().detach()) < 2e-2


def test_each_step_of_the_block_lowers_the_loss(monkeypatch):
    losses = []
    for num_steps in (1, 2, 4, 8):
        monkeypatch.setattr(kernels, "NUM_STEPS", num_steps)
        *_, loss = kernels.make("block", "large", CPU).run()
        losses.append(float(loss))
    assert losses == sorted(losses, reverse=True)
    assert losses[0] > losses[-1]


def test_one_bit_of_an_input_reaches_the_output():
    for name in NAMES:
        kernel = kernels.make(name, "large", CPU)
        before = kernel.run()
        inner = kernel.inputs[0].numel() // 3  # the first query of attention sees one key, and makes no difference
        number = kernel.inputs[0].view(-1)[inner : inner + 1].view(torch.uint8)
        number[-1] ^= 128  # the sign
        assert not all(torch.equal(one, other) for one, other in zip(before, kernel.run(), strict=True)), name


@pytest.mark.parametrize(
    ("name", "seen", "reason"), [("mm_fp8", (8, 0), "8.9, this GPU has 8.0"), ("attention", (7, 5), "8.0, this GPU has 7.5")]
)
def test_a_device_that_cannot_is_told_what_it_lacks(name, seen, reason, monkeypatch):
    assert kernels.unsupported("mm_tf32", CPU) == "a CPU has no TF32"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: seen)
    assert kernels.unsupported(name, torch.device("cuda")) == f"needs compute capability {reason}"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert kernels.unsupported(name, torch.device("cuda")) == ""


def test_the_precision_of_fp32_is_put_back():
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    kernels.make("mm_fp32", "large", CPU).run()
    assert torch.backends.cuda.matmul.fp32_precision == "tf32"


MASK = 2**64 - 1


def splitmix64(seed, index):
    """The published generator, in Python's integers."""
    state = (seed + (index + 1) * 0x9E3779B97F4A7C15) & MASK
    state = ((state ^ state >> 30) * 0xBF58476D1CE4E5B9) & MASK
    state = ((state ^ state >> 27) * 0x94D049BB133111EB) & MASK
    return state ^ state >> 31


def test_the_reference_is_the_published_one():
    """First outputs for seed 1234567, as Rosetta Code lists them (Pseudo-random numbers/Splitmix64)."""
    assert [splitmix64(1234567, index) for index in range(3)] == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@given(st.integers(0, 2**63 - 1), st.integers(1, 3), st.sampled_from([torch.float32, torch.float64]))
def test_numbers_are_the_top_bits_exactly(seed, tensors_before, dtype):
    draw = drawing(seed, CPU)
    for _ in range(tensors_before):
        draw(2)
    drawn = draw(3, dtype=dtype).tolist()
    digits = 53 if dtype == torch.float64 else 24
    assert drawn == [(splitmix64(seed, (tensors_before + 1) * 2**40 + index) >> 64 - digits) / 2 ** (digits - 1) - 1 for index in range(3)]


def test_they_do_not_depend_on_the_chunks(monkeypatch):
    whole = drawing(1, CPU)(7, 11)
    monkeypatch.setattr(kernels, "_CHUNK", 10)
    assert torch.equal(drawing(1, CPU)(7, 11), whole)


def test_narrow_dtypes_are_the_fp32_numbers_rounded_and_each_tensor_is_another_one():
    for dtype in (torch.bfloat16, torch.float16, torch.float8_e4m3fn):
        narrow = drawing(1, CPU)(500, dtype=dtype)
        assert torch.equal(narrow.float(), drawing(1, CPU)(500).to(dtype).float())
    draw = drawing(1, CPU)
    assert not torch.equal(draw(100), draw(100))


def test_numbers_are_spread_evenly():
    drawn = drawing(1, CPU)(100_000)
    counts = torch.histc(drawn, 10, -1, 1)
    assert int(counts.sum()) == 100_000
    assert float((counts - 10_000).abs().max()) < 600  # six sigma of a tenth of 100,000: the seed is fixed, so this is no gamble
