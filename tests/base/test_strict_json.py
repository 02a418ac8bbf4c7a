import json
import math
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_acceptance.base.strict_json import MAX_DEPTH, MAX_DIGITS, StrictJsonError, parse, parse_first, text_of


def problem(text):
    with pytest.raises(StrictJsonError) as caught:
        parse(text)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "column 1: Expecting value"),
        ("{", "column 2: Expecting property name enclosed in double quotes"),
        ("[1,\n2\n3]", "line 3, column 1: Expecting ',' delimiter"),
        ("{'a': 1}", "column 2: Expecting property name enclosed in double quotes"),
        ('"a\nb"', "column 3: Invalid control character at"),
        ("1 2", "column 2: more after the value: ' 2'"),
        ('{"a": 1, "b": 2, "a": 3}', "key 'a' is given twice"),
        ('[{"b": {"a": 1, "a": 1}}]', "key 'a' is given twice"),
        ("NaN", "NaN is no JSON"),
        ("[Infinity]", "Infinity is no JSON"),
        ("-Infinity", "-Infinity is no JSON"),
        ("1e999", "number '1e999' is too large"),
        ("1" * 41, f"number '{'1' * 41}' has more than 40 digits"),
        ("-" + "1" * 5000, f"number '-{'1' * 59}...' has more than 40 digits"),
        (r'"\ud800"', "a text with a NUL, or with half of a surrogate pair"),
        (r'[[{"a\uDFFFb": 1}]]', "a text with a NUL, or with half of a surrogate pair"),
        (r'{"a": ["\u0000"]}', "a text with a NUL, or with half of a surrogate pair"),
        ("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), "nested deeper than 64 levels"),
        ('{"a":' * (MAX_DEPTH + 1) + "1" + "}" * (MAX_DEPTH + 1), "nested deeper than 64 levels"),
        ("[" * 100_000, "nested deeper than 64 levels"),
    ],
    ids=lambda text: text[:30],
)
def test_what_is_refused(text, said):
    assert problem(text) == said


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (' {"a": [1, -2.5, true, null, "x"]}\r\n', {"a": [1, -2.5, True, None, "x"]}),
        (r'"\ud83d\ude00"', "😀"),
        (r'"\\ud800"', r"\ud800"),
        ("9" * MAX_DIGITS, int("9" * MAX_DIGITS)),
        (json.dumps("{[" * 100), "{[" * 100),
        ("[" * MAX_DEPTH + "]" * MAX_DEPTH, json.loads("[" * MAX_DEPTH + "]" * MAX_DEPTH)),
    ],
)
def test_what_is_not(text, value):
    assert parse(text) == value


def test_one_value_after_the_other():
    text = ' {"a": 1}\n\n[2]x'
    value, end = parse_first(text, 0)
    assert (value, text[:end]) == ({"a": 1}, ' {"a": 1}')
    assert parse_first(text, end) == ([2], len(text) - 1)
    with pytest.raises(StrictJsonError, match=r"^line 3, column 4: Expecting value$"):
        parse_first(text, len(text) - 1)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\xef\xbb\xbf{}", "a byte order mark; save it as UTF-8 without one"),
        (b'{"a\0": 1}', "a NUL byte; it is not text"),
        (b"ab\xff", "not UTF-8: byte 3 is 0xff"),
        (b"\xed\xa0\x80", "not UTF-8: byte 1 is 0xed"),
    ],
)
def test_bytes_that_are_no_text(content, said):
    with pytest.raises(StrictJsonError) as caught:
        text_of(content)
    assert str(caught.value) == said


@pytest.mark.slow
@given(st.one_of(st.text(), st.text('{}[]",:0123456789eE.-+ntfu\\Nad')))
def test_no_text_does_anything_but_hold_a_value_or_be_refused(text):
    with suppress(StrictJsonError):
        value = parse(text)
        assert json.loads(text) == value


@given(st.binary())
def test_no_bytes_do_anything_but_hold_a_text_or_be_refused(content):
    with suppress(StrictJsonError):
        assert text_of(content).encode() == content


def test_numbers_that_are_not_finite_where_a_caller_takes_them():
    assert parse('{"a": [0.0, Infinity, -Infinity, 1e400]}', is_finite=False) == {"a": [0, math.inf, -math.inf, math.inf]}
    assert math.isnan(parse("NaN", is_finite=False))
    with pytest.raises(StrictJsonError, match=r"^key 'a' is given twice$"):
        parse('{"a": NaN, "a": 1}', is_finite=False)
