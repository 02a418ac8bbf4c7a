"""Training with DDP on two real ranks (gloo): what is told of it, a rank with weights of its own, and one that computes slowly."""

import pytest
from gloo_ranks import answers_of

pytestmark = pytest.mark.slow

NUM_PARAMETERS = 118_528  # 2 layers of 12 x 64^2 + 13 x 64, tokens 256 x 64, places 32 x 64, the last norm 128
NUM_TENSORS = 2 * 12 + 4


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    return answers_of("train/training_ranks.py", 2, tmp_path_factory.mktemp("ranks"), "ddp")


def test_what_a_model_is_made_of_is_counted(answers):
    for answer in answers:
        sound = answer["sound"]
        assert sound["num_parameters"] == NUM_PARAMETERS == 2 * (12 * 64**2 + 13 * 64) + 256 * 64 + 32 * 64 + 128
        assert sound["gradient_bytes"] == 4 * NUM_PARAMETERS
        assert sound["optimizer_bytes"] == 2 * 4 * NUM_PARAMETERS + 4 * NUM_TENSORS  # two moments in fp32, and a count of steps


def test_steps_without_reduction_are_forgotten(answers):
    """Their gradients differ from rank to rank: one of them that stayed would leave other weights."""
    assert answers[0]["sound"]["digest"] == answers[1]["sound"]["digest"]
    assert answers[0]["sound"]["num_steps"] == answers[1]["sound"]["num_steps"]


def test_the_loss_falls(answers):
    assert all(0.1 < answer["sound"]["loss_ratio"] < 0.95 for answer in answers)


def test_weights_that_part_have_another_digest(answers):
    assert answers[0]["apart"]["digest"] != answers[1]["apart"]["digest"]


def test_a_slow_rank_shows_in_what_it_computes_and_not_in_the_communication(answers):
    (_, first), (_, second) = (answer["slow"]["rates"] for answer in answers)
    assert second < first
    for answer in answers:
        assert answer["slow"]["spread_efficiency"] < 0.8 < answer["slow"]["communication_efficiency"]
        assert answer["slow"]["rates"][0] < first  # all wait for it


def test_what_reducing_takes_is_what_a_step_takes_longer(answers):
    exposed_s, step_s = answers[0]["sound"]["exposed"]
    assert answers[0]["sound"]["communication_efficiency"] == pytest.approx(1 - exposed_s / step_s)


def test_its_arithmetic_is_counted(answers):
    """6 (N - N_embedding) + 12 L d s for a token, of which there are 4 x 32 in a step."""
    sound = answers[0]["sound"]
    flop = 6 * (NUM_PARAMETERS - 32 * 64) + 12 * 2 * 64 * 32
    assert sound["tflop_per_s"] == pytest.approx(sound["rates"][0] * flop / 1e12, rel=0.02)  # biases and norms multiply nothing
