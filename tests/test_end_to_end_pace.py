"""A broken cluster takes no longer than a sound one: hopeless rates, and all rates between ranks where bytes go a wrong way."""

import pytest
from faults import Fault
from suite import make_suite, run, torchrun_command

from gpu_acceptance.record.outcome import Outcome, Status

pytestmark = pytest.mark.launcher

MISSED = r"paced\.hopeless\.rate = .* 1/s.*, told from a few operations, need >= 1000 1/s \[.*\] on rank .*"
HOPELESS = Fault("a rate that is a tenth of its limit", "failed", "paced.py::test_together[hopeless]", MISSED, (), "paced.py::test_alone")
BRIEF = Fault(
    "bytes go another way than was bought: a rate after that",
    "not measured",
    "paced.py::test_together[sound]",
    r"paced\.sound\.rate = \S+ 1/s, told from a few operations: too few for a pass, need >= .*",
    following="paced.py::test_alone",
)
LATE = Fault(
    "a budget that does not reach for the last phase",
    "not run",
    "passes.py::test_value",
    r"out of time: --budget=100; \d+ s left, phase late takes about 500 s; phase late and what follows are left out",
)


def run_suite(folder, *examples, options=()):
    suite = make_suite(folder / "suite", *examples)
    (suite / "thresholds" / "base.yaml").write_text("deadline_s: 60\nphases: {transport: [wrong_way], later: [paced]}\n")
    return run(torchrun_command(str(suite / "acceptance"), *options), suite)


@pytest.fixture(scope="module")
def on_the_right_way(tmp_path_factory):
    return run_suite(tmp_path_factory.mktemp("right"), "paced")


@pytest.fixture(scope="module")
def on_a_wrong_way(tmp_path_factory):
    return run_suite(tmp_path_factory.mktemp("wrong"), "paced", "wrong_way")


def test_once_a_rank_was_stuck_no_other_validation_waits_for_long(tmp_path):
    suite = make_suite(tmp_path / "suite", "hangs", "passes")
    (suite / "thresholds" / "base.yaml").write_text("deadline_s: 200\nlevels: {full: {passes: 1}}\nphases: {first: [hangs]}\n")
    found = run(torchrun_command(str(suite / "acceptance")), suite)
    deadlines_s = {row.nodeid.rpartition("/")[2]: row.deadline_s for row in found.record.rows}
    assert found.row("hangs.py::test_fault").outcome is Outcome.STUCK
    assert deadlines_s["test_hangs.py::test_next"] == 200  # nothing says how long it takes
    assert deadlines_s["test_passes.py::test_value"] == 60


def test_one_phase_runs_alone_on_all_ranks(tmp_path):
    """Only rank 0 knows the phases of the profile that it has chosen."""
    found = run_suite(tmp_path, "paced", "wrong_way", options=["--phase=transport"])
    assert [row.subject for row in found.record.rows[1:]] == ["wrong_way"]
    assert "only phase transport asked for, 3 validations deselected" in found.verdict_line


def rates(found, kind):
    """Return the outcome of a validation, and of its rate: status, whether it is cut, operations of a block; and why it is brief."""
    row = next(row for row in found.record.rows if kind in row.nodeid)
    record = row.attempts[0].ranks[1]
    by_metric = {figure.metric.rpartition(".")[2]: figure for figure in record.figures}
    (judged,) = (one for one in row.judgements if one.bound == "at_least")
    return row.outcome, judged.status, by_metric["rate"].is_cut, by_metric["iterations"].value, record.brief


def test_a_budget_costs_the_last_phases_and_says_which(tmp_path, seen):
    suite = make_suite(tmp_path / "suite", "paced", "passes")
    phases = "phases: {early: [paced], late: [passes]}\nlevels: {full: {paced: 1, passes: 500}}\n"
    (suite / "thresholds" / "base.yaml").write_text(f"deadline_s: 60\n{phases}")
    found = run(torchrun_command(str(suite / "acceptance"), "--budget=100"), suite)
    seen.row(LATE, found)
    assert found.row("paced.py::test_together[sound]").outcome is Outcome.PASSED


def test_a_hopeless_rate_is_missed_from_a_few_operations_and_a_sound_one_is_measured_in_full(on_the_right_way, seen):
    seen.row(HOPELESS, on_the_right_way)
    assert on_the_right_way.returncode == 1
    assert rates(on_the_right_way, "hopeless") == (Outcome.FAILED, Status.MISSED, True, 1, "")
    outcome, status, is_cut, num_iterations, brief = rates(on_the_right_way, "sound")
    assert (outcome, status, is_cut, brief) == (Outcome.PASSED, Status.HELD, False, "")
    assert num_iterations >= 5
    assert all(len(row.attempts) == 1 for row in on_the_right_way.record.rows)  # hopeless, not unstable
    assert ", told from a few operations" in on_the_right_way.output


def test_where_bytes_go_a_wrong_way_rates_between_ranks_are_brief_and_say_why(on_a_wrong_way, seen):
    seen.row(BRIEF, on_a_wrong_way)
    assert on_a_wrong_way.verdict_line.startswith("REJECTED: 2 limits missed in 2 of 4 validations")
    why = "wrong_way.transport missed its limit"
    assert rates(on_a_wrong_way, "sound") == (Outcome.NOT_MEASURED, Status.NOT_MEASURED, True, 1, why)
    assert rates(on_a_wrong_way, "hopeless") == (Outcome.FAILED, Status.MISSED, True, 1, why)
    outcome, _, is_cut, num_iterations, brief = rates(on_a_wrong_way, "alone")
    assert (outcome, is_cut, brief) == (Outcome.PASSED, False, "")  # it moves nothing between ranks
    assert num_iterations >= 5
    row = next(row for row in on_a_wrong_way.record.rows if "sound" in row.nodeid)
    assert row.message.endswith(f"\nmeasured briefly: {why}")


def test_the_page_says_of_a_brief_row_why(on_a_wrong_way):
    assert "measured briefly: wrong_way.transport missed its limit" in (on_a_wrong_way.folder / "report.html").read_text()
