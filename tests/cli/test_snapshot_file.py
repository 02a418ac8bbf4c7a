"""A snapshot comes back as it was written, and nothing else is one."""

import json

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from snapshots import REAL, changed, healthy_h200, leaves, snapshot_of, without

from gpu_acceptance.cli import snapshot_file as module
from gpu_acceptance.cli.snapshot_file import (
    SCHEMA_FILE,
    NotASnapshotError,
    decode,
    encode,
    read_snapshot,
    redact,
    schema_text,
    take,
    write_snapshot,
)
from gpu_acceptance.folder.files import RecordError

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
    assert SCHEMA_FILE.read_text() == schema_text(), "rewrite it: python -m gpu_acceptance.cli.snapshot_file"
    jsonschema.validate(HEALTHY, json.loads(schema_text()))


@pytest.mark.parametrize("path", FIRST_GPU)
def test_no_value_may_be_lacking(path):
    with pytest.raises(ValueError, match=r"is missing|unknown key|, not "):
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
    ("content", "kind"),
    [
        (b"", "an empty file"),
        (b"{\xff}", "a binary file"),
        (b"\x7fELF\0\0", "a binary file"),
        (b"[]", "a JSON file of another kind"),
        (b'{"schema_version": NaN}', "a JSON file of another kind"),
        (b"[" * 100_000, "a text file"),
        (b'{"a": "cut of', "a text file"),
        (b"extends: base\nlimits: {}\n", "a YAML file"),
        (b"GPU 0: NVIDIA H200 (UUID: GPU-1234)\n", "output of nvidia-smi"),
        (b"| NVIDIA-SMI 580.159.03    Driver Version: 580.159.03 |\n", "output of nvidia-smi"),
        (b"==============NVSMI LOG==============\n\nTimestamp : Fri\n", "output of nvidia-smi"),
        ((REAL / "h200x8-idle.xml").read_bytes(), "output of nvidia-smi"),
        (
            b'{"schema_version": 1, "header": {}, "conclusion": {}, "rows": []}',
            "the record of a run (`gpu-acceptance report build",
        ),
        (b'{"schema_version": 2, "node": {}}', "a snapshot of a newer version (schema_version 2; this version reads 1)"),
    ],
)
def test_another_file_is_told_from_a_snapshot(tmp_path, content, kind):
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(NotASnapshotError) as caught:
        read_snapshot(tmp_path / "x.json")
    assert str(caught.value).startswith(f"{tmp_path}/x.json: {kind}")
    assert str(caught.value).endswith("not a snapshot; `gpu-acceptance snapshot FILE` writes one, on the machine to look at")


def test_a_folder_is_told_from_a_snapshot(tmp_path):
    with pytest.raises(NotASnapshotError, match=f"^{tmp_path}: a folder, not a snapshot; "):
        read_snapshot(tmp_path)
    (tmp_path / "results.json").touch()
    with pytest.raises(NotASnapshotError, match=r": the folder of a run \(`gpu-acceptance verdict DIR` tells its verdict\), not a s"):
        read_snapshot(tmp_path)
    with pytest.raises(NotASnapshotError, match=r"nowhere: no such file; `gpu-acceptance snapshot FILE` writes one"):
        read_snapshot(tmp_path / "nowhere")


@pytest.mark.parametrize("text", ['{"schema_version": 1, "taken_at": "cut off', '{"schema_version": 1, "node": {}}'])
def test_what_is_left_of_a_snapshot_is_damaged(tmp_path, text):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(RecordError, match=r"Unterminated string|taken_at is missing"):
        read_snapshot(tmp_path / "x.json")


@pytest.mark.slow
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
