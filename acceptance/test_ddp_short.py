"""A short DDP training without compilation runs on all ranks at its rate, and ends with equal weights."""

import pytest

pytestmark = pytest.mark.needs("numpy", "transformers")


@pytest.mark.drill("a rank changes its weights after each step", "ddp_short.*.weights", plant="weights")
@pytest.mark.drill("gradients are not reduced", "ddp_short.*.weights", plant="no reduction", on_all=True)
@pytest.mark.drill("a smaller model is trained", "ddp_short.gpt2.parameters", parameters={"train.gpt2.num_layers": 1}, on_all=True)
def test_throughput(train, check_trained, check_ddp):
    """GPT-2: all ranks reach equal weights, the loss falls, and reducing gradients costs no more than the links explain."""
    result = train.shortly_with_ddp("gpt2")
    check_trained("ddp_short.gpt2", result.trained)
    check_ddp("ddp_short.gpt2", result)
