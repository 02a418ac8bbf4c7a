"""A run rebuilt from its journals: their facts count, the rest is lost, and such a run is never ACCEPTED."""

import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpu_acceptance.base.model import encode
from gpu_acceptance.folder.files import RecordError
from gpu_acceptance.folder.journal import JournalContent, NothingRanError
from gpu_acceptance.folder.rebuild import last_written, read_run_folder, rebuild
from gpu_acceptance.record.outcome import Outcome, Status
from gpu_acceptance.record.row import WORKER_END
from gpu_acceptance.record.run_record import ControlMessages, Refusal, RunEnd
from gpu_acceptance.report.build import build_page
from gpu_acceptance.report.remedies import advice_on_run
from gpu_acceptance.thresholds.limit import Peers
from gpu_acceptance.thresholds.profile import profile_names, shipped_dir
from gpu_acceptance.verdict.reasons import FORMATION
from gpu_acceptance.verdict.run_record import conclude_again, find_concluded_otherwise, make_run_record
from tests.folder.rebuilding import ENDED, WHY, rebuilt
from tests.journals import BF16, LARGE_JOB, PROFILE, RUN_ID, TRIAD, Told, attempt_of, checked, make_plan, told
from tests.judging import make_limit, make_profile, make_record, shipped_profile, with_record
from tests.report.pages import parse

PEERS = make_profile(make_limit(at_least=None, peers=Peers(deficit_at_most=0.05, sigma=0.001)))


def row_of(record, nodeid=TRIAD):
    return next(row for row in record.rows if row.nodeid == nodeid)


def refused(contents):
    with pytest.raises(RecordError) as caught:
        rebuilt(contents)
    return str(caught.value)


def peer_run(*attempts, world_size=4):
    """A run whose one limit is the peer rule."""
    plan = make_plan(PEERS, (TRIAD,))
    return Told(plan, world_size, {TRIAD: [attempt_of(TRIAD, checked("hbm.triad.bandwidth", one), n) for n, one in enumerate(attempts, 1)]})


@pytest.mark.parametrize(
    "run",
    [
        told(),
        told(triad=(120.0, 120.0, 50.0, 120.0)),
        told(rank_2=Outcome.DIED),
        told(rank_2=Outcome.DIED, rank_0=Outcome.ERROR),  # an echo of the death
        told(rank_1=Outcome.SKIPPED),
        told(triad=("odd", None, True, float("nan"))),
        peer_run((100.0, 100.0, 80.0, 100.0), (100.0, 100.0, 81.0, 100.0)),
    ],
)
def test_a_complete_run_has_the_rows_of_its_own_reporter(run):
    rows = run.rows()
    original = make_run_record(run.plan, run.job, rows, ended_at=ENDED, end=RunEnd(), journals=range(run.world_size))
    record = rebuilt(run.contents())
    assert list(record.rows) == rows
    assert record.conclusion.limits == original.conclusion.limits
    assert record.conclusion.coverage == original.conclusion.coverage
    again = {"rows": record.rows, "end": record.end, "conclusion": record.conclusion}
    assert record == original.model_copy(update=again)
    verdict = original.conclusion.verdict
    assert record.conclusion.verdict == ("INCOMPLETE" if verdict == "ACCEPTED" else verdict)


@pytest.mark.parametrize(("run", "verdict"), [(told(), "INCOMPLETE"), (told(rank_2=Outcome.DIED), "REJECTED")])
def test_a_run_that_was_interrupted_before_its_reporter_was_lost_is_interrupted(run, verdict):
    record = rebuild(run.contents(), ended_at=ENDED, why=WHY, end=RunEnd(interrupted="SIGTERM"))
    assert (record.conclusion.verdict, record.conclusion.exit_code) == (verdict, 2)
    assert "interrupted: SIGTERM" in record.conclusion.reasons
    assert list(find_concluded_otherwise(record, conclude_again(record))) == []
    assert record.rebuilt == "no reporter saw this run whole: rebuilt from 4 of 4 journals (node-00 lost power)"


