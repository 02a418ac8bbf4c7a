"""Each GPU by itself, all at the same time, trains ResNet-50 and GPT-2 at its rate and does not wait for its host.

Jobs of many GPUs are compared with it.
"""

import statistics

import pytest

from gpu_acceptance.measure import timing

pytestmark = [pytest.mark.no_group, pytest.mark.needs("numpy", "transformers", "compiler")]


@pytest.mark.parametrize("model", ["resnet", "gpt2"])
def test_step(model, train, check, check_trained, record, record_curve, telemetry):
    """The model learns, at the expected rate on every GPU, and no GPU waits for its host."""
    trained, steps_s = train.alone(model)
    check_trained(f"train_single.{model}", trained, alone=True)
    if seen := telemetry(trained.begin_s, trained.end_s):
        check(f"train_single.{model}.busy", seen.mean("utilisation_percent"), "%")
    record_curve(f"train_single.{model}.step_s", steps_s, "s")
    record(f"train_single.{model}.p50_s", statistics.median(steps_s), "s")
    record(f"train_single.{model}.p99_s", timing.p99(steps_s), "s")
