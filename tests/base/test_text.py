"""Text: escapes of what does not print, ranges of numbers, and the nearest known name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_acceptance.base.text import MAX_LINE, did_you_mean, format_ranges, named, one_line, parse_ranges, visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ü ✓ 漢", "plain ü ✓ 漢"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        ("\x1b[31mred", r"\x1b[31mred"),
        ("a\0b", r"a\x00b"),
        ("a\r\nb\rc", "a\nb\\rc"),
        ("\u202eDETPECCA", r"\u202eDETPECCA"),
        ("\u2066x\u2069\u200f\ufeff", r"\u2066x\u2069\u200f\ufeff"),
        ("\ud800", r"\ud800"),
        ("\x9b31m\x7f", r"\x9b31m\x7f"),
    ],
)
def test_characters_that_do_not_print_become_escapes(text, shown):
    assert visible(text) == shown


@given(st.text(st.characters()))
def test_any_text_prints_and_encodes(text):
    shown = visible(text)
    assert shown.replace("\n", "").replace("\t", "").isprintable()
    shown.encode("utf-8")
    assert one_line(text).isprintable()


def test_one_line_has_no_break_and_is_cut():
    assert one_line("a\nb") == r"a\nb"
    assert one_line("x" * MAX_LINE) == "x" * MAX_LINE
    assert one_line("x" * 20_000) == "x" * MAX_LINE + "..."


@pytest.mark.parametrize(
    ("numbers", "text"),
    [((), ""), ((5,), "5"), ((0, 1), "0-1"), ((8, 3, 0, 1, 2, 4, 5, 6, 3), "0-6,8"), ((1, 7), "1,7")],
)
def test_ranges_and_back(numbers, text):
    assert format_ranges(numbers) == text
    assert parse_ranges(text) == tuple(sorted(set(numbers)))


@given(st.sets(st.integers(0, 300)), st.sampled_from([",", ", "]))
def test_any_ranges_and_back(numbers, separator):
    assert set(parse_ranges(format_ranges(numbers, separator))) == numbers


@pytest.mark.parametrize("text", ["a", "1-", "-3", "1,,2", "1-2-3", "0x3", "6-0"])
def test_invalid_ranges_are_refused(text):
    fault = "'6-0' in '6-0' runs backwards" if text == "6-0" else r"in '.*' is neither a number nor a range like 0-6"
    with pytest.raises(ValueError, match=fault):
        parse_ranges(text)


def test_negative_numbers_are_refused():
    with pytest.raises(ValueError, match="a range holds no negative number, found -1"):
        format_ranges([-1])


def test_named():
    assert named("rank", [5]) == "rank 5"
    assert named("GPU", [4, 5, 6, 7]) == "GPUs 4-7"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("quik", "; did you mean 'quick'?"),
        ("QUICK", "; did you mean 'quick'?"),
        ("Ful", "; did you mean 'full'?"),
        ("so", "; did you mean 'soak'?"),
        ("elsewhere", ""),
        ("", ""),
        (8, ""),
        ("quick" * 1000, ""),
    ],
)
def test_the_nearest_name(name, hint):
    assert did_you_mean(name, ["health", "quick", "full", "soak"]) == hint
    assert did_you_mean(name, []) == ""


def test_a_name_that_begins_so_is_nearer_than_one_that_looks_alike():
    assert did_you_mean("h200", ["b200", "h200-sxm-of-a-site", "h200-sxm"]) == "; did you mean 'h200-sxm'?"