def test_messages_of_strangers_are_reported_by_the_rank_that_rebuilds_the_run():
    control = ControlMessages(is_authenticated=True, dropped={"beat": 21}, lost={"beat": 1})
    record = rebuild(told().contents(), ended_at=ENDED, why=WHY, control=control)
    assert (record.control.dropped, record.control.lost) == ({"beat": 21}, {"beat": 1})
    assert "1 control message deleted or overwritten in the control store by a stranger (beat: 1)" in record.conclusion.reasons
    assert "21 control messages of strangers dropped" in record.conclusion.line
    assert list(find_concluded_otherwise(record, conclude_again(record))) == []


@pytest.mark.parametrize("has_key", [True, False])
def test_a_run_over_several_nodes_without_a_key_says_so_in_its_verdict_line_and_on_its_page(has_key):
    control = ControlMessages(is_authenticated=has_key)
    record = rebuild(told().contents(), ended_at=ENDED, why=WHY, control=control)
    note = "control messages were not authenticated"
    assert (note in record.conclusion.line) is not has_key
    assert any(note in element.text for element in parse(build_page(record)).elements) is not has_key


def test_a_run_that_was_not_finished_is_never_accepted_and_its_page_says_why():
    record = rebuilt(told().contents())
    reason = "no reporter saw this run whole: rebuilt from 4 of 4 journals (node-00 lost power)"
    assert record.conclusion.line == f"INCOMPLETE: {reason}"
    assert (record.conclusion.exit_code, record.conclusion.reasons, record.rebuilt) == (6, (reason,), reason)
    assert (record.conclusion.coverage.limits_expected, record.conclusion.coverage.limits_held) == (2, 2)
    assert any(reason in element.text for element in parse(build_page(record)).elements)


def test_a_rebuilt_run_has_the_plan():
    plan = make_plan(waivers={"gemm.*": "agreed"}, declared_gpus=2, expected_nodes=1, num_deselected=3, allow_busy=True)
    record = rebuilt(told(plan=plan).contents())
    assert (record.plan.run_id, record.plan.started_at, record.ended_at) == (RUN_ID, plan.started_at, ENDED)
    assert (record.plan.command, record.plan.declared_gpus, record.plan.waivers) == (plan.command, 2, {"gemm.*": "agreed"})
    assert record.plan.expected_nodes == 1
    assert record.conclusion.line.endswith("(1 waived, busy GPUs allowed, 3 validations deselected)")
    assert record.plan.allow_busy


def test_a_rank_is_lost_in_each_attempt_that_its_journal_lacks():
    record = rebuilt(told().contents(2))
    row = row_of(record)
    assert (row.outcome, row.message.splitlines()[0]) == (Outcome.LOST, "rank 2 (never registered): lost: no journal of this rank")
    assert [one.rank for one in row.attempts[0].ranks] == [0, 1, 2, 3]
    assert row_of(record, FORMATION).outcome is Outcome.LOST
    assert "rebuilt from 3 of 4 journals" in record.conclusion.line
    assert "no answer from rank 2" in record.conclusion.reasons
    whole = told().content(1)
    early = rebuilt([*told().contents(1), replace(whole, records=whole.records[:1])])
    assert row_of(early, FORMATION).outcome is Outcome.PASSED
    text = "rank 1 (node-00, GPU 1, serial 165390001): lost: no record of it in its journal"
    assert row_of(early).message.splitlines()[0] == text


def test_a_rank_that_was_lost_before_the_plan_has_its_reason():
    run = told()
    unmet = replace(run.content(2), plan=None, records=(), refusal=Refusal(message="node 1 is cut off", ended_at=ENDED))
    record = rebuilt([*run.contents(2), unmet])
    assert "took no part: rank 2: node 1 is cut off" in record.conclusion.reasons
    assert "rendezvous_timeout" in {one.kind for one in advice_on_run(record)}
    assert row_of(record).outcome is Outcome.LOST


