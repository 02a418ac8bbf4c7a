"""Models of known sizes, what they cost, and what there is to learn for them."""

import itertools
import math

import pytest
import torch

from gpu_acceptance.measure.train import data, models, throughput
from gpu_acceptance.measure.train.models import blocks_of, build
from gpu_acceptance.measure.train.shapes import Decoder, ResNet
from gpu_acceptance.measure.train.step import TrainStep
from gpu_acceptance.thresholds.parameter_relations import RESNET_DEPTHS

CPU, META = torch.device("cpu"), torch.device("meta")
GPT2 = Decoder("gpt2", 12, 768, 12, 50_257, 1_024)
LLAMA_3_8B = Decoder("llama", 32, 4_096, 32, 128_256, 8_192, num_kv_heads=8, mlp_width=14_336)
SMALL = [
    Decoder("gpt2", 2, 64, 2, 256, 32),
    Decoder("llama", 2, 64, 4, 256, 32, num_kv_heads=2, mlp_width=128),
    ResNet(18, 32, width=8),
    ResNet(50, 32, width=8),
]


def num_parameters(shape):
    return sum(parameter.numel() for parameter in build(shape, META).parameters())


@pytest.mark.parametrize(
    ("shape", "published", "num_blocks"),
    [
        (GPT2, 124_439_808, 12),
        (LLAMA_3_8B, 8_030_261_248, 32),
        (ResNet(18, 224), 11_689_512, 8),
        (ResNet(34, 224), 21_797_672, 16),
        (ResNet(50, 224), 25_557_032, 16),
        (ResNet(101, 224), 44_549_160, 33),
        (ResNet(152, 224), 60_192_808, 50),
    ],
)
def test_they_are_the_models_that_people_know(shape, published, num_blocks):
    """As their authors publish them."""
    assert num_parameters(shape) == published
    assert len(blocks_of(build(shape, META))) == num_blocks


def test_a_profile_may_name_the_depths_that_there_are():
    assert tuple(models.RESNETS) == RESNET_DEPTHS


@pytest.mark.slow
@pytest.mark.parametrize("shape", [GPT2, LLAMA_3_8B], ids=["gpt2", "llama"])
def test_a_decoder_costs_what_the_formula_says(shape):
    """6 (N - N_embedding) + 12 L d s for a token; the table of GPT-2's tokens multiplies at its end as well."""
    table = shape.vocabulary * shape.width
    embedding = shape.sequence * shape.width if shape.kind == "gpt2" else table
    formula = 6 * (num_parameters(shape) - embedding) + 12 * shape.num_layers * shape.width * shape.sequence
    assert throughput.flops_per_sample(shape) / shape.sequence == pytest.approx(formula, rel=0.001)


def test_an_image_costs_three_times_a_forward():
    """4.09e9 multiplications forward, as torchvision counts them; the first layer needs no gradient of its input."""
    assert throughput.flops_per_sample(ResNet(50, 224)) == pytest.approx(3 * 2 * 4.09e9, rel=0.015)


def steps_of(batches):
    return ([(1, batch)] for batch in itertools.cycle(batches))


@pytest.mark.slow
@pytest.mark.parametrize("shape", SMALL, ids=lambda shape: f"{type(shape).__name__}-{getattr(shape, 'kind', getattr(shape, 'depth', ''))}")
def test_each_learns(shape):
    torch.manual_seed(0)
    step = TrainStep(build(shape, CPU), steps_of(data.batches(shape, 8, 2, seed=0, device=CPU)), device=CPU)
    for _ in range(12):
        step()
    assert step.losses[-1] < 0.97 * step.losses[0]
    assert step.losses[0] == pytest.approx(math.log(256 if isinstance(shape, Decoder) else 1_000), rel=0.1)


def test_two_seeds_are_two_batches_of_the_same_chain():
    shape = Decoder("gpt2", 1, 8, 1, 64, 200)
    (one, _), (other, _) = (data.batches(shape, 8, 1, seed=seed, device=CPU)[0] for seed in (0, 1))
    assert not torch.equal(one, other)
    known = {pair for row in one.tolist() for pair in itertools.pairwise(row)}
    assert len({pair for row in other.tolist() for pair in itertools.pairwise(row)} - known) < 20


def test_an_image_is_of_its_class():
    ((images_BCHW, classes_B),) = data.batches(ResNet(18, 32), 64, 1, seed=0, device=CPU)
    assert (images_BCHW.shape, images_BCHW.dtype) == ((64, 3, 32, 32), torch.bfloat16)
    assert images_BCHW.is_contiguous(memory_format=torch.channels_last)
    again, other = (data.batches(ResNet(18, 32), 64, 1, seed=seed, device=CPU)[0] for seed in (0, 1))
    assert torch.equal(again[0], images_BCHW)
    assert not torch.equal(other[1], classes_B)
