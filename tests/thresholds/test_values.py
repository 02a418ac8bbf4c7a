import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_acceptance.base.text import plural
from gpu_acceptance.thresholds.limit import is_number, show, show_apart, typed, with_unit

numbers = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**20), 10**20)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (262.5, "262.5"),
        (1234567.0, "1.23457e+06"),
        (1653924100006, "1653924100006"),
        (True, "true"),
        ("NVLS", "NVLS"),
        ("", "''"),
        ("a\nb", r"'a\nb'"),
        ("NVLS ", "'NVLS '"),
    ],
)
def test_show(value, text):
    assert show(value) == text


def test_a_long_text_is_cut():
    assert show("x" * 500) == "x" * 200 + "..."


def test_show_apart_takes_as_many_digits_as_it_needs():
    assert show_apart(336.5, 337) == ("336.5", "337")
    assert show_apart(math.nextafter(337.0, 0), 337.0) == ("336.99999999999994", "337")
    assert show_apart("x" * 500, "x" * 501) == (repr("x" * 500), repr("x" * 501))
    assert show_apart(337, 337.0) == ("337", "337")


@given(numbers, numbers)
def test_different_values_never_look_the_same(one, other):
    shown = show_apart(one, other)
    assert (shown[0] != shown[1]) or one == other


@pytest.mark.parametrize("value", [True, "3", None, math.nan, math.inf, -math.inf, 10**400])
def test_no_number(value):
    assert not is_number(value)


def test_types_are_part_of_equality():
    assert typed(True) != typed(1)
    assert typed("1") != typed(1)
    assert typed(1) == typed(1.0)


def test_units_and_counts():
    assert with_unit("3", "GB/s") == "3 GB/s"
    assert with_unit("NVLS", "text") == "NVLS"
    assert (plural(1, "limit"), plural(2, "limit")) == ("1 limit", "2 limits")
