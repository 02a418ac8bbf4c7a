import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_acceptance.folder.disk import read_regular, write_atomically
from gpu_acceptance.measure.corruption import golden
from gpu_acceptance.measure.corruption.golden import Answer, GoldenFile, GoldenHash, encode, parse
from gpu_acceptance.measure.corruption.peers import Reading, Work

FIELDS = {"torch": "2.11.0+cu130", "cuda": "13.0", "cublas": "13.1.0", "driver": "580.159.04", "gpu": "NVIDIA H200"}
FIELDS |= {"kernel": "mm_bf16", "shape": "8192x8192x8192"}
KNOWN = {**FIELDS, "input_hash": "1" * 32, "hash": "2" * 32, "source": "measured 2026-11-20, 8x H200, all equal"}


def document(*known, **changes):
    return json.dumps({"schema_version": 1, "hashes": known, **changes}).encode()


def reading(hash_text="2" * 32, input_hash="1" * 32, **other):
    return Reading("rank 0", Work(**FIELDS | other), input_hash, hash_text)


@pytest.mark.parametrize(
    ("seen", "answer"),
    [
        (reading(), Answer.EQUAL),
        (reading("3" * 32), Answer.DIFFERENT),
        (reading("3" * 32, "4" * 32), Answer.OTHER_INPUT),
        (reading(input_hash="4" * 32), Answer.OTHER_INPUT),
        *((reading(**{field: "another"}), Answer.UNKNOWN) for field in FIELDS),
    ],
)
def test_a_reading_is_compared_only_where_all_versions_match(seen, answer):
    assert parse(document(KNOWN), "golden.json").compare(seen) == answer


def test_an_empty_file_knows_nothing():
    assert parse(document(), "golden.json").compare(reading()) == Answer.UNKNOWN


texts = st.from_regex(r"[!-~]([ -~]{0,20}[!-~])?", fullmatch=True)
hex_texts = st.text("0123456789abcdef", min_size=32, max_size=32)
entries = st.builds(GoldenHash, **dict.fromkeys([*FIELDS, "source"], texts), input_hash=hex_texts, hash=hex_texts)
documents = st.lists(entries, max_size=4, unique_by=lambda known: known.work)


@given(documents)
def test_what_is_written_is_what_is_read(known):
    written = GoldenFile(schema_version=1, hashes=tuple(known))
    assert parse(encode(written).encode(), "golden.json") == written


def test_through_a_real_file(tmp_path):
    written = parse(document(KNOWN), "given")
    write_atomically(tmp_path / "golden.json", encode(written))
    assert parse(read_regular(tmp_path / "golden.json"), "golden.json") == written


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "golden.json: Invalid JSON: EOF while parsing a value at line 1 column 0"),
        (b"\xff", "golden.json: Invalid JSON: expected value at line 1 column 1"),
        (document(KNOWN, schema_version=2), "golden.json: schema_version: Input should be 1"),
        (document({**KNOWN, "hash": "2" * 31}), "golden.json: hashes.0.hash: String should match pattern '^[0-9a-f]{32}$'"),
        (document({**KNOWN, "hash": "A" * 32}), "golden.json: hashes.0.hash: String should match pattern '^[0-9a-f]{32}$'"),
        (document({**KNOWN, "gpu": "a\x1b[2J"}), "golden.json: hashes.0.gpu: String should match pattern"),
        (document({**KNOWN, "gpu": "x" * 101}), "golden.json: hashes.0.gpu: String should match pattern"),
        (document({**KNOWN, "gpu": "NVIDIA H200\n"}), "golden.json: hashes.0.gpu: String should match pattern"),
        (document({**KNOWN, "gpu": 1, "cuda": 13.0}), "golden.json: hashes.0.cuda: Input should be a valid string (and 1 more)"),
        (document({**KNOWN, "\x1b[2J": "x"}), r"golden.json: hashes.0.\x1b[2J: Extra inputs are not permitted"),
        (document({**KNOWN, "x" * 500: "x"}), f"golden.json: hashes.0.{'x' * 91}: Extra inputs are not permitted"),
        (document({**KNOWN, "more": "x"}), "golden.json: hashes.0.more: Extra inputs are not permitted"),
        (document({key: KNOWN[key] for key in FIELDS}), "golden.json: hashes.0.input_hash: Field required (and 2 more)"),
        (
            document(KNOWN, {**KNOWN, "hash": "3" * 32}),
            "golden.json: Value error, two hashes for mm_bf16 8192x8192x8192 on NVIDIA H200 with torch 2.11.0+cu130",
        ),
    ],
)
def test_what_is_no_golden_file_is_refused(content, text):
    with pytest.raises(ValueError, match=f"^{re.escape(text)}"):
        parse(content, "golden.json")


def test_a_file_that_is_too_large_is_refused(monkeypatch):
    monkeypatch.setattr(golden, "MOST_BYTES", 10)
    with pytest.raises(ValueError, match=r"^golden.json: 11 bytes; at most 10$"):
        parse(b" " * 11, "golden.json")


@given(st.binary(max_size=200))
def test_no_content_raises_anything_else(content):
    with pytest.raises(ValueError, match=r"^golden.json: "):
        parse(content, "golden.json")
