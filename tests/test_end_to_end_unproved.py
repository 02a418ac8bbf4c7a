"""All the ways to end without a miss and without a proof, in one run of 2 ranks: INCOMPLETE, each named."""

import re

import pytest
from faults import Fault, fault
from suite import make_suite, torchrun

pytestmark = pytest.mark.launcher

# example -> outcome of its row, first line of the row's message, whether its limit is the run's to miss
SITUATIONS = {
    "skips": ("skipped", r"ranks 0-1: skipped in setup: Skipped: no time for this today"),
    "skips_on_one_rank": ("skipped", r"rank 0 \(.*\): skipped in setup: rank 1 skipped: Skipped: no port on this rank"),
    "set_up_raises_on_one_rank": ("error", r"rank 1 \(.*\): error in setup: MemoryError: no room for the buffer"),
    "raises": ("error", r"rank 0 \(.*\): error in call: OSError: no such device"),
    "calls_skip": (
        "error",
        r"rank 1 \(.*\): error in call: skip raised inside the call phase, where other ranks may wait: .*not in the mood",
    ),
    "calls_xfail": ("error", r"rank 0 \(.*\): error in call: xfail is not allowed in an acceptance run, .*: known to be slow here"),
    "xfail_marker": ("error", r"ranks 0-1: error in call: xfail is not allowed in an acceptance run, .*: known to be slow here"),
    "no_limit": ("no limit", r"no_limit\.unknown = 5 GB/s: no limit for a checked metric in profile cpu"),
    "unlisted_world": (
        "no limit",
        r"unlisted_world\.value = 5 GB/s: no limit at 2 GPUs per node; cpu\.yaml lists 4, 8 \(never interpolated\)",
    ),
    "above_ceiling": (
        "error",
        r"above_ceiling\.value = 101 GB/s, above what is physically possible \(100\): a measuring error, need >= 1 .*",
    ),
    "wrong_unit": ("error", r"wrong_unit\.value = 5000 MB/s: its unit is 'MB/s', the limit's is 'GB/s', need >= 1 GB/s .*"),
    "measures_on_one_rank": ("not measured", r"measures_on_one_rank\.value: no figure, need >= 1 GB/s .* on rank 1 \(.*\)"),
    "unstable": ("unstable", r"unstable\.value = 5 GB/s with a spread of 30 %, above 5 %: too unstable to judge, need >= 1 GB/s .*"),
}
NO_ROOM = r"rank 1 \(.*\): error in setup: MemoryError: no room for the buffer"
NO_PORT = r"rank 0 \(.*\): skipped in setup: rank 1 skipped: Skipped: no port on this rank"
FIRST = "test_two_metrics.py::test_first"
FAULTS = (
    fault("exception on one rank before a collective", "error", "raises", 0, "OSError: no such device"),
    Fault("setup error on one rank", "error", "test_set_up_raises_on_one_rank.py::test_value", NO_ROOM, (1,), FIRST),
    Fault("skip on one rank", "skipped", "test_skips_on_one_rank.py::test_skips", NO_PORT, (), FIRST),
)
NO_VALUES = {"nan": "nan", "infinity": "inf", "none": "NoneType", "tensor": "Tensor"}


@pytest.fixture(scope="module")
def unproved(tmp_path_factory):
    suite = make_suite(tmp_path_factory.mktemp("unproved"), *SITUATIONS, "no_values", "never_measures", "two_metrics")
    return torchrun(suite, "-k not test_second")


def test_all_ranks_exit_alike(unproved):
    assert unproved.rank_exit_codes == {0: 6, 1: 6}, unproved.output
    assert unproved.record.conclusion.verdict == "INCOMPLETE"
    assert unproved.verdict_line.startswith("INCOMPLETE: 12 of 20 validations in error, 1 of 20 validations unstable, ")
    assert [error.split("\n")[0] for error in unproved.rank_errors.values()] == [unproved.verdict_line] * 2


@pytest.mark.parametrize("one", FAULTS, ids=str)
def test_faults(one, unproved, seen):
    seen.row(one, unproved)


@pytest.mark.parametrize("subject", [*SITUATIONS, "no_values", "never_measures", "two_metrics"])
def test_each_would_be_incomplete_alone(unproved, subject):
    assert unproved.alone(subject).verdict == "INCOMPLETE"


@pytest.mark.parametrize(("subject", "outcome", "message"), [(subject, *said) for subject, said in SITUATIONS.items()])
def test_outcome_and_message(unproved, subject, outcome, message):
    row, *_ = [row for row in unproved.record.rows if row.subject == subject]
    assert row.outcome == outcome
    assert re.fullmatch(message, row.message.split("\n", 1)[0])
    assert row.message.split("\n", 1)[0] in unproved.output
    assert row.message.split("\n", 1)[0] in unproved.terminal_of(1)


@pytest.mark.parametrize(("kind", "said"), NO_VALUES.items())
def test_what_is_no_value_is_an_error(unproved, kind, said):
    row = unproved.row(f"test_value[{kind}]")
    assert row.outcome == "error"
    assert row.message.startswith(f"no_values.value has no value: {said}, need >= 1 GB/s [cpu.yaml: ")
    assert row.message.endswith("and 1 more: rank 1")


def test_a_required_limit_without_a_figure_or_with_a_deselected_metric_is_named(unproved):
    row = unproved.row("test_never_measures.py::test_value")
    assert (row.outcome, row.message) == ("error", "no figure: it passed on all ranks, and none checked or recorded anything")
    assert "never measured: never_measures.value" in unproved.alone("never_measures").reasons
    assert unproved.row("test_first").outcome == "passed"
    assert "test_second" not in unproved.outcomes()
    assert unproved.alone("two_metrics").reasons == ("never measured: two_metrics.second",)
    assert re.search(r"^never measured: .*two_metrics\.second", unproved.reasons, re.MULTILINE)


def test_no_rank_enters_the_call_when_one_set_up_fails_and_one_skip_is_a_skip_for_all(unproved):
    assert unproved.outcomes_by_rank("test_set_up_raises_on_one_rank.py::test_value") == {0: "not run", 1: "error"}
    assert "not entered: the set-up of rank 1 did not succeed" in unproved.row("test_set_up_raises_on_one_rank.py::test_value").message
    (attempt,) = unproved.row("test_set_up_raises_on_one_rank.py::test_value").attempts
    assert all(record.figures == () for record in attempt.ranks)
    assert unproved.outcomes_by_rank("test_skips_on_one_rank.py::test_skips") == {0: "skipped", 1: "skipped"}


def test_set_ups_that_fail_or_skip_poison_nothing(unproved):
    names = ["test_set_up_raises_on_one_rank.py::test_value", "test_skips.py::test_skips", "test_skips_on_one_rank.py::test_skips"]
    generations = {unproved.row(name).attempts[0].ranks[0].generation for name in names}
    assert generations == {unproved.row("test_first").attempts[0].ranks[0].generation}


def test_unstable_is_repeated_once_announced_and_both_attempts_are_kept(unproved):
    row = unproved.row("test_unstable.py::test_value")
    assert [attempt.number for attempt in row.attempts] == [1, 2]
    assert "test_unstable.py::test_value: repeated once: unstable: unstable.value" in unproved.output


def test_the_peer_of_an_exception_is_a_victim(unproved):
    assert unproved.outcomes_by_rank("raises.py::test_fault") == {0: "error", 1: "victim"}
    assert re.search(r"rank 1 \(.*\): victim: stopped because rank 0 failed first \(error\)", unproved.row("raises.py::test_fault").message)
