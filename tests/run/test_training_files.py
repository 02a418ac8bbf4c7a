"""Folders and files that training reads and writes."""

import json
import math
import os
import subprocess
import sys

import numpy as np
import pytest
from judging import make_job, make_limit, make_profile, make_record
from needs import is_root
from waiting import wait_until

from fixtures.training import refuse_unlike
from gpu_acceptance.base.guard import remove_checkpoint, remove_within
from gpu_acceptance.control.rank import RefusedError
from gpu_acceptance.record.figure import make_figure
from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.record.row import Attempt
from gpu_acceptance.run.training_files import (
    OLD_S,
    are_evidence,
    folder_of,
    make,
    make_anew,
    refuse_unusable_paths,
    remove_old,
    sees,
)
from gpu_acceptance.verdict.rows import make_row
from gpu_acceptance.worker.options import Paths

WRITTEN = ("ddp/__0_0.distcp", "ddp/.metadata", "ddp/.metadata.tmp", "ddp/part-0.json", "ddp/manifest.json.tmp", "fsdp/losses.json")


@pytest.fixture
def folder(tmp_path):
    """The folder of a run, with a checkpoint in it."""
    return made_folder(tmp_path, "a-run")


def made_folder(parent, run_id, *, age_s=0):
    own = folder_of(run_id, parent, parent, 1)
    make(own, "mark")
    for name in WRITTEN:
        (own / name).parent.mkdir(exist_ok=True)
        (own / name).touch()
    for path in own.iterdir():
        moment = path.stat().st_mtime - age_s
        os.utime(path, (moment, moment))
    return own


