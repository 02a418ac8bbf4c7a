"""LoRA on two real ranks (gloo) in its other ways: each comes to the curve of DDP, and what does not is told by the figure for it."""

import pytest
from gloo_ranks import answers_of

pytestmark = pytest.mark.slow

SMALL = ("alone", "fsdp", "recomputed")


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    return answers_of("lora/modes_ranks.py", 2, tmp_path_factory.mktemp("ranks"), str(tmp_path_factory.mktemp("folders")))


@pytest.mark.parametrize("way", SMALL)
def test_a_way_comes_to_the_curve_of_ddp(answers, way):
    for answer in answers:
        assert 0 <= answer["departures"][way] < 0.01
        assert answer["scales"][way] == pytest.approx(2, rel=0.01)
    assert not any(changed for answer in answers for changed in answer["base_changed"])


@pytest.mark.parametrize("way", ["fsdp", "recomputed"])
def test_its_ranks_come_to_the_same_adapters(answers, way):
    assert answers[0]["digests"][way] == answers[1]["digests"][way]


def test_a_rank_that_computes_otherwise_by_itself_is_told_alone(answers):
    sound, noisy = (answer["departures"]["noisy"] for answer in answers)
    assert sound < 0.01
    assert noisy > 0.05


def test_alone_a_rank_trains_the_share_of_all(answers):
    for answer in answers:
        assert answer["num_samples"]["alone"] == 2 * answer["num_samples"]["fsdp"] == 8


def test_fsdp_holds_half_of_the_moments(answers):
    for whole, part in (answer["optimizer_bytes"] for answer in answers):
        assert part == pytest.approx(whole / 2, rel=0.05)


def test_adapters_that_were_loaded_predict_as_those_that_were_saved(answers):
    for answer in answers:
        saved = answer["saved"]
        assert saved["loaded_loss"] == saved["loss"] < 0.9 * saved["base_loss"]
        assert {"adapter_config.json", "adapter_model.safetensors"} <= set(answer["files"])
        assert not [name for name in answer["files"] if name.endswith((".bin", ".pt", ".pkl"))]


def test_one_number_that_comes_back_as_another_is_told(answers):
    for answer in answers:
        spoiled = answer["spoiled"]
        assert abs(spoiled["loaded_loss"] / spoiled["loss"] - 1) > 1e-6
