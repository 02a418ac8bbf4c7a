"""Strangers on the control store: they change no verdict, end no run, and no rank is blamed for messages that they delete."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from clean_environment import KEY
from launching import Ranks
from stranger import Stranger
from suite import make_suite, torchrun

pytestmark = pytest.mark.launcher


LONG = """
import time
from pathlib import Path


def test_value(check, ranks):
    Path(f"sleeps-{ranks.rank}").touch()
    end = time.monotonic() + 50
    while not Path("wake").exists() and time.monotonic() < end:
        time.sleep(0.1)
    check("passes.value", 5.0, "GB/s")
"""


def long_suite(folder, *more):
    """A validation that ends once there is a file `wake`, and these ones."""
    suite = make_suite(folder, "passes", *more)
    (suite / "acceptance" / "test_passes.py").write_text(LONG)
    return suite


@contextmanager
def in_a_call(suite):
    """Two ranks, both in the call of a validation that says so."""
    with Ranks(suite, 2) as ranks:
        ranks.start(0, 1)
        for rank in (0, 1):
            ranks.wait_for(f"sleeps-{rank}")
        yield ranks


def test_what_a_stranger_forges_and_repeats_changes_nothing(tmp_path):
    """The miss of rank 1 stays a miss, though a stranger says in its name that it passed, or that the run is over."""
    with Ranks(make_suite(tmp_path, "misses_on_one_rank", "passes"), 2) as ranks, Stranger(ranks.port, "forge"):
        ended = ranks.start(0, 1).end()
    assert ranks.exit_codes == {0: 1, 1: 1}, ended.output
    assert [str(row.outcome) for row in ended.record.rows] == ["passed", "failed", "passed", "passed"], ended.output
    control = ended.record.control
    assert control.is_authenticated
    assert control.dropped
    assert not control.lost
    assert "control messages of strangers dropped" in ended.verdict_line


@pytest.mark.parametrize("plan", ["cast", "everything"])
def test_where_messages_are_deleted_the_run_is_incomplete_and_no_rank_is_blamed(plan, tmp_path):
    """From the moment when both ranks are in a call. What a stranger deletes too late changes nothing."""
    suite = long_suite(tmp_path, "two_metrics")
    with in_a_call(suite) as ranks, Stranger(ranks.port, plan):
        (suite / "wake").touch()
        ended = ranks.end()
    control = ended.record.control
    assert ranks.exit_codes[0] == (6 if control.lost else 0), ended.output
    assert control.lost or plan != "everything"
    assert ended.verdict_line.startswith("INCOMPLETE: control messages lost" if control.lost else "ACCEPTED"), ended.verdict_line
    assert not {"died", "failed", "error", "stuck"} & {str(row.outcome) for row in ended.record.rows}, ended.output


def test_what_a_rank_says_behind_millions_of_lines_of_a_stranger_is_heard(tmp_path):
    """The run takes longer; no rank is stuck for it, and no message counts as lost."""
    suite = long_suite(tmp_path)
    with in_a_call(suite) as ranks, Stranger(ranks.port, "flood") as stranger:
        stranger.await_line("flooded")
        (suite / "wake").touch()
        ended = ranks.end()
    assert ranks.exit_codes == {0: 0, 1: 0}, ended.output
    assert ended.verdict_line.startswith("ACCEPTED")
    control = ended.record.control
    assert control.dropped["box"] > 7_000_000
    assert not control.lost


HEARTBEATS = ("beat", "overwrite beat/0", "hold beat/1")


@pytest.fixture(scope="module")
def without_heartbeats(tmp_path_factory):
    """The end and the exit codes of a run for each of these plans, all at once: most of their time is waiting."""

    def run(plan):
        with in_a_call(long_suite(tmp_path_factory.mktemp("heartbeats"))) as ranks, Stranger(ranks.port, plan):
            return ranks.end(), ranks.exit_codes

    with ThreadPoolExecutor() as pool:
        return dict(zip(HEARTBEATS, pool.map(run, HEARTBEATS), strict=True))


@pytest.mark.parametrize("plan", HEARTBEATS)
def test_a_rank_whose_heartbeats_are_taken_away_is_not_lost(plan, without_heartbeats):
    """Its messages are: neither it nor rank 0, whose heartbeats the others await, nor a node is to blame for that."""
    ended, exit_codes = without_heartbeats[plan]
    lost = ended.record.control.lost  # none where those who watch were quicker than the stranger, now and then
    assert lost.keys() <= {"beat"}
    assert exit_codes == ({0: 6, 1: 6} if lost else {0: 0, 1: 0}), ended.output
    assert ended.verdict_line.startswith("INCOMPLETE: control messages lost" if lost else "ACCEPTED"), ended.verdict_line
    assert not ended.record.rebuilt
    assert not any("lost:" in reason or "heartbeat" in reason for reason in ended.reasons), ended.reasons
    assert not {"died", "failed", "error", "stuck", "lost"} & {str(row.outcome) for row in ended.record.rows}, ended.output


MANY = """
import pytest


