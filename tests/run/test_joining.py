"""The meeting of the ranks, and the journal of a rank that was refused before its run began."""

import os

import pytest

from gpu_acceptance.control.messages import Collected, Problem
from gpu_acceptance.control.rank import INCOMPLETE, JoinError, RefusedError, interrupted
from gpu_acceptance.folder.files import node_run_id
from gpu_acceptance.folder.journal import Journal, read_journal
from gpu_acceptance.run import joining
from gpu_acceptance.run.joining import find_collection_problem, note_refusal, refuse_start
from tests.judging import make_identity


def collected(*nodeids: str, problems: tuple[str, ...] = (), exit_code: int = 4) -> Collected:
    told = tuple(Problem(message=problem, exit_code=exit_code) for problem in problems)
    return Collected(nodeids=tuple(nodeids), problems=told)


def test_the_same_validations_in_any_order():
    assert find_collection_problem({0: collected("a", "b"), 1: collected("b", "a")}, 2) is None


def test_a_difference_is_shown_against_rank_0():
    text = str(find_collection_problem({0: collected("a", "b"), 1: collected("a", "b"), 2: collected("a", "c")}, 3))
    assert text.splitlines() == [
        "ranks collected different validations (rank 0 is the reference); is the checkout the same everywhere?",
        "  - rank 2 lacks b",
        "  + rank 2 adds  c",
    ]


def test_a_long_difference_is_cut():
    text = str(find_collection_problem({0: collected(*map(str, range(100))), 1: collected()}, 2))
    assert len(text.splitlines()) == 22
    assert text.endswith("  ... and 80 more")


@pytest.mark.parametrize("exit_code", [3, 4])
def test_a_rank_that_cannot_take_part_is_named_first(exit_code):
    answers = {0: collected("a"), 1: collected(problems=("ImportError: no module named x",), exit_code=exit_code)}
    error = find_collection_problem(answers, 2)
    assert (str(error), error.exit_code) == ("rank 1 cannot take part: ImportError: no module named x", exit_code)


def test_a_rank_that_did_not_answer_is_named():
    problem = find_collection_problem({0: collected("a")}, 3)
    assert (str(problem), problem.exit_code) == ("ranks 1-2 did not finish collecting within 120 s", 6)


def test_a_node_id_that_is_there_twice_is_named():
    error = find_collection_problem({0: collected("a", "b"), 1: collected("a", "b", "a")}, 2)
    assert str(error) == "rank 1 collected more than once, so that one would answer for the other: a"
    many = [str(number) for number in range(25)]
    assert str(find_collection_problem({0: collected(*many, *many)}, 1)).endswith(", 18, 19 and 5 more")


IDENTITY = make_identity(1, 2, 2)
RUN_ID = "20261120-070000-ab12"
ABSENT = "rank 3 (node 1) did not arrive within 120 s"
TOLD = (ABSENT, INCOMPLETE, RUN_ID)
NO_STORE = "no control store at node-00:29500 within 60 s: timed out"


@pytest.fixture
def told_to_end(monkeypatch):
    """The launchers that were told."""
    launchers = []
    monkeypatch.setattr(joining, "end_launcher_later", launchers.append)
    return launchers


def refused(error, reports, own=None, identity=IDENTITY, launcher=None):
    return refuse_start(error, own, reports, identity, launcher)


def test_a_refused_rank_leaves_its_identity_and_the_reason(tmp_path, told_to_end):
    error = RefusedError(*TOLD)
    assert refused(error, tmp_path / "reports", launcher=os.getpid()) is error
    content = read_journal(tmp_path / "reports" / RUN_ID / "journal" / "rank-00001.jsonl")
    assert content.identity == IDENTITY.model_copy(update={"run_id": RUN_ID})
    assert (content.refusal.message, content.refusal.exit_code) == (ABSENT, 6)
    assert (content.plan, content.records, content.problems) == (None, (), ())
    assert [path.name for path in (tmp_path / "reports" / RUN_ID).iterdir()] == ["journal"]
    assert (told_to_end, getattr(error, "__notes__", [])) == ([], [])


