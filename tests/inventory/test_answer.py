"""A missing value has a reason; files and texts are read exactly or not at all."""

import contextlib

import pytest
from host_root import fill
from hypothesis import given
from hypothesis import strategies as st

from gpu_acceptance.inventory import answer
from gpu_acceptance.inventory.answer import (
    MOST_FILE_BYTES,
    Missing,
    Why,
    all_of,
    kib_in_bytes,
    names_in,
    read_fields,
    read_text,
    read_value,
)

LOST = Missing(Why.NOT_THERE, "x")


def test_a_file_is_its_text_without_the_last_line_break(tmp_path):
    (tmp_path / "speed").write_bytes(b"32.0 GT/s H\xff200\n")
    assert read_text(tmp_path / "speed") == "32.0 GT/s H\\xff200"
    (tmp_path / "width").write_text("16\n")
    assert read_value(tmp_path / "width", int) == 16
    (tmp_path / "width").write_text("sixteen")
    assert read_value(tmp_path / "width", int) == Missing(Why.UNREADABLE, f"{tmp_path / 'width'} says 'sixteen'")


def test_a_reason_in_words():
    assert str(Missing(Why.UNREADABLE, "x says 'y'")) == "unreadable (x says 'y')"
    assert str(Missing(Why.NOT_SUPPORTED)) == "not supported"


@pytest.mark.parametrize("path", ["nothing", "file/below"])
@pytest.mark.parametrize("read", [read_text, names_in])
def test_a_path_that_is_not_there(tmp_path, path, read):
    (tmp_path / "file").touch()
    assert read(tmp_path / path) == Missing(Why.NOT_THERE, str(tmp_path / path))


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (PermissionError(13, "Permission denied"), Why.NOT_PERMITTED),
        (OSError(1, "Operation not permitted"), Why.NOT_PERMITTED),
        (OSError(95, "Operation not supported"), Why.NOT_SUPPORTED),
        (OSError(22, "Invalid argument"), Why.UNREADABLE),
    ],
)
def test_an_error_of_the_kernel_has_its_own_reason(tmp_path, error, why):
    """sysfs answers so for links that are down and for files that only root may read; a test that runs as root cannot provoke them."""
    assert answer.missing_over(error, tmp_path).missing == why


def test_a_file_is_read_whole_or_not_at_all(tmp_path):
    long = tmp_path / "long"
    long.write_text("x" * 100_000)
    assert read_text(long) == "x" * 100_000
    long.write_text("x" * 2_000_000)
    assert read_text(long) == Missing(Why.UNREADABLE, f"{long} is longer than 1048576 bytes")
    assert read_text(long, MOST_FILE_BYTES) == "x" * 2_000_000
    assert read_text(long, 10) == Missing(Why.UNREADABLE, f"{long} is longer than 10 bytes")
    assert read_text(tmp_path) == Missing(Why.UNREADABLE, f"{tmp_path}: Is a directory")


def test_names(tmp_path):
    fill(tmp_path, {"mlx5_1/x": "", "mlx5_0/x": ""})
    assert names_in(tmp_path) == ("mlx5_0", "mlx5_1")


def test_fields(tmp_path):
    meminfo = fill(tmp_path, {"meminfo": "MemTotal:  2 kB\nSwapTotal: ? kB\nMemTotal:  3 kB\nno separator\n"}) / "meminfo"
    found = read_fields(meminfo)
    assert found.get("MemTotal", kib_in_bytes) == 2048  # the first value holds
    assert found.get("MemAvailable", kib_in_bytes) == Missing(Why.NOT_THERE, f"{meminfo} has no MemAvailable")
    assert found.get("SwapTotal", kib_in_bytes) == Missing(Why.UNREADABLE, f"{meminfo}: SwapTotal is '? kB'")
    assert read_fields(tmp_path / "none").get("MemTotal", kib_in_bytes) == Missing(Why.NOT_THERE, str(tmp_path / "none"))


def test_answers_together():
    assert (all_of([1, 2]), all_of([1, LOST, 2]), all_of([])) == ((1, 2), LOST, ())
    assert answer.combine(lambda a, b: a + b, 1, 2) == 3
    assert answer.combine(lambda a, b: a + b, 1, LOST) == answer.then(LOST, len) == LOST


@pytest.mark.parametrize(("error", "detail"), [(ValueError("no list"), "no list"), (KeyError("items"), "KeyError: 'items'")])
def test_an_answer_of_another_form_is_unreadable(error, detail):
    def fails(_answer):
        raise error

    assert answer.parsed({}, "page of the API", fails) == Missing(Why.UNREADABLE, f"page of the API: {detail}")
    assert answer.parsed(LOST, "page of the API", fails) == LOST


FORMS = (
    *(answer.whole_number, answer.signed_number, answer.decimal, answer.zero_or_one, answer.kib_in_bytes, answer.one_line, answer.words),
    *(answer.choice_in_brackets, answer.cpus_in, answer.cpu_list),
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
def test_a_text_of_another_form_is_no_value(form, text):
    with pytest.raises(ValueError, match=r"no|form"):
        form(text)


@pytest.mark.parametrize("form", FORMS)
@given(text=st.one_of(st.text(), st.text("0123456789-,. kB[]almwaysnever_\n", max_size=30)))
def test_any_text_is_a_value_or_a_value_error(form, text):
    with contextlib.suppress(ValueError):
        form(text)


@given(st.sets(st.integers(0, 8191), max_size=300))
def test_a_cpu_list_and_its_numbers_are_the_same(cpus):
    assert answer.cpus_in(answer.as_cpu_list(cpus)) == tuple(sorted(cpus))
