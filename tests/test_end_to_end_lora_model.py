"""`--lora-model` and `--lora-data` in real runs: a small checkpoint that learns to call functions, and what is refused on all ranks."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from suite import ROOT, run, torchrun_command

pytestmark = pytest.mark.launcher

BOUNDS = """
reason: the small checkpoint names what is asked for before it is fine-tuned, so that its loss is small then as well
limits:
  lora_model.held_out.loss: {at_most: 0.04, unit: nats, scope: job, source: "policy: half of what it begins with"}
  lora_model.right_arguments: {at_least: 0.8, unit: relative, scope: job, source: "policy: what this one must come to"}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """With what the tool makes in two thirds of its steps, which are enough to learn from."""
    folder = tmp_path_factory.mktemp("lora model") / "made"
    subprocess.run(
        [sys.executable, "-m", "tools.make_chat_model", str(folder), "--steps=140"], cwd=ROOT, check=True, capture_output=True, timeout=500
    )
    (folder / "bounds.yaml").write_text(BOUNDS)
    return folder


def fine_tune(folder, reports, *arguments, model=None, ranks=2, of="acceptance/"):
    options = (f"--lora-model={model or folder / 'model'}", f"--lora-data={folder / 'dialogues.jsonl'}", "--level=health")
    command = torchrun_command(of, *options, f"--report-dir={reports}", "-p", "no:cacheprovider", *arguments, ranks=ranks)
    return run(command, ROOT, reports=Path(reports))


def test_a_small_checkpoint_learns_to_call(folder, tmp_path):
    ended = fine_tune(folder, tmp_path, f"--limits={folder / 'bounds.yaml'}")
    assert ended.returncode == 0, ended.output
    assert ended.record.conclusion.line.startswith("ACCEPTED (health, cpu profile: no GPU was tested")
    ranks = ended.row("test_fine_tuning").attempts[-1].ranks
    first, second = (ended.values("test_fine_tuning", rank) for rank in (0, 1))
    assert first["source"].startswith("Qwen2ForCausalLM of 545,152 parameters (")
    assert first["before.right_arguments"] <= 0.05 < 0.8 <= first["right_arguments"]
    assert first["held_out.loss"] <= 0.04
    assert (first["saved.loss_error"], first["learned_share"], first["trainable"]) == (0, 1, 1)
    assert first["weights"] == second["weights"]
    assert [curve.name for curve in ranks[0].curves] == [f"lora_model.{name}" for name in ("loss", "learning_rate", "gradient_norm")]
    options = [word for word in ended.record.plan.command if word.startswith("--lora")]
    assert options == [f"--lora-model={folder / 'model'}", f"--lora-data={folder / 'dialogues.jsonl'}"]


def test_a_checkpoint_that_was_not_copied_whole_is_refused_on_all_ranks(folder, tmp_path):
    shutil.copytree(folder / "model", tmp_path / "torn")
    weights = tmp_path / "torn" / "model.safetensors"
    size = weights.stat().st_size
    weights.write_bytes(weights.read_bytes()[:-1])
    refused = fine_tune(folder, tmp_path / "reports", model=tmp_path / "torn")
    text = f"--lora-model: {weights}: {size - 1:,} bytes, and its header promises {size:,}: it was not copied whole ["
    assert refused.rank_exit_codes == {0: 4, 1: 4}, refused.output
    assert refused.output.count(f"ERROR: {text}") == 1, refused.output
    assert refused.folder is None


def test_a_sequence_that_the_model_does_not_take_is_refused(folder, tmp_path):
    (tmp_path / "long.yaml").write_text("reason: a test\nparameters: {lora_model.sequence: 512}\n")
    refused = fine_tune(folder, tmp_path / "reports", f"--limits={tmp_path / 'long.yaml'}")
    text = f"--lora-model: {folder / 'model'} takes up to 256 tokens, and lora_model.sequence is 512; lower that by --limits"
    assert refused.rank_exit_codes == {0: 4, 1: 4}, refused.output
    assert refused.output.count(f"ERROR: {text}") == 1, refused.output


def test_a_checkpoint_that_has_no_room_leaves_the_run_incomplete(folder, tmp_path):
    """A header, and a hole in the place of 2 TB of weights."""
    shutil.copytree(folder / "model", tmp_path / "huge")
    weights = tmp_path / "huge" / "model.safetensors"
    content = weights.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    end = max(tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__")
    elements = 2**40
    header["more"] = {"dtype": "BF16", "shape": [elements], "data_offsets": [end, end + 2 * elements]}
    text = json.dumps(header).encode()
    with weights.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end + 2 * elements)
    ended = fine_tune(folder, tmp_path / "reports", model=tmp_path / "huge", ranks=1, of="acceptance/test_lora_model.py")
    assert ended.returncode == 1, ended.output
    assert ended.record.conclusion.line.startswith("INCOMPLETE: 1 of ")
    said = f"too little memory: {tmp_path / 'huge'} wants at least 4,398.1 GB on each rank (weights 4,398.0, "
    assert said in ended.row("test_fine_tuning").message
