"""Length, errors and drift of a load, over works that take no time except on a fake clock; and the real works."""

import itertools

import pytest
import torch

from gpu_acceptance.measure import hbm, soak
from gpu_acceptance.measure.gemm import correctness
from gpu_acceptance.measure.soak import UNITS, Done, Load, measure, works


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(soak.time, "monotonic", lambda: now[0])

    def advance(seconds: float) -> None:
        now[0] += seconds

    return advance


def taking(clock, seconds, rate=100.0):
    def work() -> Done:
        clock(seconds)
        return Done(rate, 0, 0.0, 0.0, 0.0)

    return work


def load_of(rates, wrong=()):
    """A round for each rate; `wrong`: the places of those with a wrong element."""
    done = [Done(rate, int(place in wrong), 0.001 * place, 0.0, 0.0, 9.0 - place) for place, rate in enumerate(rates)]
    return Load(tuple({"gemm": one} for one in done), 0.0, 30.0 * len(rates))


@pytest.mark.parametrize(("round_s", "duration_s", "num_rounds"), [(30, 100, 4), (25, 100, 4), (60, 1, 3)])
def test_rounds_until_the_time_is_over_and_three_however_short_it_is(round_s, duration_s, num_rounds, clock):
    load = measure({"gemm": taking(clock, round_s - 10), "hbm": taking(clock, 10)}, duration_s=duration_s)
    assert [list(one) for one in load.rounds] == [["gemm", "hbm"]] * num_rounds
    assert (load.begin_s, load.end_s, load.ended_early) == (1000, 1000 + num_rounds * round_s, "")


def test_all_ranks_run_as_many_rounds_as_the_one_that_wants_most(clock):
    wanted = []

    def agree(another: bool) -> bool:
        wanted.append(another)
        return len(wanted) <= 6

    assert len(measure({"gemm": taking(clock, 60)}, duration_s=100, agree=agree).rounds) == 6
    assert wanted == [True] * 3 + [False] * 4


@pytest.mark.parametrize("number", [1, 3, 5])
def test_an_alarm_ends_the_load_after_its_round_but_leaves_three_to_compare_and_says_why(number, clock):
    told = iter([""] * (number - 1) + ["rank 1: a link", "", ""])
    load = measure({"gemm": taking(clock, 25)}, duration_s=10_000, alarm=lambda: next(told))
    assert load.ended_early == f"ended after round {max(3, number)}: rank 1: a link"
    assert (len(load.rounds), load.first_and_lowest_rate("gemm")) == (max(3, number), (100, 100))


def test_a_work_that_fails_ends_the_load(clock):
    def broken() -> Done:
        raise RuntimeError("CUDA error")

    with pytest.raises(RuntimeError, match="CUDA error"):
        measure({"gemm": taking(clock, 1), "hbm": broken}, duration_s=100)


def test_what_was_wrong_is_counted_in_every_round_the_first_too():
    load = load_of([100.0] * 5, wrong={0, 3})
    assert (load.num_wrong("gemm"), load.wrong_in("gemm")) == (2, "in rounds 1, 4 of 5")
    assert load_of([100.0] * 5, wrong={4}).wrong_in("gemm") == "in round 5 of 5"
    assert (load_of([100.0] * 5).num_wrong("gemm"), load_of([100.0] * 5).wrong_in("gemm")) == (0, "")
    assert load_of([100.0] * 50, wrong=set(range(50))).wrong_in("gemm").endswith(" 19, 20, ... of 50")


@pytest.mark.parametrize(
    ("rates", "first", "lowest"),
    [
        ([180.0, 100.0, 100.0, 100.0], 100, 100),  # the round that heats counts for none
        ([100.0, 200.0, 190.0], 200, 190),
        ([100.0, 200.0, 201.0, 200.0, 1.0, 200.0, 200.0], 200, 200),  # one odd round is no drift
        ([100.0, 200.0, 999.0, 200.0, *[200.0] * 9], 200, 200),  # a faster one hides none
    ],
)
def test_the_lowest_rate_of_three_rounds_in_a_row_is_compared_with_the_first(rates, first, lowest):
    assert load_of(rates).first_and_lowest_rate("gemm") == (first, lowest)


@pytest.mark.parametrize("slow", [range(10, 110), range(50, 53), range(107, 110), range(4, 110)])
def test_being_slower_for_a_while_is_seen_whenever_that_is(slow):
    assert load_of([140.0 if place in slow else 200.0 for place in range(110)]).first_and_lowest_rate("gemm") == (200, 140)


def test_the_largest_error_of_all_rounds_counts_and_the_largest_jitter_after_the_round_that_heats():
    load = load_of([1.0] * 5)
    assert (load.error("gemm"), load.jitter("gemm")) == (0.004, 8.0)


CPU = torch.device("cpu")
SIZES = {"gemm_size": 32, "gemm_s": 0.01, "hbm_bytes": 4096, "hbm_s": 0.05, "nccl_bytes": 4096, "nccl_s": 0.01, "num_blocks": 3}


def on_cpu(world_size=1):
    return works(device=CPU, world_size=world_size, **SIZES)


def test_one_rank_alone_runs_no_collective():
    assert list(on_cpu()) == ["gemm", "hbm"]
    assert list(on_cpu(world_size=2)) == list(UNITS) == ["gemm", "hbm", "nccl"]


def test_a_load_on_a_cpu_is_right_and_has_rates_and_moments():
    load = measure(on_cpu(), duration_s=0.1)
    assert load.end_s - load.begin_s >= 0.1
    done = [one for of_round in load.rounds for one in of_round.values()]
    assert load.begin_s <= done[0].begin_s
    assert done[-1].end_s <= load.end_s
    assert all(one.rate > 0 == one.num_wrong and one.begin_s < one.end_s for one in done)
    assert all(earlier.end_s <= later.begin_s for earlier, later in itertools.pairwise(done))


@pytest.mark.parametrize(("module", "work"), [(correctness, "gemm"), (hbm, "hbm")])
def test_a_wrong_element_is_told_with_its_round(module, work, monkeypatch):
    monkeypatch.setattr(module, "_count_wrong", lambda *_: 2)
    load = measure({work: on_cpu()[work]}, duration_s=0.001)
    assert load.num_wrong(work) == 2 * len(load.rounds)


def test_a_share_is_split_into_the_blocks_and_two_more(monkeypatch):
    asked = {}
    real = hbm.measure
    monkeypatch.setattr(hbm, "measure", lambda kernel, **options: asked.update(options) or real(kernel, **options))
    on_cpu()["hbm"]()
    assert asked["block_s"] == pytest.approx(0.01)
