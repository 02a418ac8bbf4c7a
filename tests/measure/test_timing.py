import itertools
import math

import pytest
import torch

from gpu_acceptance.measure import timing
from gpu_acceptance.measure.timing import Blocks, time_blocks

CPU = torch.device("cpu")


class Machine:
    """A clock that stands still but for the operations, which take `operation_s` each."""

    def __init__(self, operation_s, monkeypatch):
        self.now_s, self.operation_s, self.blocks = 0.0, operation_s, [0]
        monkeypatch.setattr(timing.time, "perf_counter", lambda: self.now_s)

    def operation(self):
        self.now_s += self.operation_s
        self.blocks[-1] += 1

    def before_block(self):
        self.now_s += 1000  # must not count
        self.blocks.append(0)


def timed(machine, **options):
    options = {"block_s": 0.3, "warmup_s": 0.2, **options}
    return time_blocks(machine.operation, device=CPU, before_block=machine.before_block, **options)


def test_the_time_of_one_operation_is_a_block_divided(monkeypatch):
    machine = Machine(1e-3, monkeypatch)
    blocks = timed(machine)
    assert blocks.operation_s == pytest.approx([1e-3] * 7)
    assert blocks.median_s == pytest.approx(1e-3)
    assert machine.blocks[-7:] == [blocks.num_iterations] * 7
    assert blocks.num_iterations * 1e-3 >= 0.3


def test_the_warm_up_lasts_as_long_as_asked(monkeypatch):
    machine = Machine(1e-3, monkeypatch)
    blocks = timed(machine, warmup_s=5.0)
    assert (sum(machine.blocks) - 7 * blocks.num_iterations) * 1e-3 >= 5.0


def test_slow_operations_run_at_least_20_times_a_block_and_those_that_take_no_time_are_bounded(monkeypatch):
    machine = Machine(10.0, monkeypatch)
    assert timed(machine).num_iterations == 20
    assert sum(machine.blocks) == 1 + 9 * 20
    monkeypatch.setattr(timing, "MAX_ITERATIONS", 5000)
    assert timed(Machine(0.0, monkeypatch)).num_iterations == 5000


def test_ranks_run_what_was_agreed(monkeypatch):
    machine = Machine(1e-3, monkeypatch)
    blocks = timed(machine, agree=lambda num_iterations: max(num_iterations, 1234))
    assert blocks.num_iterations == 1234
    assert set(machine.blocks) <= {0, 1, 20, 1234}


def test_blocks_by_a_real_clock_follow_each_other_and_each_knows_when_it_began_and_ended():
    tensor = torch.zeros(10_000)
    blocks = time_blocks(lambda: tensor.add_(1), device=CPU, num_blocks=3, block_s=0.01, warmup_s=0.01)
    assert 0 < blocks.median_s < 0.01
    assert math.isfinite(blocks.cv_percent)
    assert len(blocks.spans) == 3
    assert [span.elapsed_s / blocks.num_iterations for span in blocks.spans] == list(blocks.operation_s)
    assert all(0 < span.elapsed_s <= span.end_s - span.begin_s for span in blocks.spans)
    assert all(earlier.end_s <= later.begin_s for earlier, later in itertools.pairwise(blocks.spans))


def test_median_and_variation():
    blocks = Blocks((1.0, 5.0, 3.0), num_iterations=20)
    assert (blocks.median_s, blocks.cv_percent) == (3.0, pytest.approx(100 * 2 / 3))
    assert Blocks((1e-9,) * 20, 20).cv_percent == pytest.approx(0, abs=1e-6)