def test_a_run_that_never_began_has_no_report():
    refusal = Refusal(message="rank 3 did not arrive", ended_at=ENDED)
    with pytest.raises(NothingRanError, match="no report, because nothing ran: rank 3 did not arrive"):
        rebuilt([replace(content, plan=None, records=(), refusal=refusal) for content in told().contents(3)])


def test_a_validation_without_a_record_did_not_run_or_does_not_apply():
    run = told()
    record = rebuilt([replace(content, records=content.records[:1]) for content in run.contents()])
    assert [(row.nodeid, row.outcome, row.message, row.deadline_s) for row in record.rows[1:]] == [
        (TRIAD, Outcome.NOT_RUN, "no journal has a record of it", 60.0),
        (BF16, Outcome.NOT_RUN, "no journal has a record of it", 60.0),
        (LARGE_JOB, Outcome.NOT_APPLICABLE, "needs at least 16 ranks, this job has 4", 60.0),
    ]


def test_a_validation_that_a_rank_lacks_a_package_for_names_it():
    plan = make_plan()
    needing = [one.model_copy(update={"needs": ("peft",)}) if one.nodeid == TRIAD else one for one in plan.validations]
    contents = told(plan=plan.model_copy(update={"validations": tuple(needing)})).contents()
    identity = contents[2].identity.model_copy(update={"lacks": {"peft": "0.9"}})
    without = [replace(one, records=one.records[:1], identity=identity if one is contents[2] else one.identity) for one in contents]
    row = row_of(rebuilt(without))
    assert (row.outcome, row.lacks) == (Outcome.NOT_RUN, ("peft",))
    assert row.message == "needs peft 0.17 or newer, and node-00 has 0.9; install it there: python3 -m pip install 'peft>=0.17'"


@pytest.mark.parametrize(
    ("limit", "reason"),
    [
        ({"world": (16,)}, None),
        ({}, "never measured: rail.rate"),  # the limit applies, though its test needs a larger job
    ],
)
def test_a_required_subject_too_large_for_the_job_is_shown_and_its_limit_missed_where_it_applies(limit, reason):
    profile = make_profile(make_limit(), make_limit("gemm.bf16.rate"), make_limit("rail.rate", **limit))
    record = rebuilt(told(plan=make_plan(profile)).contents())
    if reason:
        assert reason in record.conclusion.reasons
    else:
        assert [limit.metric for limit in record.conclusion.limits] == ["gemm.bf16.rate", "hbm.triad.bandwidth"]
        assert record.conclusion.line.endswith(" (rail not applicable: needs at least 16 ranks)")
        assert "rail does not apply: needs at least 16 ranks, this job has 4" in build_page(record)


def test_every_attempt_is_there_also_outside_the_plan_and_all_formations_in_row_0():
    run = told(plan=make_plan(nodeids=(TRIAD,)))
    formations = [attempt_of(FORMATION, dict.fromkeys(range(4), ()), number) for number in (1, 2)]
    first, *others = rebuilt(replace(run, attempts={**run.attempts, FORMATION: formations}).contents()).rows
    assert (first.nodeid, [attempt.number for attempt in first.attempts], first.outcome) == (FORMATION, [1, 2], Outcome.PASSED)
    assert [row.nodeid for row in others] == [TRIAD, BF16]


UNCONCLUDED = "no reporter saw this run whole: rebuilt from 4 of 4 journals (node-00 lost power)"


BAD_END = attempt_of(WORKER_END, dict.fromkeys(range(4), ()), rank_2=Outcome.DIED)


def without_records(run):
    return [replace(content, records=()) for content in run.contents()]


