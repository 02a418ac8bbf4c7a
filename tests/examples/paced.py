"""A collective of 10 ms, held against a rate that it reaches and against one that is hopeless; and one that no rank shares."""

import time

import pytest
import torch

from gpu_acceptance.measure.collectives import largest
from gpu_acceptance.measure.timing import time_blocks


@pytest.fixture
def timed(ranks, pace):
    def measure(metric, agree):
        return time_blocks(
            lambda: time.sleep(0.01),
            device=torch.device("cpu"),
            block_s=0.05,
            warmup_s=0.0,
            min_iterations=5,
            agree=agree,
            hopeless_s=pace.hopeless_s(metric, 1.0),
        )

    return measure


@pytest.mark.parametrize("kind", ["sound", "hopeless"])
def test_together(kind, ranks, timed, check, record):
    metric = f"paced.{kind}.rate"
    blocks = timed(metric, lambda number: largest(number, ranks.device))
    check(metric, 1 / blocks.median_s, "1/s", spread=blocks.spread(1.0))
    record(f"paced.{kind}.iterations", blocks.num_iterations, "count")


@pytest.mark.no_group
def test_alone(timed, check, record):
    blocks = timed("paced.alone.rate", int)
    check("paced.alone.rate", 1 / blocks.median_s, "1/s", spread=blocks.spread(1.0))
    record("paced.alone.iterations", blocks.num_iterations, "count")
