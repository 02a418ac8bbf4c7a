"""Tiny checkpoints with templates of each kind train: on a real process group, judged by the shipped limits."""

import pytest
from gloo_ranks import answers_of

from gpu_acceptance.record.outcome import Status
from gpu_acceptance.thresholds.levels import asked_for
from tests.judging import judgements_of, shipped_profile

pytestmark = pytest.mark.slow

NAMES = ("Qwen2.5", "Qwen3", "Qwen3-Thinking", "Llama 3.1", "Mistral v0.3", "Mistral Nemo", "Gemma 3", "Phi-4", "GLM-4.6", "gpt-oss")
UNTAUGHT = {"held_out.loss", "held_out.loss_ratio"}  # by a few steps from random weights


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("templates")
    return answers_of("lora/template_ranks.py", 1, folder, str(folder), *NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_it_trains_and_what_it_learns_is_what_answers_say(answers, name):
    checked = answers[0][name]["checked"]
    found = judgements_of(asked_for(shipped_profile("cpu"), "--lora-model"), [checked], "lora_model", has_gpus=False)
    judged = {metric.removeprefix("lora_model."): judgement for metric, judgement in found.items()}
    missed = {metric for metric, judgement in judged.items() if judgement.status == Status.MISSED}
    assert missed <= UNTAUGHT, answers[0][name]["error"]
    assert {"dropped", "learned_share", "packing_error", "trainable", "saved.loss_error"} <= judged.keys()
    values = {metric: value for metric, value, *_ in checked}
    assert values["lora_model.dropped"] == values["lora_model.too_long"] == 0
    assert values["lora_model.held_out.loss_ratio"] < 1
