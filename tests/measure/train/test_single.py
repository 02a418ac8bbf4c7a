"""Training on one rank: what is told of it, and what is said where there is too little memory."""

from dataclasses import replace

import pytest
import torch

from gpu_acceptance.measure.train import throughput
from gpu_acceptance.measure.train.shapes import Decoder, ResNet, Workload
from gpu_acceptance.measure.train.throughput import Times
from gpu_acceptance.measure.train.tuned import TrainingMemoryError

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
TIMES = Times(warmup_s=0.01, block_s=0.01, num_blocks=3, min_steps=4)
GPT2 = Workload("gpt2", Decoder("gpt2", 1, 64, 2, 64, 16), 2, "train.gpt2.batch_size")
RESNET = Workload("resnet", ResNet(18, 32, 2), 4, "train.resnet.batch_size")


def measured(workload, agree=int):
    return throughput.measure_alone(workload, rank=0, device=CPU, compiled=False, times=TIMES, agree=agree)


@pytest.mark.parametrize(("workload", "unit", "items"), [(GPT2, "tokens/s", 2 * 16), (RESNET, "images/s", 4)])
def test_a_rate_counts_what_was_trained(workload, unit, items):
    found = measured(workload)
    trained = found.trained
    assert trained.workload.unit == unit
    assert trained.items_per_s == pytest.approx(items / trained.step_s)
    assert 0 < found.p50_s <= found.p99_s == max(found.steps_s)
    assert trained.begin_s < trained.end_s
    assert len(trained.losses) >= 3 * 4 + 40  # blocks, and steps by themselves
    assert 0 < trained.loss_ratio < 1


def test_ranks_begin_their_blocks_together_and_make_as_many_steps():
    asked = []
    found = measured(GPT2, agree=lambda number: asked.append(number) or max(number, 7))
    assert asked.count(0) >= 3 + 3  # in front of each block
    assert len(found.trained.losses) >= 3 * 7 + 40


def test_too_little_memory_is_told_with_what_to_lower():
    with pytest.raises(TrainingMemoryError) as caught:
        measured(replace(GPT2, batch_size=2**40))  # tokens of 150 TB: no machine promises so much
    said = "out of memory: gpt2 with a batch of 1099511627776 on each rank; on a CPU; lower train.gpt2.batch_size or use more GPUs"
    assert str(caught.value) == said


def test_any_other_error_stays_what_it_is():
    with pytest.raises(RuntimeError, match=r"^another$"):
        measured(GPT2, agree=lambda number: (_ for _ in ()).throw(RuntimeError("another")))
