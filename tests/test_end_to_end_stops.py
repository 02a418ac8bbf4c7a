"""Ranks end together: a lost rank, a lost leader, a signal to the launcher, -x, and two agents that end as one."""

import signal
import time

import pytest
from faults import Fault, assert_nothing_left, assert_whole
from ports import free_port
from suite import PYTHON, finished, make_suite, run, start, torchrun, torchrun_command
from waiting import HANG_S, wait_for

pytestmark = pytest.mark.launcher


TORCHRUN_KILLS_AFTER_S = 30


LOST = Fault("SIGKILL of a supervisor, not that of rank 0", "INCOMPLETE (lost), exit code 2")
LOST_LEADER = Fault("SIGKILL of the supervisor of rank 0", "INCOMPLETE (lost), exit code 6")
LAUNCHER_STOPPED = Fault("SIGTERM to the launcher in a call", "INCOMPLETE (interrupted), exit code 2")


def test_a_lost_rank_is_named_by_the_report_that_rank_0_still_writes_and_by_torchrun(tmp_path, seen):
    ended = run([PYTHON, "-m", "gpu_acceptance", "run"], make_suite(tmp_path, "kills_its_supervisor"))
    assert ended.returncode == ended.record.conclusion.exit_code == 2, ended.output
    assert "Signal 9 (SIGKILL)" in ended.output
    assert ended.output.rstrip("\n").split("\n")[-1].startswith("manifest: ")
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
    output, _ = process.communicate(timeout=HANG_S)
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


def test_x_stops_all_ranks_at_the_same_validation(tmp_path):
    stopped = torchrun(make_suite(tmp_path, "stops_at_the_first_failure"), "-x")
    assert stopped.rank_exit_codes == {0: 1, 1: 1}, stopped.output
    assert stopped.outcomes() == {"test_first": "passed", "test_second": "failed", "test_third": "not run"}
    assert stopped.row("test_third").message == "the run stopped before it (-x or --maxfail)"
    assert [line["nodeid"].rsplit("::", 1)[-1] for line in stopped.journal_of(1) if line["kind"] == "rank"][1:-1] == [
        "test_first",
        "test_second",
    ]
    assert "::test_third: the run stopped before it (-x or --maxfail)" in stopped.reasons
    for text in (stopped.output, stopped.terminal_of(1)):
        assert "stopping after 1 failures" in text


# An agent says this alone, not how its ranks ended, where the one that hosts their meeting has ended a moment before it (torch 2.13).
MEETING_GONE = "RendezvousConnectionError: The connection to the C10d store has failed"


def test_two_agents_agree_and_both_end(tmp_path):
    suite = make_suite(tmp_path, "misses_on_one_rank")
    port = free_port()
    rendezvous = (
        "--nnodes=2",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint=127.0.0.1:{port}",
        "--rdzv-id=two-agents",
        "--local-addr=127.0.0.1",
    )
    agent = [PYTHON, "-m", "torch.distributed.run", *rendezvous, "--nproc-per-node=1", "-m", "pytest", "acceptance/"]
    agents = [start(agent, suite) for _ in range(2)]
    outputs = [agent.communicate(timeout=HANG_S)[0] for agent in agents]
    both = [finished(agent.returncode, output, suite) for agent, output in zip(agents, outputs, strict=True)]
    assert [one.returncode for one in both] == [1, 1], outputs
    told = [one for one in both if MEETING_GONE not in one.output]
    codes = sorted((one.rank_exit_codes for one in told), key=str)
    assert codes in ([[{0: 1}, {1: 1}]] if len(told) == 2 else [[{0: 1}], [{1: 1}]]), outputs
    line = both[0].verdict_line
    assert line.startswith("REJECTED: 1 limit missed in 1 of 2 validations (")
    assert [error.split("\n")[0] for one in told for error in one.rank_errors.values()] == [line] * len(told)
    assert both[0].record.conclusion.coverage.nodes == 2
    assert [identity.node for identity in both[0].record.ranks] == [0, 1]
