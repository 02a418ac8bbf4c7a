import torch
from hypothesis import given
from hypothesis import strategies as st

from gpu_acceptance.measure.corruption import kernels
from gpu_acceptance.measure.corruption.kernels import drawing

CPU = torch.device("cpu")
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


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**50))
def test_bits_are_those_of_splitmix64(seed, index):
    drawn = kernels._splitmix64(torch.tensor([index]), seed).item() & MASK
    assert drawn == splitmix64(seed, index)


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


def test_narrow_dtypes_are_the_fp32_numbers_rounded():
    for dtype in (torch.bfloat16, torch.float16, torch.float8_e4m3fn):
        narrow = drawing(1, CPU)(500, dtype=dtype)
        assert torch.equal(narrow.float(), drawing(1, CPU)(500).to(dtype).float())


def test_each_tensor_is_another_one():
    draw = drawing(1, CPU)
    assert not torch.equal(draw(100), draw(100))


def test_numbers_are_spread_evenly():
    drawn = drawing(1, CPU)(100_000)
    counts = torch.histc(drawn, 10, -1, 1)
    assert int(counts.sum()) == 100_000
    assert float((counts - 10_000).abs().max()) < 600  # six sigma of a tenth of 100,000: the seed is fixed, so this is no gamble
