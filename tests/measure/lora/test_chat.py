"""A checkpoint fine-tuned on two real ranks (gloo), judged by the shipped limits: sound but untaught, and with each fault."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from gloo_ranks import ROOT, answers_of
from made_checkpoints import TEMPLATE
from transformers import Qwen2Config, Qwen2ForCausalLM

from gpu_acceptance.measure.lora.chat import MissingWeightsError, Sizes, load, refuse_too_large
from gpu_acceptance.measure.lora.model_folder import Checkpoint
from gpu_acceptance.measure.lora.template import Template
from gpu_acceptance.measure.train.shapes import Adapter
from gpu_acceptance.measure.train.step import Schedule, TrainingMemoryError
from gpu_acceptance.record.outcome import Status
from gpu_acceptance.thresholds.levels import asked_for
from tests.judging import judgements_of, shipped_profile
from tools.made_dialogues import made

pytestmark = pytest.mark.slow

PROFILE = asked_for(shipped_profile("cpu"), "--lora-model")
UNTAUGHT = {"held_out.loss"}  # by three steps from random weights


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chat")
    command = [sys.executable, "-m", "tools.make_chat_model", str(folder / "made"), "--dialogues", "80", "--steps", "1"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    other = folder / "other.jsonl"
    other.write_text("\n".join(map(json.dumps, made(20, seed=1))))
    return answers_of("lora/chat_ranks.py", 2, folder, str(folder / "made" / "model"), str(folder / "made" / "dialogues.jsonl"), str(other))


def judged(answers, name):
    found = judgements_of(PROFILE, [answer[name]["checked"] for answer in answers], "lora_model", has_gpus=False)
    return {metric.removeprefix("lora_model."): judgement for metric, judgement in found.items()}


def wrong(answers, name):
    return {metric for metric, judgement in judged(answers, name).items() if judgement.status == Status.MISSED}


def test_what_is_sound_misses_only_what_it_was_not_taught(answers):
    assert wrong(answers, "sound") == UNTAUGHT
    unjudged = {metric for metric, one in judged(answers, "sound").items() if one.status not in {Status.HELD, Status.MISSED}}
    assert unjudged == {"rate"}  # a CPU has none to come to
    assert not judged(answers, "sound").keys() & {"right_arguments", "right"}


def test_answers_without_one_call_are_an_error_and_no_score(answers):
    said = r"no call could be parsed, \d of 3 answers try to call; \d calls were expected: there is nothing to score"
    assert [bool(re.fullmatch(said, answer["sound"]["error"])) for answer in answers] == [True, True]


@pytest.mark.parametrize(
    ("fault", "missed"),
    [
        ("prompts_count", {"learned_share"}),
        ("others_are_seen", {"packing_error"}),
        ("base_not_frozen", {"trainable", "base_changed", "saved.loss_error"}),
        ("scaled_twice", {"scale", "saved.loss_error"}),
        ("not_synchronised", {"weights"}),
        ("spoiled", {"saved.loss_error"}),
    ],
)
def test_each_fault_is_caught(answers, fault, missed):
    assert wrong(answers, fault) - UNTAUGHT - {"held_out.loss_ratio"} == missed


def test_ranks_with_other_data_do_not_train(answers):
    said = r"ranks have different training data: .+ on rank 0, .+ on rank 1; --lora-model and --lora-data must name the same .+"
    for answer in answers:
        assert re.fullmatch(said, answer["other_data"]["error"])
        assert answer["other_data"]["checked"] == []


# --- a checkpoint from its folder ------------------------------------------------------------------------------------------------

CPU = torch.device("cpu")
SIZES = {"hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 16, "vocab_size": 20}


def checkpoint(folder, num_parameters, vocabulary, num_ends):
    return Checkpoint(folder, "Qwen2ForCausalLM", num_parameters, 0, ("F32",), 64, vocabulary, num_ends, Template(TEMPLATE, {}), "")


@pytest.fixture
def saved(tmp_path):
    Qwen2ForCausalLM(Qwen2Config(num_hidden_layers=1, **SIZES)).save_pretrained(tmp_path)
    return checkpoint(tmp_path, 10**3, 20, 100)


def test_all_weights_are_of_one_dtype(saved):
    for in_bf16, dtype in ((True, torch.bfloat16), (False, torch.float32)):
        assert {weights.dtype for weights in load(saved, CPU, in_bf16=in_bf16).parameters()} == {dtype}


def test_weights_that_are_not_there_are_not_drawn_at_random(saved):
    config = json.loads((saved.folder / "config.json").read_text())
    (saved.folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 2, "layer_types": ["full_attention"] * 2}))
    with pytest.raises(MissingWeightsError) as caught:
        load(saved, CPU, in_bf16=False)
    missing = "model.layers.1.input_layernorm.weight"
    text = f"{saved.folder}: its config wants 12 tensors that are not in its files, such as {missing}"
    assert str(caught.value) == text


def test_a_checkpoint_that_has_no_room_is_told_before_it_is_loaded():
    sizes = Sizes(Adapter(64, 128), Schedule(2, 1, 0.1), 1024, 2, 1, 1, 1, recomputes=False, host_bytes=12_300_000_000)
    with pytest.raises(TrainingMemoryError) as caught:
        refuse_too_large(checkpoint(Path("huge"), 10**14, 10**5, 10**6), sizes, CPU)
    text = (
        "too little memory: huge wants at least 200,002.7 GB on each rank (weights 200,000.0, adapters 1.0, logits 1.6), and "
        "12.3 GB are free; lower lora_model.batch_size or lora_model.sequence, or use larger GPUs"
    )
    assert str(caught.value) == text
    refuse_too_large(checkpoint(Path("small"), 10**5, 100, 100), sizes, CPU)
