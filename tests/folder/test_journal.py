"""The journal of a rank: its lines are on disk, each fault is named and the other lines count; and why a run never began."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_acceptance.base.model import encode
from gpu_acceptance.folder.files import RecordError
from gpu_acceptance.folder.journal import Journal, JournalContent, find_why_it_never_began, read_journal
from gpu_acceptance.record.job import RankFacts
from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.record.row import RankRecord
from gpu_acceptance.record.run_record import Refusal, RunPlan
from tests.journals import RUN_ID, make_plan, told
from tests.judging import make_identity
from tests.report import samples

IDENTITY = samples.identity(5)
REFUSAL = Refusal(message="rank 3 did not arrive within 120 s", ended_at="2026-11-20T07:02:00+00:00")


def rank_record(rank=5, **more):
    return RankRecord(nodeid="acceptance/test_a.py::test_a", attempt=1, generation=0, rank=rank, outcome=Outcome.PASSED, **more)


def journal_of(tmp_path, *lines, end="\n"):
    path = tmp_path / "rank-00005.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else line.model_dump_json() for line in lines) + end)
    return path


def test_each_line_is_on_disk_when_append_returns_and_no_journal_is_overwritten(tmp_path):
    path = tmp_path / "journal" / "rank-00005.jsonl"
    with Journal(path) as journal:
        journal.append(IDENTITY)
        assert read_journal(path).identity == IDENTITY
        for attempt in (1, 2):
            journal.append(rank_record(message=f"line one\nline two \u2028 {attempt}"))
        content = read_journal(path)
    journal.close()
    assert (content.path, content.identity, content.plan, content.problems) == (path, IDENTITY, None, ())
    assert [record.message[-1] for record in content.records] == ["1", "2"]
    with pytest.raises(RecordError, match="exists already; a journal is never overwritten"):
        Journal(path)


def test_a_full_disk_leaves_whole_lines(tmp_path, monkeypatch):
    path = tmp_path / "rank-00005.jsonl"
    write = os.write
    with Journal(path) as journal:
        journal.append(IDENTITY)

        def half_then_full(fd, data):
            monkeypatch.setattr(os, "write", full)
            return write(fd, data[: len(data) // 2])

        def full(fd, data):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "write", half_then_full)
        with pytest.raises(OSError, match="No space left"):
            journal.append(rank_record())
        monkeypatch.setattr(os, "write", write)
        journal.append(rank_record(message="later"))
    content = read_journal(path)
    assert (content.identity, [record.message for record in content.records], content.problems) == (IDENTITY, ["later"], ())


@pytest.mark.parametrize(
    ("cut_off", "faults"),
    [('\n{"kind":"rank","no', ("line 3: cut off: the writer ended in the middle of it",)), ("", ())],
    ids=["cut", "whole"],
)
def test_a_cut_off_last_line_is_a_problem_and_a_whole_one_counts_without_its_end(tmp_path, cut_off, faults):
    path = journal_of(tmp_path, IDENTITY, rank_record(), end=cut_off)
    assert read_journal(path) == JournalContent(path, IDENTITY, records=(rank_record(),), faults=faults)


PLAN = make_plan()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"kind":"rank","no', "not JSON: EOF while parsing"),
        ("", "not JSON: EOF while parsing"),
        ('{"kind":"other"}', "Input tag 'other' found using 'kind' does not match"),
        ("[]", ""),
        ('{"kind":"rank","novelty":1}', "rank.nodeid is missing (and 5 more)"),
        (rank_record(rank=4), "a record of rank 4 in the journal of rank 5"),
        (RankFacts(rank=4, facts={}), "a record of rank 4 in the journal of rank 5"),
        (IDENTITY, "a second identity; only the first line is one"),
        (IDENTITY.model_dump_json().replace('"schema_version":1', '"schema_version":2'), "schema_version is 2; this version reads 1"),
        (PLAN, "a second plan; a journal has one"),
        (PLAN.model_dump_json().replace('"deadline_s":60.0', '"deadline_s":"60"'), "deadline_s: Input should be a valid number"),
        (PLAN.model_dump_json().replace('"name":', '"novelty":1,"name":'), "unknown key plan.profile.novelty"),
        (REFUSAL.model_copy(update={"message": "other"}), "a second refusal; a journal has one"),
        (REFUSAL.model_dump_json().replace('"exit_code":6', '"exit_code":0'), "refusal.exit_code: Input should be 6, not 0"),
        (REFUSAL.model_dump_json().replace('"exit_code":6', '"novelty":1'), "unknown key refusal.novelty"),
        (REFUSAL.model_dump_json().replace("rank 3", "x" * 20_000), "refusal.message: String should have at most 16384 characters"),
    ],
)
def test_a_bad_line_is_named_and_the_others_count(tmp_path, line, message):
    path = journal_of(tmp_path, IDENTITY, PLAN, REFUSAL, line, rank_record())
    content = read_journal(path)
    assert (content.identity, content.plan, content.refusal, content.records) == (IDENTITY, PLAN, REFUSAL, (rank_record(),))
    (problem,) = content.problems
    assert problem.startswith(f"{path}: line 4: ")
    assert message in problem
    assert "\n" not in problem


def test_a_journal_without_identity_and_a_missing_one_are_problems(tmp_path):
    path = tmp_path / "rank-00005.jsonl"
    assert read_journal(path) == JournalContent(path, faults=("no such file",))
    journal_of(tmp_path, rank_record())
    assert read_journal(path) == JournalContent(path, records=(rank_record(),), faults=("line 1 is not the identity of a rank",))


def test_a_plan_and_facts_come_back(tmp_path):
    path = tmp_path / "rank-00005.jsonl"
    facts = [{"gpu_uuid": "GPU-1", "nccl": "2.28.9"}, {"gpu_uuid": "GPU-2", "cuda": "13.0"}]
    with Journal(path) as journal:
        journal.append(IDENTITY)
        journal.append(make_plan())
        for found in facts:
            journal.append(RankFacts(rank=5, facts=found))
    content = read_journal(path)
    assert (content.plan, content.records, content.problems) == (make_plan(), (), ())
    assert content.identity == IDENTITY.with_facts(facts[0]).with_facts(facts[1])
    assert content.identity.gpu_uuid == "GPU-2"
    assert content.identity.versions == {**IDENTITY.versions, "nccl": "2.28.9", "cuda": "13.0"}


def test_text_that_utf8_cannot_carry_does_not_stop_a_plan():
    plan = make_plan(waivers={"hbm.*": "\ud800"})
    assert RunPlan.model_validate_json(encode(plan)) == plan.model_copy(update={"waivers": {"hbm.*": r"\ud800"}})


# --- why a run never began ------------------------------------------------------------------------------------------------------


def left(rank, message=REFUSAL.message):
    identity = make_identity(rank, 4, 4).model_copy(update={"run_id": RUN_ID})
    return JournalContent(Path(f"run/journal/rank-{rank:05d}.jsonl"), identity, refusal=Refusal(message=message, ended_at=REFUSAL.ended_at))


def test_ranks_that_agree_are_told_once_and_without_a_refusal_not_at_all():
    never = find_why_it_never_began([left(2), left(0), replace(left(1), refusal=None)])
    path = Path("run/journal/rank-00000.jsonl")
    assert (never.path, never.run_id, never.why) == (path, RUN_ID, REFUSAL.message)
    assert (str(never), never.exit_code) == (f"{path}: no report, because nothing ran: {REFUSAL.message}", 6)
    assert never.ended_at == REFUSAL.ended_at


def test_ranks_that_differ_are_named_the_first_of_them_with_their_words():
    never = find_why_it_never_began([left(0), left(1), left(2, "no control store")])
    assert never.why == f'ranks 0-1 said "{REFUSAL.message}", rank 2 said "no control store"'
    many = find_why_it_never_began([left(rank, f"I saw {rank}") for rank in range(5)])
    assert many.why == 'rank 0 said "I saw 0", rank 1 said "I saw 1", rank 2 said "I saw 2", and 2 more'


@pytest.mark.parametrize(
    "contents",
    [
        [],
        [replace(left(0), refusal=None)],
        [replace(left(0), identity=None)],
        [left(0), told().content(1)],
        [left(0), replace(told().content(1), plan=None)],
    ],
    ids=["none", "no refusal", "no identity", "a plan", "a record"],
)
def test_where_something_may_have_run_or_no_rank_refused_there_is_no_answer(contents):
    assert find_why_it_never_began(contents) is None