def all_under(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize("patience_s", [60, 0])
def test_a_checkpoint_is_removed_by_a_process_that_is_awaited_for_a_limited_time(folder, patience_s):
    remove_within(folder, patience_s)
    if patience_s:
        assert not folder.exists()
    else:
        assert folder.exists()  # Python has not even begun
        assert wait_until(lambda: not folder.exists())


def refusal(**paths):
    with pytest.raises(RefusedError) as caught:
        refuse_unusable_paths(Paths(**paths))
    assert caught.value.exit_code == 4
    return str(caught.value)


def test_without_paths_there_is_nothing_to_say():
    assert refuse_unusable_paths(Paths()) == ("", None)


@pytest.mark.parametrize("option", ["--checkpoint-dir", "--shared-dir"])
def test_a_folder_that_is_good_missing_or_a_file(tmp_path, option):
    key = option.strip("-").replace("-", "_")
    assert refuse_unusable_paths(Paths(**{key: tmp_path})) == ("", None)
    missing = f"{option}={tmp_path}/no: No such file or directory; name a folder that is there on every node"
    assert refusal(**{key: tmp_path / "no"}) == missing
    (tmp_path / "file").touch()
    assert refusal(**{key: tmp_path / "file"}) == f"{option}={tmp_path}/file: not a folder; name one that is there on every node"


@pytest.mark.needs(*(("privileged",) if is_root() else ()))
def test_a_folder_that_cannot_be_written(tmp_path):
    if is_root():  # who may write everywhere, but not on what is mounted read-only
        subprocess.run(["mount", "-t", "tmpfs", "-o", "ro,size=1m", "tmpfs", str(tmp_path)], check=True)
    else:
        tmp_path.chmod(0o500)
    try:
        assert refusal(checkpoint_dir=tmp_path) == f"--checkpoint-dir={tmp_path}: not writable; name a folder that is, on every node"
    finally:
        if is_root():
            subprocess.run(["umount", str(tmp_path)], check=True)


def test_several_nodes_have_none_that_was_not_named(tmp_path):
    named, beside = tmp_path / "named", tmp_path / "reports"
    assert folder_of("7", named, beside, 1) == folder_of("7", named, beside, 2) == named / "gpu-acceptance-checkpoint-7"
    assert folder_of("7", None, beside, 1) == beside / "gpu-acceptance-checkpoint-7"
    assert folder_of("7", None, beside, 2) is None


def test_who_sees_the_folder_knows_the_mark(folder, tmp_path):
    assert sees(folder, "mark", within_s=0)
    assert not sees(folder, "another", within_s=0)
    assert not sees(tmp_path / "elsewhere" / folder.name, "mark", within_s=0)


def test_all_that_we_wrote_is_removed(folder, tmp_path):
    remove_checkpoint(folder)
    assert all_under(tmp_path) == []
    remove_checkpoint(folder)


ALLOWED = "; --checkpoint-dir=DIR names a folder with room, in which rank 0 may write and remove"


def test_made_anew_it_holds_its_marker_alone(folder):
    assert make_anew(folder, "another") == []
    assert all_under(folder) == [".gpu-acceptance-checkpoint"]
    assert sees(folder, "another", within_s=0)


def test_where_it_cannot_be_made_the_error_says_what_is_allowed(tmp_path):
    (tmp_path / "file").touch()
    own = folder_of("a-run", tmp_path / "file", tmp_path, 1)
    with pytest.raises(OSError, match="Not a directory") as caught:
        make_anew(own, "mark")
    assert str(caught.value) == f"[Errno 20] Not a directory: '{own}'{ALLOWED}"


# In a process none of whose files may grow: a full disk does the same, to root as well.
NO_ROOM = """
import resource, sys
from pathlib import Path
from gpu_acceptance.run.training_files import make_anew
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
try:
    make_anew(Path(sys.argv[1]), "mark")
except OSError as error:
    print(error)
"""


def test_without_room_for_its_marker_nothing_is_left(tmp_path):
    own = folder_of("a-run", tmp_path, tmp_path, 1)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", NO_ROOM, str(own)], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == f"[Errno 27] File too large{ALLOWED}\n"
    assert all_under(tmp_path) == []


def test_a_foreign_file_stays_and_so_does_its_folder(folder):
    (folder / "ddp" / "notes.txt").touch()
    (folder / "ddp" / "part-1.json").symlink_to(folder / "ddp" / "notes.txt")
    (folder / "mine").mkdir()
    remove_checkpoint(folder)
    assert all_under(folder) == [".gpu-acceptance-checkpoint", "ddp", "ddp/notes.txt", "ddp/part-1.json", "mine"]


def test_no_link_is_followed(folder, tmp_path):
    other = tmp_path / "other"
    folder.rename(other)
    folder.symlink_to(other)
    before = all_under(other)
    remove_checkpoint(folder)
    assert all_under(other) == before
    inside = made_folder(tmp_path, "b-run")
    for name in ("__0_0.distcp", ".metadata", ".metadata.tmp", "part-0.json", "manifest.json.tmp"):
        (inside / "ddp" / name).unlink()
    (inside / "ddp").rmdir()
    (inside / "ddp").symlink_to(other / "ddp")
    remove_checkpoint(inside)
    assert all_under(other) == before
    assert all_under(inside) == [".gpu-acceptance-checkpoint", "ddp"]


@pytest.mark.parametrize("run_id", ["a-run", "None"])
@pytest.mark.parametrize("marker", [None, "a link", "{", "[]", '{"run_id": "another"}', '{"run_id": ["a-run"]}'])
def test_without_our_marker_it_is_not_ours(tmp_path, run_id, marker):
    folder = made_folder(tmp_path, run_id)
    path = folder / ".gpu-acceptance-checkpoint"
    path.rename(tmp_path / "marker")
    if marker == "a link":
        path.symlink_to(tmp_path / "marker")
    elif marker is not None:
        path.write_text(marker)
    before = all_under(folder)
    remove_checkpoint(folder)
    assert all_under(folder) == before
    with pytest.raises(FileExistsError, match=r"\(no marker \.gpu-acceptance-checkpoint\); refusing to use it$"):
        make(folder, "mark")


def test_old_ones_of_former_runs_are_removed_and_nothing_else(folder, tmp_path):
    made_folder(tmp_path, "old", age_s=OLD_S + 60)
    young = made_folder(tmp_path, "young", age_s=OLD_S - 60)
    foreign = tmp_path / "gpu-acceptance-checkpoint-foreign"
    foreign.mkdir()
    (foreign / "__0_0.distcp").touch()
    os.utime(foreign / "__0_0.distcp", (0, 0))
    renamed = made_folder(tmp_path, "renamed", age_s=OLD_S + 60).rename(tmp_path / "gpu-acceptance-checkpoint-other")
    (tmp_path / "gpu-acceptance-checkpoint-link").symlink_to(renamed)
    (tmp_path / "gpu-acceptance-checkpoint-file").write_text(json.dumps({"run_id": "file"}))
    kept = {str(path) for other in (folder, young, foreign, renamed) for path in other.rglob("*")}
    assert remove_old(folder) == ["gpu-acceptance-checkpoint-old"]
    assert kept <= {str(path) for path in tmp_path.rglob("*")}
    assert sorted(path.name.removeprefix("gpu-acceptance-checkpoint-") for path in tmp_path.iterdir()) == [
        *("a-run", "file", "foreign", "link", "other", "young")
    ]
    assert remove_old(folder) == []


ERROR, CHANGED = "checkpoint.ddp.fewer.loss_error", "checkpoint.ddp.files.changed"
SAVE, RESUME = (f"acceptance/test_checkpoint.py::test_{name}" for name in ("save", "resume"))
PROFILE = make_profile(make_limit(ERROR, at_most=1e-4, unit="relative"), make_limit(CHANGED, at_most=0, unit="count"))
JOB = make_job(2)


def row(value, outcome=Outcome.PASSED, *, nodeid=RESUME, waivers=None, measure_only=False):
    figures = (make_figure(ERROR, value, "relative", judged=True), make_figure(CHANGED, 0, "count", judged=True))
    ranks = tuple(make_record(rank, outcome if rank else Outcome.PASSED, figures) for rank in range(2))
    return make_row(nodeid, [Attempt(number=1, ranks=ranks)], PROFILE, JOB, waivers or {}, 60, measure_only=measure_only)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([row(0.0, nodeid=SAVE), row(9e-5)], False),
        ([row(0.0, nodeid=SAVE), row(2e-4)], True),
        ([row(math.nan)], True),
        ([row(2e-4, waivers={ERROR: "known"})], True),
        ([row(9e-5, measure_only=True)], False),
        ([row(2e-4, measure_only=True)], True),
        *(([row(0.0, one)], True) for one in (Outcome.ERROR, Outcome.DIED, Outcome.STUCK, Outcome.INTERRUPTED, Outcome.FAILED)),
        ([row(0.0).model_copy(update={"outcome": Outcome.NOT_APPLICABLE})], False),
        ([row(2e-4).model_copy(update={"subject": "corruption"}), row(0.0)], False),
    ],
)
def test_checkpoints_are_evidence_where_their_row_is_bad_or_a_limit_was_missed(rows, expected):
    """A limit also counts where it was waived, or not judged."""
    assert are_evidence(rows, PROFILE, JOB) is expected


