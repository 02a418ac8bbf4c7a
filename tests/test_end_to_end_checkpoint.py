"""The shipped validations of checkpoint in real runs: a flipped byte, two nodes that share no folder, a folder that is not there."""

import os
import re

import pytest
from suite import extend_conftest, plain_pytest, shipped_suite, torchrun, two_nodes

pytestmark = pytest.mark.launcher

DRILL = """
reason: "a drill: is a flipped byte found, and is a sound checkpoint beside it gone on with?"
parameters: {checkpoint.planted_bytes: 1, checkpoint.planted_rank: 1}
"""
PREFIX = "gpu-acceptance-checkpoint-"
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
# What comes in the way after a run has begun.
BECOMES_A_FILE = """
import os
from pathlib import Path

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup():
    shared = Path({shared!r})
    if os.environ["RANK"] == "0" and shared.is_dir():
        shared.rmdir()
        shared.touch()
"""


@pytest.fixture
def suite(tmp_path):
    return shipped_suite(tmp_path / "suite", "checkpoint")


def test_a_flipped_byte_is_refused_and_the_checkpoint_beside_it_is_gone_on_with(suite, tmp_path):
    shared = tmp_path / "shared"
    old, foreign = shared / f"{PREFIX}old", shared / f"{PREFIX}foreign"
    for folder in (old, foreign):
        (folder / "ddp").mkdir(parents=True)
        (folder / "ddp" / "__0_0.distcp").touch()
    (old / ".gpu-acceptance-checkpoint").write_text('{"run_id": "old"}')
    for path in (old / "ddp", old / ".gpu-acceptance-checkpoint"):
        os.utime(path, (0, 0))
    (suite / "drill.yaml").write_text(DRILL)
    drill = torchrun(suite, "--limits=drill.yaml", f"--checkpoint-dir={shared}", env=ONE_THREAD)
    assert drill.returncode == 1, drill.output
    judgements = [one for row in drill.record.rows for one in row.judgements]
    missed, held = ({one.metric.removeprefix("checkpoint.") for one in judgements if one.status == status} for status in ("missed", "held"))
    assert missed == {"planted.bytes", "ddp.files.changed"}
    of_others = ("files.changed", "tensors.changed", "losses.differing", "fewer.tensors_changed", "fewer.loss_error")
    assert held == {"directory.shared", *(f"{way}.{name}" for way in ("fsdp", "lora") for name in of_others)}
    kept = shared / (PREFIX + drill.folder.name)
    where = rf"\(in {kept}/ddp: __1_0\.distcp: (\d+) bytes, sha256 (\w+); written were \1, (?!\2)\w+\)"
    assert re.match(rf"checkpoint\.ddp\.files\.changed = 1 count {where}, need <= 0 ", drill.row("test_resume").message), drill.row(
        "test_resume"
    ).message
    assert sorted(shared.iterdir()) == sorted([foreign, kept])  # it can be looked at
    assert (foreign / "ddp" / "__0_0.distcp").exists()


def test_a_checkpoint_of_which_nothing_is_wrong_is_removed_in_the_end(suite):
    ended = plain_pytest(suite, env=ONE_THREAD)
    assert ended.outcomes() == {"test_save": "passed", "test_resume": "passed"}, ended.output
    assert not list((suite / "reports").glob(f"{PREFIX}*"))


def test_a_folder_that_nodes_do_not_share_fails_on_the_node_that_does_not_see_it(tmp_path):
    nodes = []
    for number in range(2):
        folder = tmp_path / f"disk-{number}"
        folder.mkdir()
        own = shipped_suite(tmp_path / f"node-{number}", "checkpoint")
        extend_conftest(own, "import fixtures.checkpoint", "fixtures.checkpoint._VISIBLE_S = 0.2")
        nodes.append((own, (f"--checkpoint-dir={folder}", "-k", "test_save"), {}))
    run, other = two_nodes(*nodes)
    assert (run.returncode, other.returncode) == (1, 1), run.output + other.output
    message = run.row("test_save").message
    assert re.match(rf"checkpoint\.directory\.shared = false \(\S+: {tmp_path}/disk-1/{PREFIX}\S+\), need == true ", message), message
    assert "on rank 1 (" in message
    assert [list(folder.iterdir()) for folder in (tmp_path / "disk-0", tmp_path / "disk-1")] == [[], []]


def test_a_folder_that_rank_0_cannot_make_is_an_error_of_all_ranks_at_once(suite, tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    extend_conftest(suite, BECOMES_A_FILE.format(shared=str(shared)))
    ended = torchrun(suite, f"--checkpoint-dir={shared}", "-k", "test_save", env=ONE_THREAD)
    assert ended.outcomes_by_rank("test_save") == {0: "error", 1: "error"}, ended.output
    why = rf"OSError: \[Errno 20\] Not a directory: '{shared}/{PREFIX}\S+'; --checkpoint-dir=DIR names a folder with room, "
    assert re.match(rf"ranks 0-1: error in setup: OSError: rank 0: {why}", ended.row("test_save").message), ended.row("test_save").message


def test_a_folder_that_is_not_there_is_a_usage_error_on_its_node(suite):
    refused = plain_pytest(suite, "--checkpoint-dir=no")
    assert refused.returncode == 4, refused.output
    text = f"ERROR: --checkpoint-dir={suite}/no: No such file or directory; name a folder that is there on every node \\["
    assert re.search(text, refused.output), refused.output
    assert not refused.has_results
