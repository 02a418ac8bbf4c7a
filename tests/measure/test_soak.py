"""Length, errors and drift of a load, over works that take no time except on a fake clock; and the real works."""

from dataclasses import replace

import pytest
import torch

from gpu_acceptance.measure import hbm, soak
from gpu_acceptance.measure.gemm import correctness
from gpu_acceptance.measure.soak import UNITS, Done, Load, Round, Sizes, measure, works


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


def load_of(rates, wrong=(), round_s=30.0):
    """Rounds back to back, one for each rate; `wrong`: the places of those with a wrong element."""
    done = [Done(rate, int(place in wrong), 0.001 * place, 0.0, 0.0) for place, rate in enumerate(rates)]
    return Load(tuple(Round(place * round_s, (place + 1) * round_s, {"gemm": one}) for place, one in enumerate(done)))


def test_rounds_until_the_time_is_over(clock):
    load = measure({"gemm": taking(clock, 20), "hbm": taking(clock, 10)}, duration_s=100)
    assert len(load.rounds) == 4
    assert (load.begin_s, load.end_s, load.length_s) == (1000, 1120, 120)
    assert [list(one.done) for one in load.rounds] == [["gemm", "hbm"]] * 4


def test_a_time_that_ends_with_a_round_is_over(clock):
    assert len(measure({"gemm": taking(clock, 25)}, duration_s=100).rounds) == 4


def test_there_are_three_rounds_however_short_the_time(clock):
    assert len(measure({"gemm": taking(clock, 60)}, duration_s=1).rounds) == 3


def test_all_ranks_run_as_many_rounds_as_the_one_that_wants_most(clock):
    wanted = []

    def agree(another: bool) -> bool:
        wanted.append(another)
        return len(wanted) <= 6

    assert len(measure({"gemm": taking(clock, 60)}, duration_s=100, agree=agree).rounds) == 6
    assert wanted == [True] * 3 + [False] * 4


def test_an_alarm_ends_the_load_after_its_round_and_says_why(clock):
    told = iter([""] * 4 + ["rank 1: a link", "", ""])
    load = measure({"gemm": taking(clock, 25)}, duration_s=10_000, alarm=lambda: next(told))
    assert len(load.rounds) == 5
    assert load.ended_early == "ended after round 5: rank 1: a link"


def test_an_alarm_leaves_three_rounds_to_compare(clock):
    told = iter(["rank 1: a link", "", ""])
    load = measure({"gemm": taking(clock, 25)}, duration_s=10_000, alarm=lambda: next(told))
    assert (len(load.rounds), load.drift_percent("gemm")) == (3, 0)
    assert load.ended_early == "ended after round 3: rank 1: a link"
    assert measure({"gemm": taking(clock, 25)}, duration_s=10).ended_early == ""


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


def test_a_steady_rate_has_no_drift_and_the_round_that_heats_counts_for_none():
    assert load_of([180.0, 100.0, 100.0, 100.0]).drift_percent("gemm") == 0


def test_three_rounds_compare_the_second_with_the_third():
    load = load_of([100.0, 200.0, 190.0])
    assert (load.first_rate("gemm"), load.lowest_rate("gemm")) == (200, 190)
    assert load.drift_percent("gemm") == pytest.approx(-5)


def test_one_odd_round_is_no_drift_and_a_faster_one_hides_none():
    assert load_of([100.0, 200.0, 201.0, 200.0, 1.0, 200.0, 200.0]).drift_percent("gemm") == 0
    assert load_of([100.0, 200.0, 999.0, 200.0, *[200.0] * 9]).drift_percent("gemm") == 0


@pytest.mark.parametrize("slow", [range(10, 110), range(50, 53), range(107, 110), range(4, 110)])
def test_being_slower_for_a_while_is_drift_whenever_that_is(slow):
    rates = [140.0 if place in slow else 200.0 for place in range(110)]
    assert load_of(rates).drift_percent("gemm") == pytest.approx(-30)


def test_the_largest_error_of_all_rounds_counts():
    assert load_of([1.0] * 5).error("gemm") == pytest.approx(0.004)


def test_the_largest_jitter_counts_after_the_round_that_heats():
    rounds_ = [Round(0.0, 1.0, {"nccl": Done(1.0, 0, 0.0, 0.0, 1.0, jitter)}) for jitter in (9.0, 1.0, 1.5, 1.1)]
    assert Load(tuple(rounds_)).jitter("nccl") == 1.5


CPU = torch.device("cpu")
SIZES = Sizes(gemm_size=32, gemm_dtype="fp32", gemm_s=0.01, hbm_bytes=4096, hbm_s=0.01, nccl_bytes=4096, nccl_s=0.01, num_blocks=3)


def test_one_rank_alone_runs_no_collective():
    assert list(works(SIZES, device=CPU, world_size=1)) == ["gemm", "hbm"]
    assert list(works(SIZES, device=CPU, world_size=2)) == list(UNITS) == ["gemm", "hbm", "nccl"]


def test_a_load_on_a_cpu_is_right_and_has_rates_and_moments():
    load = measure(works(SIZES, device=CPU, world_size=1), duration_s=0.1)
    assert load.length_s >= 0.1
    for one in load.rounds:
        for name, done in one.done.items():
            assert done.rate > 0
            assert load.num_wrong(name) == 0
            assert one.begin_s <= done.begin_s < done.end_s <= one.end_s


@pytest.mark.parametrize(("module", "work"), [(correctness, "gemm"), (hbm, "hbm")])
def test_a_wrong_element_is_told_with_its_round(module, work, monkeypatch):
    monkeypatch.setattr(module, "_count_wrong", lambda *_: 2)
    load = measure({work: works(SIZES, device=CPU, world_size=1)[work]}, duration_s=0.001)
    assert load.num_wrong(work) == 2 * len(load.rounds)


def test_a_share_is_split_into_the_blocks_and_two_more(monkeypatch):
    asked = {}
    real = hbm.measure
    monkeypatch.setattr(hbm, "measure", lambda kernel, **options: asked.update(options) or real(kernel, **options))
    works(replace(SIZES, hbm_s=0.05), device=CPU, world_size=1)["hbm"]()
    assert asked["block_s"] == pytest.approx(0.01)
