"""Bounds that compare ranks, in one run of 4: the odd one is named."""

import re

import pytest
from suite import make_suite, torchrun

pytestmark = pytest.mark.launcher


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    suite = make_suite(tmp_path_factory.mktemp("four"), "needs_four", "odd_one", "slow_once", "slow_peer", "unlisted_world")
    return torchrun(suite, ranks=4)


def test_all_ranks_exit_alike(four):
    assert four.rank_exit_codes == {0: 1, 1: 1, 2: 1, 3: 1}, four.output
    assert four.verdict_line.startswith("REJECTED: 2 limits missed in 2 of 5 validations")


def test_uniform_names_the_odd_rank(four):
    row = four.row("test_version")
    assert row.outcome == "failed"
    assert re.match(
        r"odd_one\.version = 2\.9\.1 where most have 2\.9\.0 on ranks 0-1,3, need equal on all \[cpu\.yaml: .*\] on rank 2 \(", row.message
    )
    assert four.alone("odd_one").verdict == "REJECTED"


def test_the_peer_rule_names_the_slow_rank_after_both_attempts(four):
    row = four.row("test_slow_peer.py::test_value")
    assert row.outcome == "failed"
    assert re.match(
        r"slow_peer\.value = 80 GB/s, 20 % below its peers' median 100, need <= 5 % below its peers \[cpu\.yaml: .*\] on rank 3 \(",
        row.message,
    )
    assert [attempt.number for attempt in row.attempts] == [1, 2]
    assert four.alone("slow_peer").verdict == "REJECTED"
    assert "test_slow_peer.py::test_value: repeated once: behind its peers: slow_peer.value" in four.output


def test_one_good_attempt_clears_a_slow_rank(four):
    row = four.row("test_slow_once.py::test_value")
    assert row.outcome == "passed"
    assert [record.figures[0].value for attempt in row.attempts for record in attempt.ranks if record.rank == 3] == [80.0, 100.0]
    assert four.alone("slow_once").line == "ACCEPTED (cpu profile: no GPU was tested)"


def test_a_listed_world_size_has_its_limit_and_what_asks_for_as_many_ranks_runs(four):
    assert four.row("test_unlisted_world.py::test_value").outcome == "passed"
    assert four.alone("unlisted_world").line == "ACCEPTED (cpu profile: no GPU was tested)"
    assert four.row("test_needs_four.py::test_value").outcome == "passed"
