"""What does not print is shown, wherever text from machines meets an eye."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_acceptance.base.text import MAX_LINE, one_line, visible


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
def test_what_does_not_print_becomes_its_escape(text, shown):
    assert visible(text) == shown


@given(st.text(st.characters()))
def test_whatever_comes_prints_and_encodes(text):
    shown = visible(text)
    assert shown.replace("\n", "").replace("\t", "").isprintable()
    shown.encode("utf-8")
    assert one_line(text).isprintable()


def test_one_line_has_no_break_and_is_cut():
    assert one_line("a\nb") == r"a\nb"
    assert one_line("x" * MAX_LINE) == "x" * MAX_LINE
    assert one_line("x" * 20_000) == "x" * MAX_LINE + "..."
