import itertools
import math

import pytest
import torch

from gpu_acceptance.measure import timing
from gpu_acceptance.measure.pace import Spread
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


def test_a_hopeless_operation_is_told_from_a_few(monkeypatch):
    machine = Machine(1.0, monkeypatch)
    blocks = timed(machine, hopeless_s=0.5)
    assert (blocks.is_cut, blocks.median_s, blocks.num_iterations) == (True, 1.0, 1)
    assert len(blocks.operation_s) >= 2
    assert sum(machine.blocks) == 1 + len(blocks.operation_s)  # the first loads kernels
    assert blocks.spread(10.0) == Spread(0.0, 10.0, is_cut=True)


def test_a_sound_operation_is_timed_in_full_though_its_first_ones_are_slow(monkeypatch):
    machine = Machine(1.0, monkeypatch)

    def operation():
        machine.operation_s = 1.0 if sum(machine.blocks) < 4 else 1e-3
        machine.operation()

    blocks = time_blocks(operation, device=CPU, before_block=machine.before_block, block_s=0.3, warmup_s=0.2, hopeless_s=0.5)
    assert (blocks.is_cut, len(blocks.operation_s)) == (False, 7)
    assert blocks.operation_s == pytest.approx([1e-3] * 7)


def test_operations_are_hopeless_only_where_they_are_on_every_rank(monkeypatch):
    elsewhere = 10**9  # another rank has seen one that was fast enough
    blocks = timed(Machine(1.0, monkeypatch), hopeless_s=0.5, agree=lambda number: max(number, elsewhere) if number > 100 else number)
    assert not blocks.is_cut


def test_few_blocks_are_a_number_that_all_ranks_share(monkeypatch):
    given = []
    blocks = timed(Machine(1.0, monkeypatch), hopeless_s=0.5, agree=lambda number: given.append(number) or max(number, 10_000_000))
    assert len(blocks.operation_s) == len(given) == 2


@pytest.mark.parametrize(("hopeless_s", "at_least_s", "below_s"), [(0.005, 2.29, 2.5), (0.0, 0.99, 1.2)], ids=["hopeless", "brief"])
def test_what_is_hopeless_is_so_for_as_long_as_a_sound_measurement_takes_and_a_brief_one_takes_a_second(
    monkeypatch, hopeless_s, at_least_s, below_s
):
    machine = Machine(0.01, monkeypatch)
    monkeypatch.setattr(timing.time, "monotonic", lambda: 0.01 * sum(machine.blocks))
    blocks = timed(machine, hopeless_s=hopeless_s)  # 0.2 s of warm-up and 7 blocks of 0.3 s
    assert blocks.is_cut
    assert at_least_s <= sum(blocks.operation_s) < below_s


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