@pytest.mark.parametrize(
    ("contents", "exit_code", "line"),
    [
        (
            told(triad=(120.0, 120.0, 50.0, 120.0)).contents(0),
            1,
            f"REJECTED: 1 limit missed in 1 of 3 validations, {UNCONCLUDED.replace('4 of', '3 of')} (3 of 4 GPUs)",
        ),
        (replace(told(), attempts={**told().attempts, WORKER_END: [BAD_END]}).contents(), 1, "REJECTED: worker end died"),
        (told(plan=make_plan(not_collected=("test_ib.py: no driver",))).contents(), 6, f"INCOMPLETE: {UNCONCLUDED}, 1 file not collected"),
        (without_records(told(plan=make_plan(nodeids=(FORMATION, TRIAD)))), 5, "INCOMPLETE: "),
        (told(triad=(1.0,) * 4, plan=make_plan(measure_only=True)).contents(), 6, "INCOMPLETE: "),
    ],
    ids=["a miss", "the end of the workers", "files that were not collected", "nothing ran", "measured only"],
)
def test_what_the_journals_tell_is_in_the_verdict(contents, exit_code, line):
    conclusion = rebuilt(contents).conclusion
    assert (conclusion.exit_code, conclusion.line[: len(line)]) == (exit_code, line)


@pytest.mark.parametrize(
    ("run", "left_out", "outcome"),
    [
        (peer_run((100.0, 100.0, 80.0, 100.0)), (), Outcome.UNSTABLE),  # the announced repeat was still to come
        (peer_run((100.0, 100.0, 80.0, 100.0), (100.0, 100.0, 80.0, 100.0)), (3,), Outcome.LOST),
        (peer_run((100.0, 100.0, 94.0, 94.5, 94.5)), (3, 4), Outcome.LOST),  # rank 2 is behind those that are left, not behind all
    ],
)
def test_no_gpu_is_behind_peers_that_are_not_all_known(run, left_out, outcome):
    run = replace(run, world_size=len(run.attempts[TRIAD][0].ranks))
    record = rebuilt(run.contents(*left_out))
    row = row_of(record)
    assert (row.outcome, record.conclusion.verdict) == (outcome, "INCOMPLETE")
    assert all(judgement.status is not Status.MISSED for judgement in (*row.judgements, *record.conclusion.limits))
    if outcome is Outcome.UNSTABLE:
        assert row.message.startswith("not confirmed, because the journals do not tell all attempts: hbm.triad.bandwidth = 80 GB/s")


def test_no_gpu_is_behind_peers_where_one_had_no_worker_before_the_repeat():
    run = peer_run((100.0, 100.0, 80.0, 100.0))
    (attempt,) = run.attempts[TRIAD]
    run = replace(run, attempts={**run.attempts, TRIAD: [with_record(attempt, make_record(3, Outcome.NOT_RUN))]})
    record = rebuilt(run.contents())
    assert (row_of(record).outcome, record.conclusion.verdict) == (Outcome.UNSTABLE, "INCOMPLETE")


def test_a_limit_that_is_missed_beside_an_unconfirmed_peer_still_rejects():
    limit = make_limit(at_least=90.0, peers=Peers(deficit_at_most=0.05, sigma=0.001))
    run = replace(peer_run((100.0, 100.0, 80.0, 100.0)), plan=make_plan(make_profile(limit), (TRIAD,)))
    record = rebuilt(run.contents(0))
    assert (row_of(record).outcome, record.conclusion.exit_code) == (Outcome.FAILED, 1)


def test_problems_of_journals_are_reasons_and_very_many_are_counted():
    contents = told().contents()
    contents[1] = replace(contents[1], faults=("line 9: not JSON: expected value",))
    assert rebuilt(contents).conclusion.reasons[1:] == contents[1].problems
    contents[1] = replace(contents[1], faults=(), beside=tuple(f"line {number:04d}" for number in range(1000)))
    reasons = rebuilt(contents).conclusion.reasons
    assert reasons[-1] == "... and 950 more problems in journals"
    assert len(reasons) == 52


