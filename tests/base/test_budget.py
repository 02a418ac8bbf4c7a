"""The time of a whole run."""

from unittest.mock import Mock

import pytest

from gpu_acceptance.base.budget import Budget, read_budget
from gpu_acceptance.supervisor.leader import Leader, Validation
from tests.judging import make_job, make_profile


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr("gpu_acceptance.base.budget.time.monotonic", lambda: now[0])

    def advance(seconds: float) -> None:
        now[0] += seconds

    return advance


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("90s", 90), ("30m", 1800), ("2h", 7200)])
def test_durations(text, seconds, clock):
    clock(0)
    assert read_budget(text, {}, now=0).left_s == seconds - 30


@pytest.mark.parametrize("text", ["30", "0", "-5", "1d", "", "1.5h", "1e3", " 90", "٩٠"])
def test_what_is_no_duration(text):
    with pytest.raises(
        ValueError, match=r"--budget=.*: allowed: more than 30 seconds, as 90, 90s, 30m or 2h \(30 s are kept for the report\)"
    ):
        read_budget(text, {}, now=0)


def test_the_reserve_is_kept(clock):
    budget = Budget(100, "--budget=100")
    assert budget.left_s == 70
    assert budget.refuses(70) is None
    assert budget.refuses(71) == "out of time: --budget=100; 70 s left, it takes about 71 s"
    clock(70)
    assert budget.is_spent
    clock(100)
    assert budget.refuses(1) == "out of time: --budget=100; 0 s left, it takes about 1 s"


def test_no_budget():
    assert read_budget(None, {}, now=0) is None
    assert read_budget(None, {"SLURM_JOB_END_TIME": "Unknown"}, now=0) is None


def test_the_earlier_end_counts(clock):
    slurm = {"SLURM_JOB_END_TIME": "10500"}
    assert read_budget("200", slurm, now=10_000).text == "out of time: --budget=200"
    assert read_budget("2h", slurm, now=10_000).text == "out of time: the end of the Slurm job"
    assert read_budget(None, slurm, now=10_000).left_s == 470


def leader_with(budget, order, **profile):
    validations = {one.nodeid: one for one in order}
    return Leader(Mock(), make_profile(**profile), make_job(1), {}, print, validations, budget=budget)


def validation(subject, name="it", **fields):
    return Validation(nodeid=f"acceptance/test_{subject}.py::test_{name}", deadline_s=400, **fields)


def test_what_lasts_counts_with_its_time(clock):
    order = [validation("soak", "b"), validation("soak", "load", lasts_s=14_400)]
    leader = leader_with(Budget(7200, "--budget=2h"), order, expected_s={"soak": 100.0})
    assert leader._left_out(order[0]) is None
    assert leader._left_out(order[1]) == "out of time: --budget=2h; 7170 s left, it takes about 14500 s"


def test_a_phase_that_does_not_fit_as_a_whole_is_not_begun_nor_what_follows(clock):
    order = [validation("hbm"), validation("ddp", "a"), validation("ddp", "b"), validation("lora"), validation("own")]
    phases = {"gpu": ("hbm",), "training": ("ddp",), "lora": ("lora",)}
    leader = leader_with(Budget(130, "--budget=130"), order, expected_s={"hbm": 10.0, "ddp": 60.0, "lora": 1.0, "own": 1.0}, phases=phases)
    assert leader._left_out(order[0]) is None
    why = "out of time: --budget=130; 100 s left, phase training takes about 120 s; phase training and what follows are left out"
    assert [leader._left_out(one) for one in order[1:]] == [why] * 4


def test_what_no_longer_fits_inside_a_phase_ends_it(clock):
    order = [validation("ddp", "a"), validation("ddp", "b"), validation("ddp", "c")]
    leader = leader_with(Budget(230, "--budget=230"), order, expected_s={"ddp": 60.0}, phases={"training": ("ddp",)})
    assert leader._left_out(order[0]) is None
    clock(150)
    why = "out of time: --budget=230; 50 s left, it takes about 60 s; phase training and what follows are left out"
    assert [leader._left_out(one) for one in order[1:]] == [why] * 2


def test_of_what_no_phase_lists_a_shorter_one_may_still_fit(clock):
    order = [validation("long"), validation("short")]
    leader = leader_with(Budget(130, "--budget=130"), order, expected_s={"long": 200.0, "short": 10.0}, phases={"gpu": ("hbm",)})
    assert leader._left_out(order[0]) == "out of time: --budget=130; 100 s left, it takes about 200 s"
    assert leader._left_out(order[1]) is None
