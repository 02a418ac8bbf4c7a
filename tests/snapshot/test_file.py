"""A snapshot comes back as it was written, and nothing else is one."""

import json

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from snapshots import changed, healthy_h200, leaves, snapshot_of, without

from gpu_acceptance.folder.disk import RecordError
from gpu_acceptance.snapshot import file as module
from gpu_acceptance.snapshot.file import SCHEMA_FILE, decode, encode, read_snapshot, redact, schema_text, take, write_snapshot

HEALTHY = healthy_h200()
LEAVES = leaves(HEALTHY)
FIRST_GPU = [path for path in LEAVES if path.startswith("node.gpus.gpus.0.")]
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.lists(st.integers(), max_size=2), st.just({})
)


def test_it_comes_back_as_it_was_written(tmp_path):
    snapshot = snapshot_of(HEALTHY)
    write_snapshot(tmp_path / "node.json", snapshot)
    assert read_snapshot(tmp_path / "node.json") == snapshot
    assert json.loads((tmp_path / "node.json").read_text()) == HEALTHY


def test_of_this_machine_it_says_what_is_not_there():
    snapshot = take()
    assert decode(encode(snapshot)) == snapshot


def test_the_published_schema_is_that_of_this_version_and_describes_it():
    assert SCHEMA_FILE.read_text() == schema_text(), "rewrite it: python -m gpu_acceptance.snapshot.file"
    jsonschema.validate(HEALTHY, json.loads(schema_text()))


@pytest.mark.parametrize("path", FIRST_GPU)
def test_no_value_may_be_lacking(path):
    with pytest.raises(ValueError, match=r"is lacking|unknown key|, not "):
        snapshot_of(without(HEALTHY, path))


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("schema_version", 2, "schema_version is 2; this version reads 1"),
        ("node.gpus.gpus.0.pcie.width", "16", "node.gpus.gpus.tuple"),
        ("node.gpus.gpus.0.pcie.width", 16.5, "node.gpus.gpus.tuple"),
        ("node.gpus.gpus.0.pcie.width", None, "node.gpus.gpus.tuple"),
        ("node.gpus.gpus.0.ecc.is_on", 1, "node.gpus.gpus.tuple"),
        ("node.gpus.gpus.0.colour", "green", "unknown key node.gpus.gpus[0].colour"),
        ("node.gpus.gpus.0.pcie.width", {"missing": "sunny", "detail": ""}, "node.gpus.gpus.tuple"),
        ("node.gpus.gpus.0.pcie.width", {"missing": "not there", "detail": "", "more": 1}, "unknown key node.gpus.gpus[0].pcie.width.more"),
    ],
)
def test_what_is_no_snapshot_says_where(path, value, says):
    with pytest.raises(ValueError, match=r".") as caught:
        snapshot_of(changed(HEALTHY, path, value))
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "Expecting value: line 1 column 1"),
        ('{"schema_version": NaN}', "NaN is no value"),
        ("[" * 100_000, "nested too deep"),
        ("[]", "not \\[\\]"),
    ],
)
def test_a_file_that_is_none_says_so(tmp_path, text, says):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(RecordError, match=says):
        read_snapshot(tmp_path / "x.json")


def test_a_file_that_is_no_text(tmp_path):
    (tmp_path / "x.json").write_bytes(b"{\xff}")
    with pytest.raises(RecordError, match="not UTF-8 at byte 1"):
        read_snapshot(tmp_path / "x.json")


@given(st.sampled_from(FIRST_GPU), VALUES)
def test_any_value_anywhere_is_taken_or_refused_in_words(path, value):
    plain = changed(HEALTHY, path, value)
    try:
        snapshot = snapshot_of(plain)
    except ValueError as error:
        assert str(error)  # noqa: PT017 - either is fine, a traceback of another kind is not
    else:
        assert decode(encode(snapshot)) == snapshot


def test_redacted_it_names_no_machine_and_is_else_the_same():
    text = encode(redact(snapshot_of(HEALTHY)))
    assert "1653924100003" not in text
    assert "GPU-00000003-0000-4000-8000" not in text
    assert "node-07" not in text
    plain = json.loads(text)
    assert plain["node"]["host"] == "node-00"
    assert plain["node"]["gpus"]["gpus"][2]["serial"] == "1650000000002"
    different = {path for path, value in leaves(plain).items() if value != LEAVES[path]}
    assert {path.rsplit(".", 1)[-1] for path in different} == {"host", "serial", "uuid", "product_serial", "chassis_serial", "source"}
    assert module.decode(text) == redact(snapshot_of(HEALTHY))