def test_copies_of_a_journal_count_once_and_must_be_identical():
    contents = told().contents()
    copy = replace(contents[2], path=Path("other/journal/rank-00002.jsonl"))
    assert rebuilt([*contents, copy]) == rebuilt(contents)
    message = "other/journal/rank-00002.jsonl and run/journal/rank-00002.jsonl: two journals of rank 2 that differ"
    assert refused([*contents, replace(copy, records=copy.records[:2])]) == message


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (make_plan(run_id="another"), f"run_id {RUN_ID} and another"),
        (make_plan(replace(PROFILE, digest="9f2c")), "profile digest  and 9f2c"),
        (make_plan(waivers={"*": "all"}, measure_only=True), "their plans differ in waivers, measure_only"),
        (None, f"run_id {RUN_ID} and another"),
    ],
)
def test_journals_of_different_runs_are_refused(other, difference):
    contents = told().contents()
    contents[2] = replace(contents[2], plan=other)
    if other is None:
        contents[2] = replace(contents[2], identity=contents[2].identity.model_copy(update={"run_id": "another"}))
    expected = f"run/journal/rank-00000.jsonl and run/journal/rank-00002.jsonl: journals of different runs: {difference}"
    assert refused(contents) == expected


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (
            [replace(one, plan=None) for one in told().contents()],
            "no journal has a plan: the run ended before it was agreed what to run, and",
        ),
        ([], "no journal identifies its rank: there is nothing to rebuild the run from"),
        ([JournalContent(Path("rank-00000.jsonl"))], "no journal identifies its rank: there is nothing to rebuild the run from"),
    ],
    ids=["no plan", "no journal", "no identity"],
)
def test_without_a_plan_or_an_identity_there_is_no_run(contents, message):
    assert refused(contents).startswith(message)


def test_a_journal_without_an_identity_counts_for_no_rank():
    contents = told().contents()
    contents[3] = replace(contents[3], identity=None, beside=("rank-00003.jsonl: line 1 is not the identity of a rank",))
    record = rebuilt(contents)
    assert "rebuilt from 3 of 4 journals" in record.conclusion.line
    assert "rank-00003.jsonl: line 1 is not the identity of a rank" in record.conclusion.reasons


def test_a_run_folder_is_read_by_rank(tmp_path):
    run = told()
    run.leave(tmp_path, 2)
    (tmp_path / "journal" / "notes.txt").write_text("not a journal")
    contents = read_run_folder(tmp_path)
    assert [content.identity.rank for content in contents] == [0, 1, 3]
    assert [content.problems for content in contents] == [(), (), ()]
    assert rebuilt(contents).rows == rebuilt(run.contents(2)).rows
    assert read_run_folder(tmp_path / "journal") == []


def test_the_run_ended_when_its_last_line_was_written(tmp_path):
    told().leave(tmp_path)
    for rank in range(4):
        os.utime(tmp_path / "journal" / f"rank-{rank:05d}.jsonl", (0, 1_795_161_600 + rank))
    assert last_written(read_run_folder(tmp_path)) == "2026-11-20T08:00:03+00:00"


@pytest.mark.parametrize("second", [0, 100_000_000_000])
def test_an_end_is_never_before_the_begin_or_after_now(tmp_path, second):
    told().leave(tmp_path)
    for path in (tmp_path / "journal").iterdir():
        os.utime(path, (0, second))
    ended = datetime.fromisoformat(last_written(read_run_folder(tmp_path)))
    assert datetime(2026, 11, 20, 7, 0, tzinfo=UTC) <= ended <= datetime.now(UTC)


@pytest.mark.parametrize("name", [*profile_names(shipped_dir()), "base"])
def test_every_shipped_profile_comes_back_and_is_small(name):
    profile = shipped_profile(name)
    plan = make_plan(profile)
    text = encode(plan)
    again = type(plan).model_validate_json(text).profile
    assert again == profile
    assert repr(again.limits) == repr(profile.limits)
    assert len(text) < 300_000
