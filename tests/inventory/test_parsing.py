"""Forms of /proc and /sys: each value of its form is read exactly, and nothing else is."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_acceptance.inventory import parsing

FORMS = (
    parsing.whole_number,
    parsing.signed_number,
    parsing.decimal,
    parsing.zero_or_one,
    parsing.kib_in_bytes,
    parsing.one_line,
    parsing.words,
    parsing.choice_in_brackets,
    parsing.cpus_in,
    parsing.cpu_list,
)


@pytest.mark.parametrize(
    ("form", "text", "value"),
    [
        (parsing.whole_number, "8388608", 8388608),
        (parsing.signed_number, "-1", -1),
        (parsing.decimal, "350735.47", 350735.47),
        (parsing.decimal, "12", 12.0),
        (parsing.zero_or_one, "0", False),
        (parsing.zero_or_one, "1", True),
        (parsing.kib_in_bytes, "24684092 kB", 24684092 * 1024),
        (parsing.one_line, " NVIDIA H200 \n", "NVIDIA H200"),
        (parsing.words, "tsc hpet acpi_pm ", ("tsc", "hpet", "acpi_pm")),
        (parsing.choice_in_brackets, "always [madvise] never", "madvise"),
        (parsing.choice_in_brackets, "[always] madvise never", "always"),
        (parsing.choice_in_brackets, "always madvise [never]", "never"),
        (parsing.cpus_in, "0-3,8", (0, 1, 2, 3, 8)),
        (parsing.cpus_in, "", ()),
        (parsing.cpu_list, "8,0-3,2", "0-3,8"),
    ],
)
def test_a_value_of_the_form_is_read(form, text, value):
    assert form(text) == value


@pytest.mark.parametrize(
    ("form", "text"),
    [
        *((parsing.whole_number, text) for text in ("", "-1", "+1", "1_0", "1.0", "0x10", "1\n", "٣", "9" * 20)),
        *((parsing.signed_number, text) for text in ("--1", "-", "max")),
        *((parsing.decimal, text) for text in ("nan", "inf", "1e3", ".5", "-1.0")),
        *((parsing.zero_or_one, text) for text in ("2", "on", "")),
        *((parsing.kib_in_bytes, text) for text in ("24684092", "24684092 KiB", "x kB")),
        *((parsing.one_line, text) for text in ("", " ", "a\nb", "a\x00b", "\x1b[31m", "x" * 257)),
        *((parsing.words, text) for text in ("", " \n")),
        *((parsing.choice_in_brackets, text) for text in ("always madvise never", "[a] [b]", "[]")),
        *((parsing.cpus_in, text) for text in ("3-0", "0-", "-", "0,,1", "0-3,", "a", "0-3:1/2", "65536", "0-99999")),
    ],
)
def test_what_is_not_of_the_form_is_no_value(form, text):
    with pytest.raises(ValueError, match=r"no|form"):
        form(text)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
@given(text=st.one_of(st.text(), st.text("0123456789-,. kB[]almwaysnever_\n", max_size=30)))
def test_any_text_is_a_value_or_a_value_error(form, text):
    with contextlib.suppress(ValueError):
        form(text)


@given(st.sets(st.integers(0, 8191), max_size=300))
def test_a_cpu_list_and_its_numbers_are_the_same(cpus):
    assert parsing.cpus_in(parsing.as_cpu_list(cpus)) == tuple(sorted(cpus))
