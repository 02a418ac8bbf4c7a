"""The time of a whole run."""

from types import SimpleNamespace

import pytest

from gpu_acceptance.base.budget import Budget, read_budget
from gpu_acceptance.supervisor.leader import Leader, Validation
from tests.judging import make_profile


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


def test_what_lasts_counts_with_its_time(clock):
    profile = make_profile(expected_s={"soak": 100.0})
    budget = Budget(7200, "--budget=2h")
    leader = SimpleNamespace(budget=budget, _expected_s=lambda validation: validation.expected_s(profile, 1, 1))
    load, corruption = (
        Validation(nodeid=f"acceptance/test_soak.py::test_{name}", deadline_s=400, lasts_s=s) for name, s in (("load", 14_400), ("b", 0.0))
    )
    assert Leader._out_of_time(leader, corruption) is None
    assert Leader._out_of_time(leader, load) == "out of time: --budget=2h; 7170 s left, it takes about 14500 s"
