"""Training on one rank, and with DDP and FSDP on two real ones (gloo): what is told of it, soundly and with faults."""

from dataclasses import replace

import pytest
import torch
from gloo_ranks import answers_of

from gpu_acceptance.measure.train import throughput
from gpu_acceptance.measure.train.models import shard_bytes
from gpu_acceptance.measure.train.shapes import Decoder, ResNet, Workload
from gpu_acceptance.measure.train.step import TrainingMemoryError
from gpu_acceptance.measure.train.throughput import Times

pytestmark = pytest.mark.slow

NUM_PARAMETERS = 2 * (12 * 64**2 + 13 * 64) + 256 * 64 + 32 * 64 + 128  # 2 layers, tokens, places, the last norm
NUM_TENSORS = 2 * 12 + 4
WAYS = ("by_block", "whole")


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    return answers_of("train/throughput_ranks.py", 2, tmp_path_factory.mktemp("ranks"))


# --- on one rank ---------------------------------------------------------------------------------------------------------------

GPT2 = Workload("gpt2", Decoder("gpt2", 1, 64, 2, 64, 16), 2, "train.gpt2.batch_size")
RESNET = Workload("resnet", ResNet(18, 32, 2), 4, "train.resnet.batch_size")


def measured(workload, agree=int):
    times = Times(warmup_s=0.01, block_s=0.01, num_blocks=3, min_iterations=4)
    return throughput.measure_alone(workload, rank=0, device=torch.device("cpu"), compiled=False, times=times, agree=agree)


@pytest.mark.parametrize(("workload", "unit", "items"), [(GPT2, "tokens/s", 2 * 16), (RESNET, "images/s", 4)])
def test_a_rate_counts_what_was_trained(workload, unit, items):
    trained, steps_s = measured(workload)
    assert trained.workload.unit == unit
    assert trained.items_per_s == pytest.approx(items / trained.step_s)
    assert min(steps_s) > 0
    assert len(steps_s) == 40
    assert trained.begin_s < trained.end_s
    assert len(trained.losses) >= 3 * 4 + 40  # blocks, and steps by themselves
    assert 0 < trained.loss_ratio < 1


def test_ranks_begin_their_blocks_together_and_make_as_many_steps():
    asked = []
    trained, _ = measured(GPT2, agree=lambda number: asked.append(number) or max(number, 7))
    assert asked.count(0) >= 3 + 3  # in front of each block
    assert len(trained.losses) >= 3 * 7 + 40


def test_too_little_memory_is_told_with_what_to_lower():
    with pytest.raises(TrainingMemoryError) as caught:
        measured(replace(GPT2, batch_size=2**40))  # tokens of 150 TB: no machine promises so much
    said = "out of memory: gpt2 with a batch of 1099511627776 on each rank; on a CPU; lower train.gpt2.batch_size or use more GPUs"
    assert str(caught.value) == said


def test_any_other_error_stays_what_it_is():
    with pytest.raises(RuntimeError, match=r"^another$"):
        measured(GPT2, agree=lambda number: (_ for _ in ()).throw(RuntimeError("another")))


# --- DDP -----------------------------------------------------------------------------------------------------------------------


def test_a_model_is_counted_and_learns(answers):
    """6 (N - N_embedding) + 12 L d s FLOP for a token, of which there are 4 x 32 in a step."""
    for answer in answers:
        sound = answer["ddp"]
        assert sound["num_parameters"] == NUM_PARAMETERS
        assert sound["gradient_bytes"] == 4 * NUM_PARAMETERS
        assert sound["optimizer_bytes"] == 2 * 4 * NUM_PARAMETERS + 4 * NUM_TENSORS  # two moments in fp32, and a count of steps
        assert all(0.1 < answer[way]["loss_ratio"] < 0.95 for way in ("ddp", *WAYS))
        flop = 6 * (NUM_PARAMETERS - 32 * 64) + 12 * 2 * 64 * 32
        assert sound["tflop_per_s"] == pytest.approx(sound["rates"][0] * flop / 1e12, rel=0.02)  # biases and norms multiply nothing


@pytest.mark.parametrize("way", ["ddp", "replicas"])
def test_ranks_come_to_the_same_bits_or_are_told_apart(answers, way):
    """Gradients of steps without reduction differ from rank to rank: one of them that stayed would leave other weights."""
    first, second = answers
    assert first[way]["digest"] == second[way]["digest"]
    assert first[f"{way} apart"]["digest"] != second[f"{way} apart"]["digest"]
    assert first["ddp"]["num_steps"] == second["ddp"]["num_steps"]


def test_a_slow_rank_shows_in_what_it_computes_and_not_in_the_communication(answers):
    (_, first), (_, second) = (answer["ddp slow"]["rates"] for answer in answers)
    assert second < first
    for answer in answers:
        assert answer["ddp slow"]["spread_efficiency"] < 0.8 < answer["ddp slow"]["communication_efficiency"]
        assert answer["ddp slow"]["rates"][0] < first  # all wait for it


def test_what_reducing_takes_is_what_a_step_takes_longer(answers):
    exposed_s, step_s = answers[0]["ddp"]["exposed"]
    assert answers[0]["ddp"]["communication_efficiency"] == pytest.approx(1 - exposed_s / step_s)


# --- FSDP ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_each_rank_holds_its_part_of_parameters_and_moments(answers, way):
    for answer in answers:
        found = answer[way]
        assert found["num_parameters"] == NUM_PARAMETERS
        assert found["held_bytes"] == pytest.approx(3 * 4 * NUM_PARAMETERS / 2, rel=0.01)
        assert found["held"] == 1
        assert found["peak_bytes"] == 0  # a CPU does not tell


@pytest.mark.parametrize(("fault", "held"), [("unsharded", 2), ("without moments", 1 / 3)])
def test_too_much_and_too_little_is_told_though_it_trains(answers, fault, held):
    for answer in answers:
        assert answer[fault]["held"] == pytest.approx(held, rel=0.01)
        assert answer[fault]["loss_ratio"] < 0.95  # nothing else would tell


@pytest.mark.parametrize(("num_rows", "num_shards"), [(768, 16), (768, 15), (100, 7), (5, 4), (3, 8)])
def test_a_shard_is_what_torch_cuts(num_rows, num_shards):
    """Weight and two moments of 4 bytes each, and a count of steps; of 768 rows the last of 15 ranks has 40, the others have 52."""
    parts = [3 * 4 * part.numel() + 4 for part in torch.empty(num_rows, 2).chunk(num_shards)]
    promised = [shard_bytes(torch.Size([num_rows, 2]), shard, num_shards) for shard in range(num_shards)]
    assert promised == [*parts, *[4] * (num_shards - len(parts))]
