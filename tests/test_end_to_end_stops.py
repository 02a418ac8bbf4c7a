"""Runs that end before their end: a lost rank, a lost leader, a signal to the launcher or to one rank."""

import signal
import time

import pytest
from faults import Fault, assert_nothing_left, assert_whole
from suite import finished, make_suite, start, torchrun, torchrun_command
from waiting import wait_for

pytestmark = pytest.mark.launcher

TORCHRUN_KILLS_AFTER_S = 30


LOST = Fault("SIGKILL of a supervisor, not that of rank 0", "INCOMPLETE (lost), exit code 2")
LOST_LEADER = Fault("SIGKILL of the supervisor of rank 0", "INCOMPLETE (lost), exit code 6")
LAUNCHER_STOPPED = Fault("SIGTERM to the launcher in a call", "INCOMPLETE (interrupted), exit code 2")


def test_a_lost_rank_is_named_by_the_report_that_rank_0_still_writes(tmp_path, seen):
    ended = torchrun(make_suite(tmp_path, "kills_its_supervisor"))
    assert ended.rank_exit_codes[1] == -9, ended.output
    assert ended.rank_exit_codes[0] == 2, ended.output
    assert ended.outcomes_by_rank("test_lost")[1] == "lost"
    assert ended.row("test_lost").outcome == "lost"
    assert "rank 1 (" in ended.row("test_lost").message
    assert "no answer within" in ended.row("test_lost").message
    assert ended.row("test_next").outcome == "not run"
    assert ended.verdict_line.startswith("INCOMPLETE: ")
    assert (ended.folder / "report.html").exists()
    assert_nothing_left(ended.suite)
    seen.told(LOST, ended.row("test_lost").message.split("\n", 1)[0], 0)


def test_sigterm_to_the_launcher_interrupts_the_validation_and_the_report_is_written(tmp_path, seen):
    suite = make_suite(tmp_path, "takes_long")
    process = start(torchrun_command("acceptance/"), suite)
    for rank in (0, 1):
        wait_for(suite / f"begun-{rank}", process)
    process.send_signal(signal.SIGTERM)
    before = time.monotonic()
    output, _ = process.communicate(timeout=120)
    stopped = finished(process.returncode, output, suite)
    took_s = time.monotonic() - before
    assert took_s < TORCHRUN_KILLS_AFTER_S
    assert stopped.returncode != 0
    assert stopped.outcomes() == {"test_long": "interrupted", "test_next": "not run"}
    assert "interrupted by SIGTERM" in stopped.row("test_long").message
    assert stopped.row("test_next").message == "interrupted by SIGTERM"
    assert (stopped.record.conclusion.verdict, stopped.record.conclusion.exit_code) == ("INCOMPLETE", 2)
    assert stopped.verdict_line.startswith("INCOMPLETE: interrupted, ")
    assert stopped.verdict_line in output
    assert stopped.verdict_line in stopped.terminal_of(1)
    assert_nothing_left(suite)
    seen.told(LAUNCHER_STOPPED, stopped.row("test_long").message, took_s)


def test_without_rank_0_the_lowest_rank_alive_reports(tmp_path, seen):
    ended = torchrun(make_suite(tmp_path, "kills_the_leader"), ranks=3)
    assert ended.rank_exit_codes == {0: -9, 1: 6, 2: 6}, ended.output
    assert ended.verdict_line.startswith("INCOMPLETE: no reporter saw this run whole: rebuilt from 3 of 3 journals (rank 0 lost: ")
    assert ended.verdict_line in ended.output
    assert ended.outcomes_by_rank("test_lost")[0] == "lost"
    assert (ended.folder / "report.html").is_file()
    assert_whole(ended)
    seen.told(LOST_LEADER, ended.verdict_line, 0)
