from pathlib import Path
from types import SimpleNamespace

import pytest

from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.run.outputs import reports

NODEID = "acceptance/test_hbm.py::test_triad"
ITEM = SimpleNamespace(
    nodeid=NODEID, location=("acceptance/test_hbm.py", 3, "test_triad"), keywords={"test_triad": 1}, path=Path("test_hbm.py")
)


def phases(outcome, message="what happened"):
    return [(report.when, report.outcome) for report in reports(ITEM, outcome, message, 2.5, {})]


@pytest.mark.parametrize("outcome", Outcome)
def test_set_up_comes_first_and_teardown_last(outcome):
    found = phases(outcome)
    assert found[0][0] == "setup"
    assert found[-1] == ("teardown", "passed")


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.DIED, Outcome.STUCK])
def test_what_rejects_is_a_failure_of_the_call(outcome):
    assert phases(outcome) == [("setup", "passed"), ("call", "failed"), ("teardown", "passed")]


def test_only_what_passed_passes():
    passing = [outcome for outcome in Outcome if not {"failed", "skipped"} & {result for _, result in phases(outcome)}]
    assert passing == [Outcome.PASSED]


def test_only_what_is_not_applicable_is_a_skip():
    skipping = [outcome for outcome in Outcome if "skipped" in {result for _, result in phases(outcome)}]
    assert skipping == [Outcome.NOT_APPLICABLE]
    report = next(reports(ITEM, Outcome.NOT_APPLICABLE, "no GPU here", 0.0, {}))
    assert report.longrepr == ("test_hbm.py", 0, "Skipped: not applicable: no GPU here")


@pytest.mark.parametrize(
    "outcome", sorted(set(Outcome) - {Outcome.PASSED, Outcome.NOT_APPLICABLE, Outcome.FAILED, Outcome.DIED, Outcome.STUCK})
)
def test_what_proves_nothing_is_an_error(outcome):
    assert phases(outcome) == [("setup", "failed"), ("teardown", "passed")]


def test_the_text_begins_with_the_outcome_once():
    texts = [next(reports(ITEM, Outcome.LOST, message, 0.0, {})).longreprtext for message in ("rank 1 is gone", "lost: rank 1 is gone")]
    assert texts == ["lost: rank 1 is gone", "lost: rank 1 is gone"]


def test_figures_duration_and_place_go_along():
    properties = {"hbm.triad.bandwidth at_least": "4300 GB/s, need >= 4150: held"}
    setup, call, teardown = reports(ITEM, Outcome.PASSED, "", 2.5, properties)
    assert (call.nodeid, call.location, call.duration) == (NODEID, ITEM.location, 2.5)
    assert setup.duration == 0.0
    assert call.user_properties == teardown.user_properties == list(properties.items())


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.ERROR, Outcome.NOT_APPLICABLE])
def test_text_of_a_machine_cannot_steer_the_terminal_and_keeps_its_lines(outcome):
    texts = [str(report.longrepr) for report in reports(ITEM, outcome, "first\n\x1b[2Jsecond", 0.0, {}) if report.longrepr]
    assert texts
    assert all("\x1b" not in text and "[2Jsecond" in text for text in texts)
    assert outcome is Outcome.NOT_APPLICABLE or texts[0] == f"{outcome}: first\n" + r"\x1b[2Jsecond"
