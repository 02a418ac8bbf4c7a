import pytest
import yaml

from gpu_acceptance.base import strict_yaml
from gpu_acceptance.base.strict_yaml import MAX_BYTES, StrictYamlError, parse, shown
from gpu_acceptance.thresholds.profile import shipped_dir


def value_of(text):
    return parse(f"key: {text}\n".encode()).data["key"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *[("5", 5), ("-5", -5), ("+5", 5), ("0", 0), ("1.5", 1.5), ("1.0e+3", 1000.0), ("1.0e3", 1000.0), ("-0.5", -0.5)],
        *[("true", True), ("false", False), ("{8: 337}", {8: 337}), ("[2, 4]", [2, 4])],
    ],
)
def test_numbers_and_truth(text, value):
    assert value_of(text) == value
    assert type(value_of(text)) is type(value)


GUESSED = "1e3 12:30 2026-11-20 2026-11-20T10:00:00Z yes no on off True FALSE 0x10 0o7 007 1_000 5. .5"


@pytest.mark.parametrize("text", GUESSED.split())
def test_what_other_yaml_guesses_at_is_text(text):
    assert value_of(text) == text


@pytest.mark.parametrize("text", ['"5"', "'true'", '"1.5"', '".nan"', '""'])
def test_quotes_make_text(text):
    assert value_of(text) == text[1:-1]


def test_folded_text_is_one_line():
    assert parse(b"source: >-\n  measured here\n  and there\n").data == {"source": "measured here and there"}


def test_lines_are_those_of_the_keys():
    document = parse(b"a: 1\nb:\n  c:\n    - 5\n    - 6\n  8: x\n")
    assert document.lines[("a",)] == 1
    assert document.lines["b", "c"] == 3
    assert document.lines["b", "c", 1] == 5
    assert document.lines["b", 8] == 6


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty; a mapping is wanted"),
        (b"# only a comment\n", "the file is empty; a mapping is wanted"),
        (b"[1, 2]", "line 1, column 1: a mapping (`key: value`) is wanted on top"),
        (b"text", "line 1, column 1: a mapping (`key: value`) is wanted on top"),
        (b"a: 1\nb: 2\na: 3\n", "line 3: key 'a' is given twice; first in line 1"),
        (b"x: {8: 1, 8: 2}", "line 1: key 8 is given twice; first in line 1"),
        (b'a: 1\n"a": 3\n', "line 2: key 'a' is given twice; first in line 1"),
        (b"a: &x 1\n", "line 1, column 4: anchor 'x'; anchors are not allowed"),
        (b"a: {b: &x {c: 1}}\n", "line 1, column 8: anchor 'x'; anchors are not allowed"),
        (b"a: *x\n", "line 1, column 4: alias 'x'; aliases are not allowed, write the value out"),
        (b"a:\n  <<: {b: 1}\n", "line 2, column 3: merge key <<; merge keys are not allowed"),
        (b"a: !!str 5\n", "line 1, column 4: tag 'tag:yaml.org,2002:str'; tags are not allowed"),
        (
            b"a: !!python/object/apply:os.system [x]\n",
            "line 1, column 4: tag 'tag:yaml.org,2002:python/object/apply:os.system'; tags are not allowed",
        ),
        (b"a: ! 5\n", "line 1, column 4: tag '!'; tags are not allowed"),
        (b"a: .nan\n", "line 1, column 4: '.nan' is not a finite number; a limit must be one"),
        (b"a: -.INF\n", "line 1, column 4: '-.INF' is not a finite number; a limit must be one"),
        (b"a: 1.0e+999\n", "line 1, column 4: '1.0e+999' is not a finite number; a limit must be one"),
        (b"a: 1234567890123456789\n", "line 1, column 4: '1234567890123456789' has more than 18 digits"),
        (b"a:\nb: 1\n", "line 1, column 3: no value is given; leave the key out or write one"),
        (b"a: null\n", "line 1, column 4: no value is given; leave the key out or write one"),
        (b"a: ~\n", "line 1, column 4: no value is given; leave the key out or write one"),
        (b"? [a]\n: b\n", "line 1, column 3: a key must be a name or a whole number"),
        (b"a: 1\n---\nb: 2\n", "line 2, column 1: a second document begins; one is allowed"),
        (b"a: 'open\n", "line 2, column 1: found unexpected end of stream"),
        (b"\ta: 1\n", "line 1, column 1: found character that cannot start any token"),
        (b'a: "\\UFFFFFFFF"', "line 1, column 7: found invalid Unicode character escape code"),
        (b"%YAML " + b"9" * 5000 + b".1\n---\na: 1\n", "line 1, column 16: found extremely long version number"),
        (b"a: 1\x07", "character 4 (7) is not allowed in YAML"),
        (b"a\0b", "the file contains a NUL byte; it is not text"),
        (b"a: \xff\n", "the file is not UTF-8: byte 3 is 0xff"),
        ("a: 1\n\ufeffb: 2\n".encode(), "line 2: a byte order mark inside the text is not allowed"),
        ("a: ä".encode("utf-16"), "the file contains a NUL byte; it is not text"),
        (b"#" * (MAX_BYTES + 1), "the file is larger than 1 MiB"),
        (b"a: " + b"[" * 100_000, "line 1, column 23: nested deeper than 20 levels"),
        (b"a: " + b"{b: " * 5_000, "line 1, column 77: nested deeper than 20 levels"),
        (b"".join(b" " * level + b"a:\n" for level in range(30)), "line 20, column 20: nested deeper than 20 levels"),
    ],
)
def test_errors_name_the_place_and_what_is_allowed(content, message):
    with pytest.raises(StrictYamlError) as caught:
        parse(content)
    assert str(caught.value) == message


@pytest.fixture
def without_libyaml(monkeypatch):
    monkeypatch.setattr(strict_yaml, "_LOADER", yaml.SafeLoader)
    parse.cache_clear()
    yield
    parse.cache_clear()


def test_pyyaml_without_libyaml_reads_the_same(request):
    contents = [path.read_bytes() for path in shipped_dir().glob("*.yaml")]
    read = [parse(content) for content in contents]
    request.getfixturevalue("without_libyaml")
    assert [parse(content) for content in contents] == read


@pytest.mark.usefixtures("without_libyaml")
@pytest.mark.parametrize("content", [b'a: "\\UFFFFFFFF"', b"%YAML " + b"9" * 5000 + b".1\n---\na: 1\n"])
def test_pyyaml_without_libyaml_raises_no_other_error_over_large_numbers(content):
    with pytest.raises(StrictYamlError, match=r"^not YAML: an escape or a directive holds too large a number$"):
        parse(content)


def test_a_byte_order_mark_at_the_beginning_is_no_part_of_a_key():
    assert parse("\ufeffa: 1\n".encode()).data == {"a": 1}


def test_shown_is_short_and_on_one_line():
    assert shown("a\nb\0") == r"'a\nb\x00'"
    assert len(shown("x" * 10_000)) == 63