def test_ranks_without_a_store_share_the_folder_of_their_node(tmp_path, told_to_end):
    for rank in (0, 1):
        refused(JoinError(NO_STORE, is_cut_off=True), tmp_path, identity=make_identity(rank, 2, 2), launcher=os.getpid())
    (folder,) = tmp_path.iterdir()
    assert folder.name == node_run_id(IDENTITY.host, os.getpid())
    contents = [read_journal(path) for path in sorted((folder / "journal").iterdir())]
    assert [(one.identity.rank, one.identity.run_id, one.refusal.message) for one in contents] == [
        (rank, folder.name, NO_STORE) for rank in (0, 1)
    ]
    assert told_to_end == [os.getpid()]  # by its first rank


def test_a_launcher_of_a_node_that_reaches_the_store_is_left_alone(tmp_path, told_to_end):
    refused(JoinError("rank 0 lost: silent for 150 s", is_cut_off=False), tmp_path, None, make_identity(0, 2, 2), os.getpid())
    assert told_to_end == []


@pytest.mark.parametrize("error", [RefusedError("--waive=...: no such limit"), RefusedError("not writable", 3), interrupted("SIGTERM")])
def test_other_refusals_leave_nothing(tmp_path, error):
    assert refused(error, tmp_path) is error
    assert list(tmp_path.iterdir()) == []


def test_a_mistyped_option_is_reported_without_a_store_and_leaves_nothing(tmp_path, told_to_end):
    own = RefusedError("leave out -n and --dist")
    assert refused(JoinError(NO_STORE, is_cut_off=True), tmp_path, own, make_identity(0, 2, 2), os.getpid()) is own
    assert (list(tmp_path.iterdir()), told_to_end) == ([], [os.getpid()])  # a launcher that waits for ever is no better for it


def test_absent_ranks_are_reported_before_a_mistyped_option(tmp_path):
    error = RefusedError(*TOLD)
    assert refused(error, tmp_path, own=RefusedError("leave out -n and --dist")) is error


def test_a_folder_that_cannot_be_written_changes_neither_text_nor_exit_code(tmp_path):
    (tmp_path / "reports").touch()
    error = refused(RefusedError(*TOLD), tmp_path / "reports")
    assert (str(error), error.exit_code) == (ABSENT, 6)
    (note,) = error.__notes__
    assert note.startswith(f"this rank left no journal: cannot write to {tmp_path}/reports/{RUN_ID}: [Errno 20] Not a directory")


def test_a_journal_that_is_there_stays_as_it_is(tmp_path):
    path = tmp_path / RUN_ID / "journal" / "rank-00001.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text("of another run")
    error = refused(RefusedError(*TOLD), tmp_path)
    assert error.__notes__ == [
        f"this rank left no journal: cannot write to {tmp_path}/{RUN_ID}: {path}: exists already; a journal is never overwritten"
    ]
    assert path.read_text() == "of another run"


@pytest.fixture
def journal(tmp_path):
    with Journal(tmp_path / "rank-00001.jsonl") as begun:
        begun.append(IDENTITY)
        yield begun


def test_a_journal_that_was_begun_ends_with_the_refusal(journal):
    note_refusal(RefusedError("rank 1 did not finish collecting within 120 s", INCOMPLETE), journal, [])
    assert read_journal(journal.path).refusal.message == "rank 1 did not finish collecting within 120 s"


@pytest.mark.parametrize("error", [RefusedError("ranks differ"), RefusedError("not writable", 3), interrupted("SIGINT")])
def test_and_not_with_any_other(journal, error):
    note_refusal(error, journal, [RefusedError("cannot write to a folder", 3)])
    assert not hasattr(error, "__notes__")
    assert len(journal.path.read_text().splitlines()) == 1


def test_a_journal_that_could_not_be_begun_is_reported():
    error = JoinError("rank 0 lost: no heartbeat for 15 s", is_cut_off=False)
    note_refusal(error, None, [RefusedError("cannot write to reports/first: no room", 3)])
    assert error.__notes__ == ["this rank left no journal: cannot write to reports/first: no room"]


def test_a_full_disk_is_reported(journal, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    error = RefusedError(*TOLD)
    note_refusal(error, journal, [])
    assert error.__notes__ == [f"the journal of this rank does not say so: {journal.path}: [Errno 28] No space left on device"]
