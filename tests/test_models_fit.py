"""The model that a profile trains with FSDP is the largest of the list that fits its GPUs, however many there are."""

from functools import cache

import pytest
import torch

from fixtures.training import workload as read_workload
from gpu_acceptance.measure.train import models, throughput
from gpu_acceptance.thresholds.limit import MODEL, OWN_MODEL
from gpu_acceptance.thresholds.profile import load_profile, profile_names, shipped_dir
from tests.judging import shipped_profile

pytestmark = pytest.mark.repository

GIB = 2**30
FILLED = 0.9  # at most, of a GPU: what torch does not count is the CUDA context, NCCL's buffers, and holes between tensors
# The memory that nvidia-smi shows of one GPU, in MiB. Of the H200 it is a reading of ours (h200-sxm.yaml); GPUs with more train 8B on two.
MIB = {
    "a100-pcie": 81_920,
    "a100-sxm": 81_920,
    "a100-sxm-40gb": 40_960,
    "gh200-120gb": 97_871,
    "gh200-480gb": 97_871,
    "h100-nvl": 95_830,
    "h100-pcie": 81_559,
    "h100-sxm": 81_559,
    "h100-sxm-4gpu": 81_559,
    "h20": 97_871,
}
AT_LEAST_MIB = 143_771
TRAINED_BY = {"llama-8b": ("h200-sxm", 2), "llama-3b": ("h100-sxm", 2), "llama-1b": ("a100-sxm-40gb", 2)}  # the largest first


@cache
def profile_of(name):
    """A profile that trains this model, in a job of so many GPUs."""
    profile, num_gpus = TRAINED_BY[name]
    return load_profile(profile, shipped_dir(), num_gpus=num_gpus)


def shape_of(name):
    return read_workload.__wrapped__(profile_of(name).parameters.__getitem__)("llama").shape


def estimated_bytes(shape, num_ranks):
    """Return the bytes of one rank at the end of a forward, the peak: activations are all there, and no gradient is.

    A shard of parameters and of AdamW's two moments in fp32; in bf16 the gathered embedding and head, and two layers, one of them on its
    way; what each layer keeps for its backward in bf16; and logits in bf16 and fp32, with their gradient in both. Nothing is recomputed.
    Before, a model is built whole on each rank, in fp32.
    """
    key_width = shape.num_kv_heads * shape.width // shape.num_heads
    layer = 2 * shape.width * (shape.width + key_width + 1) + 3 * shape.width * shape.mlp_width
    gathered = 2 * shape.vocabulary * shape.width + 2 * layer
    parameters = shape.num_layers * layer + (2 * shape.vocabulary + 1) * shape.width
    kept = 6 * shape.width + 2 * key_width + 3 * shape.mlp_width  # two norms with their inputs, q, what attends; k, v; gate, up, product
    logits = (2 + 4 + 4 + 2) * shape.vocabulary
    trained = 12 * parameters / num_ranks + 2 * gathered + shape.sequence * (2 * shape.num_layers * kept + logits)
    return max(trained, 4 * parameters * (1 + 1 / num_ranks))


def largest_that_fits(gpu_bytes, num_ranks):
    return next(name for name in TRAINED_BY if estimated_bytes(shape_of(name), num_ranks) <= FILLED * gpu_bytes)


def test_the_estimate_is_what_two_h200_held():
    """93.3 GiB: reports/evidence/h200-training."""
    assert estimated_bytes(shape_of("llama-8b"), 2) / GIB == pytest.approx(93.3, rel=0.01)


def test_the_sizes_that_profiles_name_in_comments():
    in_gib = {(name, ranks): round(estimated_bytes(shape_of(name), ranks) / GIB) for name in TRAINED_BY for ranks in (2, 3, 4, 8, 16)}
    assert [in_gib["llama-8b", ranks] for ranks in (2, 3, 4, 8)] == [93, 78, 71, 60]
    assert [in_gib["llama-3b", ranks] for ranks in (2, 8, 16)] == [53, 38, 35]
    assert in_gib["llama-1b", 2] == 31
    assert round(estimated_bytes(shape_of("llama-8b"), 10_000) / GIB) == 49


@pytest.mark.parametrize("num_ranks", [2, 3, 4, 5, 8, 12, 16, 64, 1024])
@pytest.mark.parametrize("name", profile_names(shipped_dir()))
def test_each_profile_trains_the_largest_model_that_fits(name, num_ranks):
    chosen = load_profile(name, shipped_dir(), num_gpus=num_ranks).parameters[MODEL]
    if chosen == OWN_MODEL:
        assert shipped_profile(name).files[1].file in ("cpu.yaml", "gpu.yaml")
        assert name not in MIB
        return
    assert chosen == largest_that_fits(MIB.get(name, AT_LEAST_MIB) * 2**20, num_ranks)


@pytest.mark.parametrize("name", TRAINED_BY)
def test_a_model_has_as_many_weights_and_operations_as_its_limits_say(name):
    built, limits = models.build(shape_of(name), torch.device("meta")), profile_of(name).limits
    assert limits["fsdp.llama.parameters"].equals == sum(one.numel() for one in built.parameters())
    assert limits["fsdp.llama.flop_per_sample"].equals == float(f"{throughput.flops_per_sample(shape_of(name)) / 1e9:.4g}")


@pytest.mark.parametrize("name", TRAINED_BY)
def test_a_rate_judges_the_model_that_it_was_read_with_and_no_other(name):
    profile = profile_of(name)
    rates = {metric for metric in profile.limits if metric.startswith("fsdp.llama.throughput")}
    assert rates <= profile.not_applicable.keys() or name == "llama-8b"
    assert "fsdp.llama.throughput" in rates or name != "llama-8b"
