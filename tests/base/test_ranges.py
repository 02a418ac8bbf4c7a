import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_acceptance.base.text import format_ranges, named, parse_ranges


@pytest.mark.parametrize(
    ("numbers", "text"),
    [((), ""), ((5,), "5"), ((0, 1), "0-1"), ((8, 3, 0, 1, 2, 4, 5, 6, 3), "0-6,8"), ((1, 7), "1,7")],
)
def test_compress_and_back(numbers, text):
    assert format_ranges(numbers) == text
    assert parse_ranges(text) == tuple(sorted(set(numbers)))


@given(st.sets(st.integers(0, 300)), st.sampled_from([",", ", "]))
def test_round_trip(numbers, separator):
    assert set(parse_ranges(format_ranges(numbers, separator))) == numbers


@pytest.mark.parametrize("text", ["a", "1-", "-3", "1,,2", "1-2-3", "0x3"])
def test_expand_names_what_is_no_range(text):
    with pytest.raises(ValueError, match=r"in '.*' is neither a number nor a range like 0-6"):
        parse_ranges(text)


def test_expand_refuses_a_range_that_runs_backwards():
    with pytest.raises(ValueError, match="'6-0' in '6-0' runs backwards"):
        parse_ranges("6-0")


def test_compress_refuses_negative_numbers():
    with pytest.raises(ValueError, match="a range holds no negative number, found -1"):
        format_ranges([-1])


def test_named():
    assert named("rank", [5]) == "rank 5"
    assert named("GPU", [4, 5, 6, 7]) == "GPUs 4-7"
