"""Strangers on the control store: they change no verdict, end no run, and where they take messages away nobody is blamed for it."""

import pytest
from launching import Ranks
from stranger import Stranger
from suite import make_suite

pytestmark = pytest.mark.launcher


def test_what_a_stranger_forges_and_repeats_changes_nothing(tmp_path):
    """The miss of rank 1 stays a miss, whoever says in its name that it passed, that the run is over, or that rank 0 is lost."""
    with Ranks(make_suite(tmp_path, "misses_on_one_rank", "passes"), 2) as ranks, Stranger(ranks.port, "forge"):
        ended = ranks.start(0, 1).end()
    assert ranks.exit_codes == {0: 1, 1: 1}, ended.output
    assert [str(row.outcome) for row in ended.record.rows] == ["passed", "failed", "passed", "passed"], ended.output
    control = ended.record.header.control
    assert control.is_authenticated
    assert control.dropped
    assert not control.lost
    assert "control messages of strangers dropped" in ended.verdict_line


@pytest.mark.parametrize("plan", ["cast", "everything"])
def test_where_messages_are_taken_away_the_run_is_incomplete_and_nobody_is_blamed(plan, tmp_path):
    """From the moment when both ranks are in a call. What a stranger deletes too late changes nothing."""
    with Ranks(make_suite(tmp_path, "sleeps_on", "two_metrics"), 2) as ranks:
        ranks.start(0, 1)
        for rank in (0, 1):
            ranks.wait_for(f"sleeps-{rank}")
        with Stranger(ranks.port, plan):
            ended = ranks.end()
    control = ended.record.header.control
    assert ranks.exit_codes[0] == (6 if control.lost else 0), ended.output
    assert control.lost or plan != "everything"
    assert ended.verdict_line.startswith("INCOMPLETE: control messages lost" if control.lost else "ACCEPTED"), ended.verdict_line
    assert not {"died", "failed", "error", "stuck"} & {str(row.outcome) for row in ended.record.rows}, ended.output
