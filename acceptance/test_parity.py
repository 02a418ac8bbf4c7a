"""Training on one GPU, with DDP and with FSDP gives the same losses, gradients and weights, in fp32 and bf16."""

from dataclasses import replace

import pytest

from gpu_acceptance.measure.corruption import repeat

pytestmark = [
    pytest.mark.needs("numpy", "transformers"),
    pytest.mark.worker(env=repeat.ENVIRONMENT),  # cuBLAS reads it at its first call
]


@pytest.mark.drill("a rank changes its weights after each step", "parity.*.weights", plant="weights")
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_training(dtype, ranks, workload, check, record, record_curve, parameter):
    """On the same global batch from the same weights: equal losses and gradients, and weights with the same bits on all ranks."""
    from gpu_acceptance.measure.train import parity  # it imports transformers, which supervisors do not need

    model = replace(workload("gpt2"), batch_size=parameter("parity.batch_size"), sized_by="parity.batch_size")
    found = parity.measure(model, dtype=dtype, num_steps=parameter("parity.num_steps"), device=ranks.device)
    check(f"parity.{dtype}.loss_ratio", found.loss_ratio, "relative")
    for way, apart in found.by_way.items():
        check(f"parity.{dtype}.{way}.loss_first", apart.loss_first.relative, "relative", detail=apart.loss_first.seen)
        check(f"parity.{dtype}.{way}.loss", apart.loss.relative, "relative", detail=apart.loss.seen)
        check(f"parity.{dtype}.{way}.gradient_norm", apart.gradient_norm.relative, "relative", detail=apart.gradient_norm.seen)
        check(f"parity.{dtype}.{way}.weights", apart.digest, "text")
        record(f"parity.{dtype}.{way}.weights_apart", apart.weights_apart, "relative")
    if ranks.rank == 0:
        record_curve(f"parity.{dtype}.loss", found.losses, "nats")
