"""Ranks that miss, assert, die and hang in one run of 2 ranks: REJECTED, each named, and what follows is right again."""

import xml.etree.ElementTree as ET

import pytest
from faults import Fault, assert_whole, fault
from suite import EXAMPLES, make_suite, torchrun

from gpu_acceptance.report.exports import EXPORTS
from gpu_acceptance.report.summary_text import annotations, job_summary

pytestmark = pytest.mark.launcher

EXAMPLES_HERE = (
    "asserts_before_collective",
    "checked_twice",
    "exits",
    "hangs",
    "misses_on_one_rank",
    "raised_bound",
    "segfaults",  # the third generation that rank 1 spoils, each in another subject: the run goes on
    "spoils_its_subject",
    "two_metrics",
)
NEED = "need >= 1 GB/s [cpu.yaml: policy: an example of a limit, for the tests of the suite itself]"
HANGS = r"deadline of 3 s passed(; last collective on .*)?; inside test_hangs\.py:14 in test_fault"
MISS = r"misses_on_one_rank\.value = 0\.5 GB/s, need >= 1 GB/s \[cpu\.yaml: .*\] on rank 1 \(.*\)"
MISSES = "test_misses_on_one_rank.py::test_"
SPOILS = "test_spoils_its_subject.py::test_"
SPOILED = r"subject spoils_its_subject spoiled 3 generations of workers: the rest of it is left out"
TWO_METRICS = "test_two_metrics.py::test_second"
GIVES_UP = "AssertionError: rank 0 gives up before the collective"
FAULTS = (
    fault("assertion on one rank before a collective", "failed", "asserts_before_collective", 0, GIVES_UP),
    fault("os._exit(7)", "died", "exits", 1, "the worker ended with exit code 7"),
    fault("a worker sleeps for ever", "stuck", "hangs", 1, HANGS),
    Fault("one rank misses a limit", "failed", f"{MISSES}value", MISS, (), f"{MISSES}other"),
    fault("SIGSEGV", "died", "segfaults", 1, "the worker ended with signal SIGSEGV"),
    Fault("a subject spoils three generations of workers: the rest of it", "not run", f"{SPOILS}left_out", SPOILED, (), TWO_METRICS),
)


@pytest.fixture(scope="module")
def rejected(tmp_path_factory):
    """As a job of GitHub Actions."""
    suite = make_suite(tmp_path_factory.mktemp("rejected"), *EXAMPLES_HERE)
    github = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(suite / "job.md")}
    return torchrun(suite, f"--limits={EXAMPLES / 'raised_bound.site.yaml'}", env=github)


def test_all_ranks_exit_alike(rejected):
    assert rejected.rank_exit_codes == {0: 1, 1: 1}, rejected.output
    assert rejected.record.conclusion.verdict == "REJECTED"
    assert rejected.record.conclusion.exit_code == 1


@pytest.mark.parametrize("one", FAULTS, ids=str)
def test_faults(one, rejected, seen):
    seen.row(one, rejected)


def test_the_verdict_is_in_the_terminal_in_the_launchers_own_words_and_told_to_github(rejected):
    assert rejected.verdict_line.startswith("REJECTED: 5 of 18 validations died, 1 of 18 validations stuck, ")
    first, *more = rejected.rank_errors[0].split("\n")
    assert rejected.rank_errors[1] == first == rejected.verdict_line, "rank 1 leaves one line"
    assert more[-1].startswith("manifest: "), "rank 0 leaves the last screen, which torchrun prints last"
    assert rejected.verdict_line in rejected.terminal_of(1)
    told = [line for line in rejected.output.splitlines() if line.startswith("::")]
    assert told == list(annotations(rejected.record))
    assert (rejected.suite / "job.md").read_text() == job_summary(rejected.record)


@pytest.mark.parametrize("subject", [name for name in EXAMPLES_HERE if name not in {"raised_bound", "two_metrics"}])
def test_each_would_be_rejected_alone(rejected, subject):
    assert rejected.alone(subject).verdict == "REJECTED"


def test_a_missed_limit_names_the_one_rank_on_every_rank(rejected):
    line = f"misses_on_one_rank.value = 0.5 GB/s, {NEED} on rank 1 ("
    for text in (rejected.row("test_misses_on_one_rank.py::test_value").message, rejected.output, rejected.terminal_of(1)):
        assert line in text


def test_of_a_metric_checked_twice_the_worst_counts(rejected):
    row = rejected.row("test_checked_twice.py::test_value")
    assert row.outcome == "failed"
    assert f"checked_twice.value = 0.5 GB/s, {NEED} on rank 0 (" in row.message


