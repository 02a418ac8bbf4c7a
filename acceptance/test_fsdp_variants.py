"""A small model trains with other ways to shard it, and its memory follows the settings and the number of GPUs."""

import pytest

pytestmark = [pytest.mark.min_ranks(2), pytest.mark.needs("numpy", "transformers", "compiler")]


@pytest.mark.parametrize("way", ["by_block", "whole", "keeping", "offloaded"])
def test_way(way, train, shard, check_model, check_fsdp):
    """The model trains sharded layer by layer, at once, without gathering twice, and with the host's memory."""
    result = train.with_fsdp("gpt2", shard(way))
    check_model(f"fsdp_variants.{way}", result.trained)
    check_fsdp(f"fsdp_variants.{way}", result)


def test_hybrid(train, shard, check_model, check_fsdp, check):
    """Sharded inside each node and replicated over nodes, all replicas reach the same weights."""
    result = train.with_fsdp("gpt2", shard("hybrid"))
    check_model("fsdp_variants.hybrid", result.trained)
    check_fsdp("fsdp_variants.hybrid", result)
    check("fsdp_variants.hybrid.weights", result.digest, "text")


def test_memory(ranks, train, shard, check, record):
    """Over 2, 4, ... ranks in groups, and over all, each rank holds its part. Its peak memory is reported."""
    sizes = [size for size in (2**power for power in range(1, 10)) if size < ranks.world_size and ranks.world_size % size == 0]
    for size in (*sizes, ranks.world_size):
        result = train.with_fsdp("gpt2", shard(num_ranks=size))
        check("fsdp_variants.memory.held", result.held, "relative", detail=f"over {size} ranks")
        record("fsdp_variants.memory.data", result.trained.data, "text")
        record(f"fsdp_variants.memory.held_bytes_{size}", result.held_bytes, "bytes")
        record(f"fsdp_variants.memory.peak_bytes_{size}", result.trained.peak_bytes, "bytes")
