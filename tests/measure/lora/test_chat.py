"""A checkpoint fine-tuned on two real ranks (gloo), judged by the shipped limits: sound but untaught, and with each fault."""

import json
import re
import subprocess
import sys

import pytest
from gloo_ranks import ROOT, answers_of

from gpu_acceptance.record.outcome import Status
from gpu_acceptance.thresholds.profile import asked_for, load_profile, shipped_dir
from tests.judging import judgements_of
from tools.made_dialogues import made

pytestmark = pytest.mark.slow

PROFILE = asked_for(load_profile("cpu", shipped_dir()), "--lora-model")
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