def test_a_bound_out_of_reach_rejects_what_held_before(rejected):
    row = rejected.row("test_raised_bound.py::test_value")
    assert row.outcome == "failed"
    assert "raised_bound.value = 2 GB/s, need >= 1e+06 GB/s [raised_bound.site.yaml: policy: out of reach" in row.message
    assert "1 limit tightened by overlay raised_bound.site.yaml" in rejected.verdict_line
    (change,) = rejected.record.plan.profile.changes
    assert (change.kind, change.key, change.old, change.new) == ("tightened", "raised_bound.value at_least", "1", "1000000")


def test_the_peers_of_a_bad_rank_are_victims_where_they_waited_for_it(rejected):
    assert [
        rejected.outcomes_by_rank(name)[0] for name in ("exits.py::test_fault", "hangs.py::test_fault", "segfaults.py::test_fault")
    ] == ["victim", "victim", "passed"]
    assert rejected.outcomes_by_rank("asserts_before_collective.py::test_fault") == {0: "failed", 1: "victim"}


def test_the_log_of_a_dead_rank_and_the_stacks_of_a_stuck_one_are_kept(rejected):
    log_tail = rejected.row("segfaults.py::test_fault").attempts[0].ranks[1].log_tail
    assert "Fatal Python error: Segmentation fault" in log_tail
    assert "in test_fault" in log_tail
    stacks = {record.rank: record.stack for record in rejected.row("hangs.py::test_fault").attempts[-1].ranks}
    assert "in all_reduce" in stacks[0]
    assert "in test_fault" in stacks[1]


def test_what_follows_a_poisoned_generation_runs_in_a_new_one_and_is_right(rejected):
    (before,), (after,) = rejected.row("hangs.py::test_fault").attempts, rejected.row("hangs.py::test_next").attempts
    assert rejected.row("hangs.py::test_next").outcome == "passed"
    assert after.ranks[0].generation == before.ranks[0].generation + 1
    assert {record.figures[0].value for record in after.ranks} == {5.0}


def test_what_a_bad_rank_measured_is_thrown_away(rejected):
    for name in ("exits.py::test_fault", "hangs.py::test_fault", "segfaults.py::test_fault"):
        assert rejected.row(name).attempts[0].ranks[1].figures == ()
    assert [limit.status for limit in rejected.alone("segfaults").limits] == ["not measured"]


def test_a_subject_that_spoils_three_generations_ends_and_the_run_goes_on(rejected):
    assert rejected.row(f"{SPOILS}left_out").attempts == ()
    assert [rejected.row(one).outcome for one in (f"{SPOILS}dies[2]", "test_two_metrics.py::test_first")] == ["died", "passed"]
    row = rejected.record.rows[0]
    assert row.nodeid == "world_formation"
    assert [record.generation for attempt in row.attempts for record in attempt.ranks if record.rank == 0] == [1, 2, 3, 4, 5, 6, 7, 8]


def test_the_files_of_a_run_are_there_and_no_file_changes_after_its_manifest(rejected):
    names = {path.name for path in rejected.folder.iterdir()}
    assert names >= {"results.json", "report.html", *EXPORTS, "junit.xml", "journal", "logs"}
    assert {path.name for path in (rejected.folder / "journal").iterdir()} == {"rank-00000.jsonl", "rank-00001.jsonl"}
    assert_whole(rejected)


def test_junit_and_the_page_carry_the_counts_the_figures_and_every_validation(rejected):
    """Rejections are failures, rows without proof are errors."""
    (suite,) = ET.parse(rejected.folder / "junit.xml").getroot()
    assert [suite.get(name) for name in ("tests", "failures", "errors", "skipped")] == ["20", "11", "1", "0"]
    (case,) = [case for case in suite if case.get("classname") == "acceptance.test_checked_twice"]
    assert case.findtext("system-out") == "checked_twice.value at_least: 0.5 GB/s, need >= 1: missed"
    page = (rejected.folder / "report.html").read_text()
    names = ["REJECTED", *(row.nodeid.rsplit("/", 1)[-1] for row in rejected.record.rows[1:])]
    assert [name for name in names if name not in page] == []


@pytest.mark.parametrize("rank", [0, 1])
def test_the_journal_of_a_rank_has_its_identity_and_one_line_for_each_attempt(rejected, rank):
    identity, plan, *others = rejected.journal_of(rank)
    lines = [line for line in others if line["kind"] == "rank" and line["nodeid"] != "worker_end"]  # no row: it went well
    assert (identity["kind"], identity["rank"], identity["run_id"]) == ("identity", rank, rejected.folder.name)
    assert (plan["kind"], plan["run_id"]) == ("plan", rejected.folder.name)
    told = [(row.nodeid, attempt.number) for row in rejected.record.rows for attempt in row.attempts]
    assert sorted((line["nodeid"], line["attempt"]) for line in lines) == sorted(told)
    assert {line["rank"] for line in lines} == {rank}
