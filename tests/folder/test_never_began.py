"""Why a run never began, as its journals say."""

from dataclasses import replace
from pathlib import Path

import pytest

from gpu_acceptance.folder.journal import JournalContent, NeverBegan, find_why_it_never_began
from gpu_acceptance.record.run_record import Refusal
from tests.journals import RUN_ID, told
from tests.judging import make_identity

ABSENT = "rank 3 did not arrive within 120 s"
ENDED = "2026-11-20T07:02:00+00:00"


def left(rank, message=ABSENT):
    identity = make_identity(rank, 4, 4).model_copy(update={"run_id": RUN_ID})
    return JournalContent(Path(f"run/journal/rank-{rank:05d}.jsonl"), identity, refusal=Refusal(message=message, ended_at=ENDED))


def test_what_all_say_is_said_once():
    assert find_why_it_never_began([left(2), left(0)]) == NeverBegan(
        Path("run/journal/rank-00000.jsonl"), RUN_ID, ABSENT, exit_code=6, ended_at=ENDED
    )


def test_what_they_say_differently_is_said_by_whom():
    never = find_why_it_never_began([left(0), left(1), left(2, "no control store")])
    assert never.why == f'ranks 0-1 said "{ABSENT}", rank 2 said "no control store"'


def test_of_many_words_the_first_are_said():
    never = find_why_it_never_began([left(rank, f"I saw {rank}") for rank in range(5)])
    assert never.why == 'rank 0 said "I saw 0", rank 1 said "I saw 1", rank 2 said "I saw 2", and 2 more'


def test_a_rank_that_left_nothing_but_its_name_changes_nothing():
    assert find_why_it_never_began([replace(left(0), refusal=None), left(1)]).why == ABSENT


@pytest.mark.parametrize(
    "contents",
    [
        [],
        [replace(left(0), refusal=None)],
        [replace(left(0), identity=None)],
        [left(0), told().content(1)],
        [left(0), replace(told().content(1), plan=None)],
    ],
    ids=["none", "no refusal", "of nobody", "a plan", "a record"],
)
def test_where_something_may_have_run_or_nobody_knows_there_is_no_answer(contents):
    assert find_why_it_never_began(contents) is None
