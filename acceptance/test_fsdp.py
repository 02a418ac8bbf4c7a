"""Llama 3, as large as fits, trains sharded over all GPUs at its rate, and each GPU holds only its shard."""

import pytest

pytestmark = [pytest.mark.min_ranks(2), pytest.mark.needs("numpy", "transformers", "compiler")]


def test_throughput(train, shard, check_trained, check_fsdp):
    """Llama, layer by layer, reaches its rate, and each rank holds its part and no more. Exposed communication is reported."""
    result = train.with_fsdp("llama", shard())
    check_trained("fsdp.llama", result.trained)
    check_fsdp("fsdp.llama", result)
