"""Values, paragraphs and tables as people read them: what is missing is never a blank, and no text breaks a line."""

from operator import itemgetter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_acceptance.cli.devices import WIDTH, Column, moment, say, say_all, say_why, section, size, table
from gpu_acceptance.inventory.answer import Missing, Why

NOT_PERMITTED = Missing(Why.NOT_PERMITTED, "nvml: Insufficient Permissions")
HOSTILE = "\x1b[31mred\n\u202eevil\N{NO-BREAK SPACE}"


def test_a_value_or_the_reason_for_its_absence():
    assert say(0) == "0"
    assert say(700.5, lambda watts: f"{watts:g} W") == "700.5 W"
    assert say("") == '""'
    assert say("  ") == '"  "'
    assert say(NOT_PERMITTED) == "? (not permitted)"
    assert say(NOT_PERMITTED, len) == "? (not permitted)"
    assert say_why(NOT_PERMITTED) == "? (not permitted: nvml: Insufficient Permissions)"
    assert say_why(Missing(Why.NOT_SUPPORTED)) == "? (not supported)"
    assert say(HOSTILE) == r"\x1b[31mred\n\u202eevil\xa0"
    assert say("x" * 1000) == "x" * 77 + "..."


def test_a_list_and_an_empty_one():
    assert say_all(("tsc", "hpet")) == "tsc, hpet"
    assert say_all((), separator=" ") == "none"
    assert say_all(NOT_PERMITTED) == "? (not permitted)"


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (-1, "-1 B"),
        (1023, "1023 B"),
        (64 * 2**10, "64 KiB"),
        (64 * 2**20 - 1, "63.9 MiB"),
        (2_164_106_452_992, "2015.4 GiB"),
        (2**1400, f"{2**1370} GiB"),
    ],
)
def test_a_size_is_rounded_down(num_bytes, text):
    assert size(num_bytes) == text


def test_a_moment_that_no_calendar_holds_stays_a_number():
    assert moment(1795157324, 3600.5) == "2026-11-20 07:48:44 UTC"
    assert moment(10**400) == f"0 s after {10**400} s after 1970"
    assert moment(0, float("inf")) == "inf s after 0 s after 1970"


def test_a_section_has_its_label_once():
    assert section("log", "first", "second") == ["log       first", "          second"]
    assert section("log") == []


def test_a_paragraph_is_not_broken_inside_a_reason_or_a_size():
    lines = section("CPU", ", ".join([f"governor {say(NOT_PERMITTED)}, 7.9 GiB"] * 9))
    assert len(lines) > 2
    assert max(map(len, lines)) <= WIDTH
    assert "".join(lines).count("? (not permitted)") == "".join(lines).count("7.9 GiB") == 9


def columns(**most):
    """Columns of rows that hold their cells, after the name of the row."""
    return [Column(title, size, itemgetter(place)) for place, (title, size) in enumerate(most.items(), start=1)]


def test_a_table_says_below_why_cells_are_missing():
    lost = Missing(Why.UNREADABLE, "GPU is lost")
    rows = [
        ("GPU 0", "0", "1653924100001", NOT_PERMITTED),
        ("GPU 1", "1", Missing(Why.NOT_PERMITTED), NOT_PERMITTED),
        ("GPU 2", lost, lost, NOT_PERMITTED),
    ]
    assert table(columns(GPU=3, serial=8, ECC=3), rows, itemgetter(0)) == [
        "  GPU  serial    ECC",
        "  0    16539...  ?",
        "  1    ?         ?",
        "  ?    ?         ?",
        "  ? (not permitted): ECC (all); serial (GPU 1)",
        "  ? (unreadable: GPU is lost): GPU, serial (GPU 2)",
    ]


CELLS = st.one_of(st.text(max_size=40), st.sampled_from(Why).map(Missing))


@given(st.lists(st.tuples(st.text(max_size=9), CELLS, CELLS), max_size=4))
def test_no_cell_is_blank_and_no_text_breaks_a_line(rows):
    lines = table(columns(one=12, two=20), rows, itemgetter(0))
    second = lines[0].index("two")
    assert all(line.isprintable() and len(line) <= WIDTH for line in lines)
    assert all(line[:second].strip() and line[second:].strip() for line in lines[: len(rows) + 1])
