import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpu_acceptance.measure.corruption import hashing
from gpu_acceptance.measure.corruption.hashing import Difference, find_differences


def words(numbers):
    return torch.tensor(numbers, dtype=torch.int32)


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
    assert find_differences([words(numbers)], [words(others)]) == expected


def test_the_map_is_bounded_however_much_differs():
    (found,) = find_differences([torch.ones(100_000)], [torch.zeros(100_000)])
    assert found == Difference(0, 100_000, "3f800000", tuple(range(16)), 1)


def test_an_element_of_one_byte():
    spoiled = torch.zeros(9, dtype=torch.uint8)
    spoiled[4] = 0x81
    assert find_differences([spoiled], [torch.zeros(9, dtype=torch.uint8)]) == (Difference(0, 1, "81", (4,), 0),)
