"""All GPUs together train ResNet-50 and GPT-2 with DDP at their rate, and end with equal weights.

The report gives each GPU's own rate, and compares the cost of reducing gradients with the links.
"""

import pytest

pytestmark = pytest.mark.needs("numpy", "transformers", "compiler")


@pytest.mark.drill("a rank changes its weights after each step", "ddp.*.weights", plant="weights")
@pytest.mark.drill("gradients are not reduced", "ddp.*.weights", plant="no reduction", on_all=True)
@pytest.mark.parametrize("model", ["resnet", "gpt2"])
def test_throughput(model, train, check_trained, check_ddp):
    """Rate, the cost of reducing gradients and its explanation by the links, each rank's own rate, and equal weights in the end."""
    result = train.with_ddp(model)
    check_trained(f"ddp.{model}", result.trained)
    check_ddp(f"ddp.{model}", result)
