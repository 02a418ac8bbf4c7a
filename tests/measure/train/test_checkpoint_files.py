"""A checkpoint is read only where each byte of it is what was written; what was never finished is refused. No torch is needed for that."""

import json
import os
import re
import subprocess
import sys

import pytest

from gpu_acceptance.measure.train import checkpoint_files
from gpu_acceptance.measure.train.checkpoint_files import UnusableError, Writer, commit, note_own, plant, read_manifest, read_share

NUM_RANKS = 3
LOSSES = [[0.1, 1e-30], [1 / 3, 5.5], [7.0, 2.0**-149]]


@pytest.fixture
def unfinished(tmp_path):
    """Each of three ranks has written one file, and noted it."""
    for rank in range(NUM_RANKS):
        (tmp_path / f"__{rank}_0.distcp").write_bytes(bytes(range(200)) * (rank + 1))
    (tmp_path / ".metadata").write_bytes(b"what is where")
    for rank in range(NUM_RANKS):
        note_own(tmp_path, rank)
    return tmp_path


@pytest.fixture
def finished(unfinished):
    commit(unfinished, NUM_RANKS, {"weight": "00ff"})
    return unfinished


def changed(folder):
    """Return the findings of each rank."""
    manifest = read_manifest(folder)
    return [list(read_share(folder, manifest, rank, NUM_RANKS).changed) for rank in range(NUM_RANKS)]


def flip(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(bytes(content))


def refused(folder):
    with pytest.raises(UnusableError) as caught:
        read_manifest(folder)
    return str(caught.value)


def test_a_sound_checkpoint(finished):
    manifest = read_manifest(finished)
    assert manifest.num_bytes == 200 * (1 + 2 + 3) + 13
    assert manifest.tensors == {"weight": "00ff"}
    assert changed(finished) == [[]] * NUM_RANKS
    shares = [read_share(finished, manifest, rank, NUM_RANKS) for rank in range(NUM_RANKS)]
    assert sorted(share.num_bytes - 13 for share in shares) == [200, 400, 600]  # each file once, the metadata by all


@pytest.mark.parametrize(
    ("fault", "by_rank"),
    [
        (lambda folder: flip(folder / "__1_0.distcp", 0), ["__1_0.distcp: 400 bytes, sha256 X; written were 400, X", "", ""]),
        (lambda folder: flip(folder / "__1_0.distcp", 311), ["__1_0.distcp: 400 bytes, sha256 X; written were 400, X", "", ""]),
        (lambda folder: flip(folder / "__1_0.distcp", -1), ["__1_0.distcp: 400 bytes, sha256 X; written were 400, X", "", ""]),
        (lambda folder: plant(folder, 2, 3), ["", "__2_0.distcp: 600 bytes, sha256 X; written were 600, X", ""]),
        (lambda folder: os.truncate(folder / "__0_0.distcp", 100), ["", "", "__0_0.distcp: 100 bytes, sha256 X; written were 200, X"]),
        (lambda folder: (folder / "__2_0.distcp").unlink(), ["", "__2_0.distcp: No such file or directory", ""]),
        # every rank unpickles it
        (lambda folder: flip(folder / ".metadata", 5), [".metadata: 13 bytes, sha256 X; written were 13, X"] * 3),
    ],
)
def test_what_has_changed_is_found_by_another_rank_than_wrote_it(finished, fault, by_rank):
    fault(finished)
    assert [re.sub("[0-9a-f]{12}", "X", "; ".join(of_rank)) for of_rank in changed(finished)] == by_rank


def test_a_half_written_checkpoint_is_refused(unfinished):
    assert refused(unfinished) == f"{unfinished}: half-written: it has no manifest.json, which is written last"


@pytest.mark.parametrize(
    ("fault", "error", "text"),
    [
        (lambda folder: (folder / "part-2.json").unlink(), FileNotFoundError, r"part-2\.json"),
        # another host shows less than was written
        (
            lambda folder: os.truncate(folder / "__1_0.distcp", 0),
            UnusableError,
            r": __1_0\.distcp of another length than the rank that wrote it has noted$",
        ),
    ],
)
def test_a_checkpoint_of_which_something_is_missing_is_not_finished(unfinished, fault, error, text):
    fault(unfinished)
    with pytest.raises(error, match=text):
        commit(unfinished, NUM_RANKS, {})
    assert "half-written" in refused(unfinished)


@pytest.mark.parametrize("place", [0, 64, 100, -1])
def test_a_manifest_with_a_flipped_bit(finished, place):
    flip(finished / "manifest.json", place)
    assert refused(finished) == f"{finished}/manifest.json: changed since it was written: its sha256 is another one"


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (
            {"files": {"../x": [1, "0" * 64]}, "writers": [], "tensors": {}},
            r"files.../x.[key]: String should match pattern '^(__\d+_\d+\.distcp|\.metadata)$', not '../x'",
        ),
        (
            {"files": {"__0_0.distcp": [1, "x"]}, "writers": [], "tensors": {}},
            "files.__0_0.distcp.1: String should match pattern '^[0-9a-f]{64}$', not 'x'",
        ),
        ({"files": {"__0_0.distcp": 1}, "writers": [], "tensors": {}}, "files.__0_0.distcp: Input should be a valid array, not 1"),
        ({"files": {}}, "writers is missing (and 1 more)"),
        ({"files": []}, "files: Input should be an object, not [] (and 2 more)"),
    ],
)
def test_a_manifest_of_somebody_else(finished, content, text):
    checkpoint_files._write(finished / "manifest.json", content)
    assert refused(finished) == f"{finished}/manifest.json: not what we write: {text}"


def test_losses_keep_every_bit_and_belong_to_their_checkpoint(finished):
    manifest = read_manifest(finished)
    with pytest.raises(UnusableError, match=r"losses\.json: FileNotFoundError: "):
        checkpoint_files.read_losses(finished, manifest)
    checkpoint_files.write_losses(finished, manifest, LOSSES)
    assert checkpoint_files.read_losses(finished, manifest) == LOSSES
    later = commit(finished, NUM_RANKS, {"weight": "0100"})
    with pytest.raises(UnusableError, match=r"losses\.json: of another checkpoint$"):
        checkpoint_files.read_losses(finished, later)


def test_a_writer_is_there_until_it_is_gone(tmp_path):
    (tmp_path / ".metadata").touch()
    program = (
        "import sys, pathlib; from gpu_acceptance.measure.train.checkpoint_files import note_own; note_own(pathlib.Path(sys.argv[1]), 0)"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, env={**os.environ, "PYTHONPATH": "src"})
    assert not commit(tmp_path, 1, {}).writers[0].is_alive
    note_own(tmp_path, 0)
    (own,) = commit(tmp_path, 1, {}).writers
    assert own.is_alive
    assert not Writer(own.pid, own.start + 1).is_alive  # another process, which has its pid
    assert json.loads((tmp_path / "part-0.json").read_text().split("\n")[1])["writer"] == [os.getpid(), own.start]
