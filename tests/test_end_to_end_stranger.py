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
