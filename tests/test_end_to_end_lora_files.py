"""`--lora-model` and `--lora-data` in real runs: what a worker is told, and what is refused on all ranks before a device is opened."""

import json

import pytest
from checkpoints import make_checkpoint
from suite import make_suite, plain_pytest, torchrun

from gpu_acceptance.dialogues.made import made

pytestmark = pytest.mark.launcher


@pytest.fixture
def suite(tmp_path):
    """With a checkpoint and dialogues in it, which are meant from where pytest is started."""
    suite = make_suite(tmp_path / "suite", "fine_tunes")
    make_checkpoint(suite / "a model")
    (suite / "calls.jsonl").write_text("\n".join(map(json.dumps, made(12, seed=0))))
    return suite


def test_a_worker_is_told_what_to_fine_tune(suite):
    ended = plain_pytest(suite, "--lora-model=a model", "--lora-data=calls.jsonl")
    assert ended.returncode == 0, ended.output
    (row,) = [row for row in ended.record.rows if row.subject == "fine_tunes"]
    data, value = row.attempts[-1].ranks[0].figures
    assert data.value.startswith("Qwen2ForCausalLM of 26 parameters (")
    assert ") on 12 dialogues with " in data.value
    assert value.value == 12
    options = [word for word in ended.record.header.command if word.startswith("--lora")]
    assert options == ["--lora-model=a model", "--lora-data=calls.jsonl"]


def test_a_checkpoint_that_was_not_copied_whole_is_refused_on_all_ranks(suite):
    weights = suite / "a model" / "model.safetensors"
    size = weights.stat().st_size
    weights.write_bytes(weights.read_bytes()[:-1])
    refused = torchrun(suite, "--lora-model=a model", "--lora-data=calls.jsonl")
    text = f"--lora-model: {weights}: {size - 1} bytes, and its header promises {size}: it was not copied whole ["
    assert refused.rank_exit_codes == {0: 4, 1: 4}, refused.output
    assert refused.output.count(f"ERROR: {text}") == 1, refused.output
    assert refused.folder is None
