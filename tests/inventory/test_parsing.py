"""Forms of /proc and /sys: each value of its form is read exactly, and nothing else is."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_acceptance.inventory import answer

FORMS = (
    answer.whole_number,
    answer.signed_number,
    answer.decimal,
    answer.zero_or_one,
    answer.kib_in_bytes,
    answer.one_line,
    answer.words,
    answer.choice_in_brackets,
    answer.cpus_in,
    answer.cpu_list,
)


@pytest.mark.parametrize(
    ("form", "text", "value"),
    [
        (answer.whole_number, "8388608", 8388608),
        (answer.signed_number, "-1", -1),
        (answer.decimal, "350735.47", 350735.47),
        (answer.decimal, "12", 12.0),
        (answer.zero_or_one, "0", False),
        (answer.zero_or_one, "1", True),
        (answer.kib_in_bytes, "24684092 kB", 24684092 * 1024),
        (answer.one_line, " NVIDIA H200 \n", "NVIDIA H200"),
        (answer.words, "tsc hpet acpi_pm ", ("tsc", "hpet", "acpi_pm")),
        (answer.choice_in_brackets, "always [madvise] never", "madvise"),
        (answer.choice_in_brackets, "[always] madvise never", "always"),
        (answer.choice_in_brackets, "always madvise [never]", "never"),
        (answer.cpus_in, "0-3,8", (0, 1, 2, 3, 8)),
        (answer.cpus_in, "", ()),
        (answer.cpu_list, "8,0-3,2", "0-3,8"),
    ],
)
def test_a_value_of_the_form_is_read(form, text, value):
    assert form(text) == value


@pytest.mark.parametrize(
    ("form", "text"),
    [
        *((answer.whole_number, text) for text in ("", "-1", "+1", "1_0", "1.0", "0x10", "1\n", "٣", "9" * 20)),
        *((answer.signed_number, text) for text in ("--1", "-", "max")),
        *((answer.decimal, text) for text in ("nan", "inf", "1e3", ".5", "-1.0")),
        *((answer.zero_or_one, text) for text in ("2", "on", "")),
        *((answer.kib_in_bytes, text) for text in ("24684092", "24684092 KiB", "x kB")),
        *((answer.one_line, text) for text in ("", " ", "a\nb", "a\x00b", "\x1b[31m", "x" * 257)),
        *((answer.words, text) for text in ("", " \n")),
        *((answer.choice_in_brackets, text) for text in ("always madvise never", "[a] [b]", "[]")),
        *((answer.cpus_in, text) for text in ("3-0", "0-", "-", "0,,1", "0-3,", "a", "0-3:1/2", "65536", "0-99999")),
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
    assert answer.cpus_in(answer.as_cpu_list(cpus)) == tuple(sorted(cpus))
