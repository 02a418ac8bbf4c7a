"""FSDP: does a model that fits no GPU train at its rate when it is sharded over all of them, and is it really sharded?"""

import pytest

pytestmark = [pytest.mark.min_ranks(2), pytest.mark.needs("numpy", "transformers", "compiler")]


def test_throughput(train, shard, check_trained, check_fsdp):
    """Llama, layer by layer: rate, what of its communication nothing hides, and each rank holds its part and no more."""
    result = train.with_fsdp("llama", shard())
    check_trained("fsdp.llama", result.trained)
    check_fsdp("fsdp.llama", result)
