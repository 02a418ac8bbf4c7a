"""LoRA begins at the loss that theory predicts and reaches the lowest possible one, on all ranks alike.

On a frozen Qwen2-7B with random weights; only adapters are trained.
"""

import pytest

pytestmark = pytest.mark.needs("numpy", "peft", "transformers", "compiler")


@pytest.mark.drill("the learning rate is far too high", "lora_convergence.excess", parameters={"lora.learning_rate": 0.5}, on_all=True)
@pytest.mark.drill("a rank changes its weights after each step", "lora_convergence.weights", plant="weights")
@pytest.mark.deadline(900)  # 270 s on one H200; fewer or slower GPUs take longer
def test_training(fine_tune, check_trained, check_lora, parameter):
    """Qwen2 with a frozen random base and text of known entropy: loss curve, trained and frozen weights, rate and memory."""
    found = fine_tune(recomputes=parameter("lora.recomputes"), judged_as="lora_convergence")
    check_trained("lora_convergence", found.trained)
    check_lora("lora_convergence", found)
