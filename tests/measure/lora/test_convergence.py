"""LoRA on real ranks (gloo), judged by the shipped limits for CPUs, sound and with each fault; and its other ways beside DDP."""

import math

import pytest
import torch
from gloo_ranks import answers_of

from gpu_acceptance.measure.lora.convergence import departure, measure
from gpu_acceptance.measure.train.shapes import Decoder, Workload
from gpu_acceptance.measure.train.step import Schedule
from gpu_acceptance.record.outcome import Status
from tests.judging import judgements_of, shipped_profile

pytestmark = pytest.mark.slow

PROFILE = shipped_profile("cpu")
EARLY = {"excess"}  # too few steps to come to the floor


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Answers of three ranks; the first two, and the third, also train without the others."""
    return answers_of("lora/lora_ranks.py", 3, tmp_path_factory.mktemp("ranks"), "sound")


@pytest.fixture(scope="module")
def faults(tmp_path_factory):
    """Faults on two ranks, in a launch of their own, so that none takes minutes beside other tests."""
    return answers_of("lora/lora_ranks.py", 2, tmp_path_factory.mktemp("ranks"), "faults")


@pytest.fixture(scope="module")
def two(answers, faults):
    return [{**sound, **faulty} for sound, faulty in zip(answers, faults, strict=False)]


def judged(answers, name):
    """Metric without its first word -> how it stands."""
    found = judgements_of(PROFILE, [answer[name]["checked"] for answer in answers], "lora_convergence", has_gpus=False)
    return {metric.removeprefix("lora_convergence."): judgement for metric, judgement in found.items()}


def wrong(answers, name):
    held = {Status.HELD, Status.NOT_APPLICABLE}  # a CPU has no peak, so that there is no MFU
    return {metric: judgement.status for metric, judgement in judged(answers, name).items() if judgement.status not in held}


def test_what_is_sound_holds_every_limit(two):
    found = judged(two, "sound")
    assert wrong(two, "sound") == {}, found
    wanted = {metric.removeprefix("lora_convergence.") for metric in PROFILE.limits if metric.startswith("lora_convergence.")}
    assert set(found) == wanted | {"mfu"}


def test_a_hopeless_rate_is_told_without_the_curve_that_it_takes_too_long_to_draw(two):
    found = judged(two, "every step is hopeless")
    assert wrong(two, "every step is hopeless") == {}  # the limit of this rate for CPUs is not a hopeless one
    told = {"first_loss", "excess", "rise", "not_finite", "gradient_norm", "samples_missing", "loss_ratio"}
    assert set(judged(two, "sound")) - set(found) == told
    assert 3 <= len(two[0]["every step is hopeless"]["curves"]["lora_convergence.loss"]) <= 16
    assert len(two[0]["hopeless on rank 0 alone"]["curves"]["lora_convergence.loss"]) == 16


def test_what_is_recorded_and_drawn(two):
    """Curves come from rank 0 alone."""
    last, floor = (two[0]["sound"]["recorded"][f"lora_convergence.{what}"] for what in ("last_loss", "floor"))
    assert last[1] == floor[1] == "nats"
    assert math.log(4) < floor[0] < last[0] < floor[0] + 0.25
    assert "lora_convergence.departure" not in two[0]["sound"]["recorded"]  # there is no reference
    curves = two[0]["sound"]["curves"]
    names = {"lora_convergence.loss", "lora_convergence.learning_rate", "lora_convergence.gradient_norm"}
    assert {name: len(curve) for name, curve in curves.items()} == dict.fromkeys(names, 80)
    assert max(curves["lora_convergence.learning_rate"]) == PROFILE.parameters["lora.learning_rate"]
    assert two[1]["sound"]["curves"] == {}


def test_one_two_and_three_ranks_train_the_same_curve(answers):
    one, two, three = (answers[rank][name]["curves"]["lora_convergence.loss"] for rank, name in ((2, "one"), (0, "two"), (0, "three")))
    assert departure(two, one) < 0.02
    assert departure(three, one) < 0.02
    told, unit = answers[0]["two"]["recorded"]["lora_convergence.departure"]
    assert (told, unit) == (pytest.approx(departure(two, three)), "relative")  # of which that of three was given as the reference
    assert wrong(answers, "three").keys() == wrong(answers[:2], "two").keys() == wrong(answers[2:], "one").keys() == EARLY


@pytest.mark.parametrize(
    ("fault", "metrics"),
    [
        ("rank 1 adds noise", {"weights"}),
        ("scaled twice", {"scale"}),
        ("base is trained", {"trainable", "base_changed"}),
        ("a gradient explodes", {"gradient_norm"}),
        ("all train the share of rank 0", {"samples_missing"}),
    ],
)
def test_a_fault_misses_its_own_limits_and_no_other(two, fault, metrics):
    found = wrong(two, fault)
    assert found.keys() - EARLY == metrics
    assert {found[metric] for metric in metrics} == {Status.MISSED}


def test_a_learning_rate_100_times_too_high(two):
    """Its loss of 16 steps is further from the floor than where it began to fall; on some CPUs it is no number any more."""
    found, excess = wrong(two, "100 times as fast"), value_of(two, "100 times as fast", "excess")
    expected = Status.INVALID if math.isnan(excess) else Status.MISSED
    assert found["loss_ratio"] == found["excess"] == expected
    assert not excess <= value_of(two, "two", "excess") + 1


def test_labels_that_are_shifted_cannot_be_learned(two):
    assert wrong(two, "labels are shifted") == {"excess": Status.MISSED}
    assert value_of(two, "labels are shifted", "excess") > 1  # two steps ahead there are up to 16 successors


def test_labels_that_the_model_sees_are_learned_too_well(two):
    assert wrong(two, "labels are what is seen")["excess"] is Status.INVALID
    assert value_of(two, "labels are what is seen", "excess") < -0.02


def test_a_loss_that_is_no_number_is_counted_from_its_step_on(two):
    found = wrong(two, "rank 1 loses a loss")
    assert found["not_finite"] is Status.MISSED
    assert {found[metric] for metric in ("excess", "rise", "scale")} == {Status.INVALID}


def value_of(answers, name, metric):
    return next(value for told, value, *_ in answers[0][name]["checked"] if told == f"lora_convergence.{metric}")


@pytest.mark.parametrize(
    ("fault", "metric", "text"),
    [
        ("two", "first_loss", " nats, ln V + s^2 d / 2 is 6.2"),
        ("two", "excess", " in the last 10 steps, the least possible is 1.38"),
        ("scaled twice", "scale", ", alpha / rank is 2"),
        ("all train the share of rank 0", "samples_missing", "32 of 64 differ"),
    ],
)
def test_what_a_figure_is_made_of_stands_beside_it(two, fault, metric, text):
    details = {told: detail for told, *_, detail in two[0][fault]["checked"]}
    assert text in details[f"lora_convergence.{metric}"]


def test_a_shape_without_an_adapter():
    bare = Workload("small", Decoder("qwen2", 1, 8, 1, 64, 4), 1)
    with pytest.raises(ValueError, match=r"^small has no adapter: its shape must name one$"):
        measure(bare, Schedule(20, 2, 0.1), num_parts=1, compiled=False, device=torch.device("cpu"))


# --- alone, sharded, with recomputed activations, and saved ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def modes(faults):
    return [answer["modes"] for answer in faults]


@pytest.mark.parametrize("way", ["alone", "fsdp", "recomputed"])
def test_a_way_comes_to_the_curve_of_ddp(modes, way):
    for answer in modes:
        assert 0 <= answer["departures"][way] < 0.01
        assert answer["scales"][way] == pytest.approx(2, rel=0.01)
    assert not any(changed for answer in modes for changed in answer["base_changed"])


@pytest.mark.parametrize("way", ["fsdp", "recomputed"])
def test_its_ranks_come_to_the_same_adapters(modes, way):
    assert modes[0]["digests"][way] == modes[1]["digests"][way]


def test_a_rank_that_computes_otherwise_by_itself_is_told_alone(modes):
    sound, noisy = (answer["departures"]["noisy"] for answer in modes)
    assert sound < 0.01
    assert noisy > 0.05


def test_alone_a_rank_trains_the_share_of_all(modes):
    for answer in modes:
        assert answer["num_samples"]["alone"] == 2 * answer["num_samples"]["fsdp"] == 8


def test_fsdp_holds_half_of_the_moments(modes):
    for whole, part in (answer["optimizer_bytes"] for answer in modes):
        assert part == pytest.approx(whole / 2, rel=0.05)


def test_adapters_that_were_loaded_predict_as_those_that_were_saved(modes):
    for answer in modes:
        saved = answer["saved"]
        assert saved["loaded_loss"] == saved["loss"] < 0.9 * saved["base_loss"]
        assert {"adapter_config.json", "adapter_model.safetensors"} <= set(answer["files"])
        assert not [name for name in answer["files"] if name.endswith((".bin", ".pt", ".pkl"))]


def test_one_number_that_comes_back_as_another_is_told(modes):
    for answer in modes:
        spoiled = answer["spoiled"]
        assert abs(spoiled["loaded_loss"] / spoiled["loss"] - 1) > 1e-6
