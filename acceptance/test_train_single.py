"""Each GPU by itself, all at the same time, trains ResNet-50 and GPT-2 at its rate and does not wait for its host.

Jobs of many GPUs are compared with it.
"""

import pytest

pytestmark = [pytest.mark.no_group, pytest.mark.needs("numpy", "transformers", "compiler")]


@pytest.mark.parametrize("model", ["resnet", "gpt2"])
def test_step(model, train, check, check_trained, record, record_curve, telemetry):
    """The model learns, at the expected rate on every GPU, and no GPU waits for its host."""
    result = train.alone(model)
    check_trained(f"train_single.{model}", result.trained, alone=True)
    if seen := telemetry(result.trained.begin_s, result.trained.end_s):
        check(f"train_single.{model}.busy", seen.mean("utilisation_percent"), "%")
    record_curve(f"train_single.{model}.step_s", result.steps_s, "s")
    record(f"train_single.{model}.p50_s", result.p50_s, "s")
    record(f"train_single.{model}.p99_s", result.p99_s, "s")
