"""Hashes of tensors by their definition, and differences between results."""

import math
import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpu_acceptance.measure.corruption import hashing
from gpu_acceptance.measure.corruption.hashing import Difference, as_text, find_differences, hash_tensors

DTYPES = [
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float8_e4m3fn, torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.complex64),
]
contents = st.binary(min_size=1, max_size=200)
words = st.lists(st.integers(-(2**31), 2**31 - 1), min_size=2, max_size=60)


def from_bytes(content):
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def from_words(numbers):
    return torch.tensor(numbers, dtype=torch.int32)


def reference(*contents):
    """The definition, in Python's integers."""
    numbers = [number for content in contents for (number,) in struct.iter_unpack("<i", content + bytes(-len(content) % 4))]
    first, second = sum(numbers), sum(number * (2 * index + 1) for index, number in enumerate(numbers))
    return f"{first % 2**64:016x}{second % 2**64:016x}"


def text(*tensors):
    return as_text(hash_tensors(tensors))


@given(st.lists(st.binary(min_size=1, max_size=3000), min_size=1, max_size=4), st.integers(1, 9), st.integers(1, 9))
def test_the_sums_are_those_of_the_definition_over_all_tensors_whatever_the_rows_and_chunks(several, columns, rows):
    assert text(*map(from_bytes, several)) == reference(*several)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hashing, "_COLUMNS", columns)
        patch.setattr(hashing, "_CHUNK_WORDS", rows * columns)
        assert text(*map(from_bytes, several)) == reference(*several)


@pytest.mark.slow
def test_a_tensor_of_more_than_one_chunk():
    tensor = torch.randint(-(2**31), 2**31, (hashing._CHUNK_WORDS + 12_345,), dtype=torch.int32, generator=torch.Generator().manual_seed(1))
    index = torch.arange(tensor.numel())
    expected = int(tensor.sum()) % 2**64, int((tensor * (2 * index + 1)).sum()) % 2**64
    assert text(tensor) == "".join(f"{number:016x}" for number in expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (2, 0, 3)])
def test_any_dtype_and_shape(dtype, shape):
    tensor = (torch.arange(torch.Size(shape).numel()) + 1).reshape(shape).to(dtype)
    content = bytes(tensor.view(-1).view(torch.uint8).tolist())
    assert text(tensor) == reference(content)
    assert len(content) == tensor.numel() * tensor.element_size()


@pytest.mark.parametrize("start", range(5))
def test_a_slice_may_begin_at_any_byte(start):
    content = bytes(range(100, 131))
    assert text(from_bytes(content)[start:]) == reference(content[start:])


@given(words, st.data())
def test_a_swap_of_two_words_and_any_other_change_of_two_is_seen(numbers, data):
    one, other = (data.draw(st.integers(0, len(numbers) - 1)) for _ in range(2))
    for new in ((numbers[other], numbers[one]), (data.draw(st.integers(-(2**31), 2**31 - 1)), numbers[one])):
        changed = list(numbers)
        changed[one], changed[other] = new
        assert (text(from_words(changed)) == text(from_words(numbers))) == (changed == numbers)


def test_a_swap_of_a_number_and_its_opposite_is_seen_in_fp64():
    """With words of 64 bits it would not be: only the sign differs, and twice that is 2**64."""
    assert text(torch.tensor([1.5, -1.5], dtype=torch.float64)) != text(torch.tensor([-1.5, 1.5], dtype=torch.float64))


@given(contents, st.data())
def test_one_flipped_bit_is_seen(content, data):
    bit = data.draw(st.integers(0, 8 * len(content) - 1))
    flipped = bytearray(content)
    flipped[bit // 8] ^= 1 << bit % 8
    assert text(from_bytes(flipped)) != text(from_bytes(content))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_a_shifted_row_is_seen(dtype):
    tensor = torch.randn(7, 9, generator=torch.Generator().manual_seed(1)).to(dtype)
    shifted = tensor.clone()
    shifted[3] = shifted[3].roll(1)
    assert text(shifted) != text(tensor)
    assert text(tensor.roll(1, 0).contiguous()) != text(tensor)


def test_a_tensor_that_is_not_contiguous_is_refused():
    with pytest.raises(ValueError, match=r"^a tensor of shape \(3, 2\) and strides \(1, 3\): only contiguous ones have bytes in order$"):
        hash_tensors([torch.ones(2, 3).t()])


def test_equal_outputs_have_no_difference():
    assert find_differences([torch.ones(3), torch.zeros(())], [torch.ones(3), torch.zeros(())]) == ()


def test_one_output_of_two_that_differs_in_one_bit():
    spoiled = torch.ones(2, 5, dtype=torch.float64)
    spoiled[1, 2] = -1
    found = find_differences([torch.ones(3), spoiled], [torch.ones(3), torch.ones(2, 5, dtype=torch.float64)])
    assert found == (Difference(1, 1, "8000000000000000", (7,), 0),)


def test_the_sign_of_zero_and_one_nan_for_another_are_differences():
    assert find_differences([torch.tensor([0.0])], [torch.tensor([-0.0])])[0].xor_bits == "80000000"
    nans = [torch.tensor([bits], dtype=torch.int32).view(torch.float32) for bits in (0x7FC00000, 0x7FC00001)]
    assert find_differences(nans[:1], nans[1:])[0].xor_bits == "00000001"


@pytest.mark.parametrize("chunk_bytes", [2**26, 32, 4])
def test_addresses_with_a_period(chunk_bytes, monkeypatch):
    monkeypatch.setattr(hashing, "_CHUNK_BYTES", chunk_bytes)
    spoiled = torch.zeros(1000, dtype=torch.int32)
    spoiled[[5, 69, 133, 325]] = 2
    assert find_differences([spoiled], [torch.zeros(1000, dtype=torch.int32)]) == (Difference(0, 4, "00000002", (5, 69, 133, 325), 64),)


@given(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=40), st.data())
def test_numbers_bits_addresses_and_period_are_those_of_the_definition(numbers, data):
    others = [data.draw(st.sampled_from([number, number ^ 1, 7])) for number in numbers]
    addresses = [index for index, pair in enumerate(zip(numbers, others, strict=True)) if pair[0] != pair[1]]
    bits = 0
    for number, other in zip(numbers, others, strict=True):
        bits |= number ^ other
    period = math.gcd(*(address - addresses[0] for address in addresses)) if addresses else 0
    expected = (Difference(0, len(addresses), f"{bits:08x}", tuple(addresses[:16]), period),) if addresses else ()
    assert find_differences([from_words(numbers)], [from_words(others)]) == expected


def test_the_map_is_bounded_however_much_differs_and_an_element_may_have_one_byte():
    assert find_differences([torch.ones(100_000)], [torch.zeros(100_000)]) == (Difference(0, 100_000, "3f800000", tuple(range(16)), 1),)
    spoiled = torch.zeros(9, dtype=torch.uint8)
    spoiled[4] = 0x81
    assert find_differences([spoiled], [torch.zeros(9, dtype=torch.uint8)]) == (Difference(0, 1, "81", (4,), 0),)