WANTED = "wanted on every node: tokens.npy (an array of token ids), images/CLASS/FILE, or both"


@pytest.fixture
def with_tokens(tmp_path):
    np.save(tmp_path / "tokens.npy", np.zeros(1500, np.uint16))
    return tmp_path


@pytest.fixture
def with_images(tmp_path):
    (tmp_path / "images" / "a").mkdir(parents=True)
    (tmp_path / "images" / "a" / "0.jpg").touch()
    return tmp_path


def test_training_data_of_every_model_are_named(tmp_path, with_tokens):
    always = "parity, checkpoint, lora_convergence and lora_modes: always synthetic"
    tokens = f"gpt2 and llama: {tmp_path}/tokens.npy (1,500 tokens)"
    assert refuse_unusable_paths(Paths(data_dir=tmp_path))[0] == f"{tokens}; resnet: synthetic; {always}"
    (tmp_path / "images" / "a").mkdir(parents=True)
    (tmp_path / "images" / "a" / "0.jpg").touch()
    assert refuse_unusable_paths(Paths(data_dir=tmp_path))[0] == f"{tokens}; resnet: {tmp_path}/images; {always}"
    (tmp_path / "tokens.npy").unlink()
    assert refuse_unusable_paths(Paths(data_dir=tmp_path))[0] == f"gpt2 and llama: synthetic; resnet: {tmp_path}/images; {always}"


def test_a_folder_without_data(tmp_path):
    assert refusal(data_dir=tmp_path) == f"--data-dir: {tmp_path}: holds neither tokens.npy nor images; {WANTED}"
    (tmp_path / "file").touch()
    for name in ("no", "file", "x" * 300):
        assert refusal(data_dir=tmp_path / name) == f"--data-dir: {tmp_path}/{name}: no folder that can be read; {WANTED}"


def test_one_kind_of_wrong_data_is_refused_beside_sound_data(with_tokens, with_images):
    (with_images / "images" / "a" / "0.jpg").unlink()
    assert refusal(data_dir=with_tokens).startswith(f"--data-dir: {with_tokens}/images: 1 class folders, and no image in them; wanted: ")
    (with_tokens / "tokens.npy").unlink()
    (with_tokens / "tokens.npy").symlink_to("nowhere")
    assert refusal(data_dir=with_tokens).startswith(f"--data-dir: {with_tokens}/tokens.npy: cannot be read: ")


def test_images_without_a_decoder(with_images, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    install = f"{sys.executable} -m pip install Pillow"
    assert (
        refusal(data_dir=with_images)
        == f"--data-dir: {with_images}/images: images are decoded by Pillow, which is not installed: {install}"
    )


def test_ranks_that_would_train_on_different_data():
    refuse_unlike(["synthetic"] * 3)
    seen = "ranks have different training data: a on rank 0, b on rank 1"
    with pytest.raises(RuntimeError, match=f"^{seen}; --lora-model and --lora-data must name the same data on every node$"):
        refuse_unlike(["a", "b"], "--lora-model and --lora-data")
    with pytest.raises(RuntimeError) as caught:
        refuse_unlike(["tokens.npy: 9 tokens", "tokens.npy: 9 tokens", "synthetic", "tokens.npy: 8 tokens"])
    seen = "tokens.npy: 9 tokens on rank 0, synthetic on rank 2"
    assert str(caught.value) == f"ranks have different training data: {seen}; --data-dir must name the same data on every node"