@pytest.mark.parametrize("number", range({number}))
def test_value(check, ranks, number):
    check("passes.value", 2.0 - ranks.rank * {less}, "GB/s")
"""
NUMBER = 40  # so that a stranger who reads what is there for a moment hears some


def test_with_one_key_for_all_runs_what_another_run_said_changes_nothing(tmp_path):
    """Two nodes, whose launcher hands the same key to run after run: in the first rank 1 says that it passed, in the second it misses."""
    heard, suites = tmp_path / "heard", []
    for name, less in (("first", 0.5), ("second", 1.5)):
        suites.append(make_suite(tmp_path / name, "passes"))
        (suites[-1] / "acceptance" / "test_passes.py").write_text(MANY.format(number=NUMBER, less=less))
    with Ranks(suites[0], 2, env=KEY, num_nodes=2) as ranks, Stranger(ranks.port, "listen", heard):
        assert ranks.start(0, 1).end().verdict_line.startswith("ACCEPTED")
    published = re.compile(r'\w{32}1 \d+ {"type":"published",[^\n]*\n{.*"outcome":"passed"')
    assert any(published.match(json.loads(line)) for line in heard.read_text().splitlines())
    with Ranks(suites[1], 2, env=KEY, num_nodes=2) as ranks, Stranger(ranks.port, "replay", heard):
        ended = ranks.start(0, 1).end()
    assert ranks.exit_codes == {0: 1, 1: 1}, ended.output
    assert list(ended.outcomes().values()) == ["failed"] * NUMBER, ended.output
    control = ended.record.control
    assert control.is_authenticated
    assert control.dropped.keys() >= {"box", "cast"}
    assert not control.lost


FAILS_ON_RANK_1 = """
def test_value(ranks, check):
    check("passes.value", 5.0, "GB/s")
    assert not ranks.rank, "a wrong result"
"""
OTHER_JUDGEMENT = """
import os
from gpu_acceptance.supervisor.attempt_state import AttemptState

take = AttemptState.take


def believes_that_rank_1_passed(self, rank, message):
    if rank == 1 and hasattr(message, "line"):
        message = message.model_copy(update={"line": message.line.replace('"outcome":"failed"', '"outcome":"passed"')})
    take(self, rank, message)


AttemptState.take = believes_that_rank_1_passed
"""


def test_a_rank_of_which_something_else_was_judged_than_it_told_objects(tmp_path):
    """Rank 0 makes a pass of what rank 1 told."""
    suite = make_suite(tmp_path, "passes")
    (suite / "acceptance" / "test_passes.py").write_text(FAILS_ON_RANK_1)
    (suite / "acceptance" / "conftest.py").write_text(OTHER_JUDGEMENT)
    ended = torchrun(suite)
    assert ended.rank_exit_codes == {0: 3, 1: 3}, ended.output
    assert ended.verdict_line.startswith("INCOMPLETE: not confirmed by its journals, records disputed by 1 rank")
    (disputed,) = ended.record.control.disputed
    assert (disputed.rank, disputed.nodeid, disputed.attempt) == (1, "acceptance/test_passes.py::test_value", 1)
    assert [said.split(" (")[0] for said in (disputed.told, disputed.judged)] == ["failed", "passed"]
    beside = "the journal of rank 1 (journal/rank-00001.jsonl) tells otherwise than results.json: test_passes.py::test_value: failed there"
    assert beside in ended.reasons
