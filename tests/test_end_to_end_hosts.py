"""Two hosts with a network of their own between them: what a lost node, a cut cable or a wrong clock does to a run.

Every scenario is one run. They are all started by the first test that asks, some at a time: most of their time is waiting.
"""

import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from faults import Fault
from hosts import ADDRESSES, PORT, Hosts, faketime, needs_hosts, two_hosts
from suite import Finished, extend_conftest

from gpu_acceptance.base.guard import LAUNCHER_S
from gpu_acceptance.cli import verbs as cli
from gpu_acceptance.control.heartbeats import _UNREACHABLE_S, LOST_S
from gpu_acceptance.control.rank import INCOMPLETE
from gpu_acceptance.folder.files import read_results
from gpu_acceptance.folder.journal import read_journal
from gpu_acceptance.verdict.reasons import FORMATION

# The first test that asks may wait for all scenarios.
pytestmark = [pytest.mark.launcher, needs_hosts]

CUT_S = 5.0
_SAY_BYE_S = 20.0  # the last handshake, and three threads that wait in the store, 5 s each
ENDS_WITHIN_S = 2 * (_UNREACHABLE_S + _SAY_BYE_S + 2 * LAUNCHER_S)  # twice, on a machine that does other things as well
RENDEZVOUS_S = 8
MEET_S = 8  # in place of the bounds for a hello and for the store's answer
IMPATIENT = f"""
from gpu_acceptance.run import settings
from gpu_acceptance.run import starting

settings.JOIN_S = starting.CONNECT_S = {MEET_S}
"""
AFTER_A_WORD = """
import time
from pathlib import Path

Path("here").touch()
while not Path("go").exists():
    time.sleep(0.1)
"""

KILLED = Fault("SIGKILL of a node's launcher", "INCOMPLETE (lost), exit code 2")
KILLED_WITH_STORE = Fault("SIGKILL of the launcher of the node that holds the store", "INCOMPLETE, exit code 3; none on the other node")
CUT_OFF = Fault("node cut off in mid-validation, not healed", "INCOMPLETE (lost), exit code 6; none there, exit code 3")
HEALED = Fault("network cut for 5 s and healed, after the deadline", "REJECTED (stuck)")
NO_HELLO = Fault("node 1 starts and never says hello", "INCOMPLETE (lost), exit code 6")
OUT_OF_REACH = Fault("node 1 cannot reach node 0 at the start", "INCOMPLETE (lost), exit code 6; there as well")
CLOCK = Fault("host clock 1 h ahead", "unchanged: ACCEPTED")


@dataclass
class Ended:
    """Both launchers after their end, when each host came to rest, and when the fault was made."""

    hosts: list[Finished]
    quiet: list[bool]
    took_s: float


def ended(hosts: Hosts, since: float, *nodes: int) -> Ended:
    """Waits for both launchers and for every process of theirs."""
    runs = [hosts[node].wait() for node in nodes or (0, 1)]
    quiet = [hosts[node].is_quiet_within(ENDS_WITHIN_S) for node in nodes or (0, 1)]
    return Ended(runs, quiet, time.monotonic() - since)


def in_mid_validation(hosts: Hosts, backend: str = "static") -> None:
    hosts.start(backend=backend)
    for node in (0, 1):
        hosts[node].wait_for(f"begun-{node}")


def launcher_killed(folder: Path, node: int) -> Ended:
    with two_hosts(folder, "takes_long") as hosts:
        in_mid_validation(hosts)
        since = time.monotonic()
        hosts[node].launcher.kill()
        return ended(hosts, since)


def cut_off(folder: Path, backend: str) -> Ended:
    with two_hosts(folder, "takes_long") as hosts:
        in_mid_validation(hosts, backend)
        since = time.monotonic()
        hosts.cut()
        return ended(hosts, since)


def healed(folder: Path) -> Ended:
    with two_hosts(folder, "reduces_in_time", "reduces_on", "sleeps_on") as hosts:
        hosts.start()
        for name in ("hurries", "reduces", "sleeps"):
            for node in (0, 1):
                hosts[node].wait_for(f"{name}-{node}")
            hosts.cut()
            time.sleep(CUT_S)
            hosts.heal()
        return ended(hosts, time.monotonic())


def never_there(folder: Path) -> Ended:
    """The cable is dead before the start: neither torchrun meets the other."""
    with two_hosts(folder, "passes") as hosts:
        hosts.cut()
        since = time.monotonic()
        hosts.start(f"--rdzv-conf=timeout={RENDEZVOUS_S}")
        return ended(hosts, since)


def out_of_reach(folder: Path, backend: str) -> Ended:
    """Both torchruns met, and the cable is dead before any supervisor looks for the store."""
    with two_hosts(folder, "passes") as hosts:
        for host in hosts.hosts:
            extend_conftest(host.suite, IMPATIENT, AFTER_A_WORD)
        hosts.start(backend=backend)
        for node in (0, 1):
            hosts[node].wait_for("here")
        since = time.monotonic()
        hosts.cut()
        for host in hosts.hosts:
            (host.suite / "go").touch()
        return ended(hosts, since)


def never_says_hello(folder: Path) -> Ended:
    """Both torchruns met, and on node 1 no supervisor comes to life."""
    with two_hosts(folder, "passes") as hosts:
        extend_conftest(hosts[0].suite, IMPATIENT)
        since = time.monotonic()
        hosts.start_one(1, script=("--no-python", "sleep", "3600"))
        hosts.start_one(0)
        return ended(hosts, since, 0)


def clock_ahead(folder: Path) -> Ended:
    with two_hosts(folder, "passes") as hosts:
        since = time.monotonic()
        hosts.start(env={1: faketime("+1h")})
        return ended(hosts, since)


def own_name_is_loopback(folder: Path) -> Ended:
    """As an installer of Debian and Ubuntu leaves /etc/hosts: gloo tells the other node an address where only the own node listens."""
    with two_hosts(folder, "passes") as hosts:
        hosts.knows(1, 1, "127.0.1.1", "node-1")
        since = time.monotonic()
        hosts.start()
        return ended(hosts, since)


SCENARIOS = {
    "healed": healed,
    "cut off": lambda folder: cut_off(folder, "static"),
    "cut off, c10d": lambda folder: cut_off(folder, "c10d"),
    "node 1 killed": lambda folder: launcher_killed(folder, 1),
    "node 0 killed": lambda folder: launcher_killed(folder, 0),
    "out of reach": lambda folder: out_of_reach(folder, "static"),
    "out of reach, c10d": lambda folder: out_of_reach(folder, "c10d"),
    "no hello": never_says_hello,
    "never there": never_there,
    "clock": clock_ahead,
    "own name": own_name_is_loopback,
}


@pytest.fixture(scope="module")
def scenarios(tmp_path_factory):
    """Name -> the end of that scenario, once it is there."""
    with ThreadPoolExecutor(max_workers=4) as pool:
        futures = {name: pool.submit(scenario, tmp_path_factory.mktemp("hosts")) for name, scenario in SCENARIOS.items()}
        yield lambda name: futures[name].result()


def journals(one: Finished) -> list[str]:
    """The journals that this host keeps."""
    assert one.folder is not None, one.output
    return sorted(path.name for path in (one.folder / "journal").iterdir())


ABSENT = f"rank 1 (node 1) did not arrive within {MEET_S} s; see what torchrun said there"


def assert_refused(one: Finished, rank: int, why: str) -> None:
    """The ranks did not meet: the run left one line in a journal, and no verdict."""
    assert one.rank_exit_codes == {rank: INCOMPLETE}, one.output
    assert one.rank_errors == {rank: why}
    assert [path.name for path in one.folder.iterdir()] == ["journal"]
    assert journals(one) == [f"rank-{rank:05d}.jsonl"]
    content = read_journal(one.folder / "journal" / f"rank-{rank:05d}.jsonl")
    assert (content.identity.host, content.identity.run_id) == (f"node-{rank}", one.folder.name)
    assert (content.refusal.message, content.plan, content.records, content.problems) == (why, None, (), ())


def test_a_killed_launcher_is_named_with_its_node_and_ranks(scenarios, seen):
    killed = scenarios("node 1 killed")
    first, second = killed.hosts
    assert (first.returncode, second.returncode) == (1, -9)
    conclusion = first.record.conclusion
    assert (conclusion.verdict, conclusion.exit_code) == ("INCOMPLETE", 2), first.output
    assert first.outcomes() == {"test_long": "lost", "test_next": "not run"}
    assert "interrupted: the loss of the launcher of node 1 (node-1, rank 1)" in first.reasons
    lost, other = first.row("test_long").message.splitlines()
    assert lost == "rank 1 (node-1): lost in call: the loss of the launcher of node 1 (node-1, rank 1)"
    assert other.endswith("interrupted by the loss of the launcher of node 1 (node-1, rank 1)")
    assert [journals(one) for one in killed.hosts] == [["rank-00000.jsonl"], ["rank-00001.jsonl"]]
    assert not second.has_results
    seen.told(KILLED, first.verdict_line, killed.took_s)


def test_the_launcher_that_held_the_store_takes_the_run_along_and_both_nodes_say_so(scenarios, seen):
    killed = scenarios("node 0 killed")
    first, second = killed.hosts
    assert first.returncode == -9
    assert second.rank_exit_codes == {1: 3}, second.output
    gone = f"the control store at {ADDRESSES[0]}:{PORT} is gone: "
    conclusion = first.record.conclusion
    assert (conclusion.verdict, conclusion.exit_code) == ("INCOMPLETE", 3), first.output
    assert f"internal error: {gone}" in first.reasons
    assert first.outcomes() == {"test_long": "interrupted", "test_next": "not run"}
    assert first.row("test_long").message.startswith(f"interrupted: {gone}")
    assert second.rank_errors[1].startswith(f"no verdict: {gone}")
    assert [journals(one) for one in killed.hosts] == [["rank-00000.jsonl"], ["rank-00001.jsonl"]]
    seen.told(KILLED_WITH_STORE, first.verdict_line, killed.took_s)


def test_a_node_that_is_cut_off_is_lost_and_both_sides_end(scenarios, seen):
    cut = scenarios("cut off")
    first, second = cut.hosts
    assert first.rank_exit_codes == {0: 6}, first.output
    assert second.rank_exit_codes == {1: 3}, second.output
    assert first.outcomes() == {"test_long": "lost", "test_next": "not run"}
    assert f"rank 1 (node-1): lost: no heartbeat for {LOST_S:g} s: its supervisor or node is gone" in first.row("test_long").message
    assert first.record.conclusion.verdict == "INCOMPLETE"
    said = f"no verdict: the control store at {ADDRESSES[0]}:{PORT} does not answer: node 1 (node-1, rank 1) is cut off from it"
    assert second.rank_errors == {1: said}
    assert f"\n{said}\n" in second.output
    assert said in second.terminal_of(1)
    assert [journals(one) for one in cut.hosts] == [["rank-00000.jsonl"], ["rank-00001.jsonl"]]
    seen.told(CUT_OFF, first.row("test_long").message, cut.took_s)


@pytest.mark.parametrize("name", ["cut off", "node 0 killed"])
def test_the_journals_of_both_nodes_make_one_report_that_names_the_lost_one(scenarios, name, tmp_path, capsys):
    folders = [str(one.folder) for one in scenarios(name).hosts]
    assert cli.main(["report", "merge", str(tmp_path), *folders]) == 6
    captured = capsys.readouterr()
    assert captured.err == ""
    assert "no reporter saw this run whole: rebuilt from 2 of 2 journals (joined from 2 folders)" in captured.out
    merged = read_results(tmp_path)
    assert [identity.host for identity in merged.ranks] == ["node-0", "node-1"]
    assert (tmp_path / "report.html").is_file()
    if name == "cut off":
        (row,) = [row for row in merged.rows if row.nodeid.endswith("::test_long")]
        assert "rank 1 (node-1): interrupted in call: interrupted by a loss: the control store at " in row.message


def test_a_launcher_that_does_not_notice_the_cut_is_ended(scenarios):
    first, second = scenarios("cut off, c10d").hosts
    assert first.rank_exit_codes == {0: 6}, first.output
    assert first.outcomes() == {"test_long": "lost", "test_next": "not run"}
    assert second.returncode in {1, -9}  # after SIGTERM; where it waits in the store itself, after SIGKILL
    assert re.search(
        r"^no verdict: the control store at \S+ does not answer: node 1 \(node-1, rank 1\) is cut off", second.output, re.MULTILINE
    )


@pytest.mark.parametrize("name", ["node 1 killed", "node 0 killed", "cut off", "cut off, c10d", "out of reach", "out of reach, c10d"])
def test_the_end_is_bounded_and_leaves_no_process(scenarios, name):
    assert scenarios(name).quiet == [True, True]
    assert scenarios(name).took_s < ENDS_WITHIN_S


def test_a_network_that_comes_back_costs_only_the_validation_whose_deadline_passed(scenarios, seen):
    first, second = scenarios("healed").hosts
    assert (first.rank_exit_codes, second.rank_exit_codes) == ({0: 1}, {1: 1}), first.output
    assert {row.nodeid: row.outcome for row in first.record.rows if row.outcome != "passed"} == {
        "acceptance/test_reduces_in_time.py::test_short": "stuck"
    }
    message = first.row("test_short").message
    assert re.search(
        r"^rank 0 \(node-0\): stuck in call: deadline of 4 s passed; unfinished collective .*; inside all_reduce ", message, re.MULTILINE
    )
    link = rf"node 1 \(node-1, rank 1\) did not reach the store at {ADDRESSES[0]}:{PORT} for \d+ s meanwhile"
    assert re.search(rf"^rank 1 \(node-1\): stuck in call: deadline of 4 s passed; {link}; unfinished collective ", message, re.MULTILINE)
    assert first.verdict_line.startswith("REJECTED: 1 of 4 validations stuck")
    assert [first.alone(subject).verdict for subject in ("reduces_on", "sleeps_on")] == ["ACCEPTED", "ACCEPTED"]
    seen.told(HEALED, message.split("\n")[1], first.row("test_short").duration_s)


def test_a_node_that_never_says_hello_is_named_in_one_line(scenarios, seen):
    (first,) = scenarios("no hello").hosts
    assert_refused(first, 0, ABSENT)
    assert f"Exit: {ABSENT}\n" in first.output
    seen.told(NO_HELLO, ABSENT, scenarios("no hello").took_s)


def test_nodes_that_cannot_reach_each_other_say_so_in_a_journal_each(scenarios, seen, tmp_path, capsys):
    first, second = scenarios("out of reach").hosts
    (no_store,) = re.findall(r"^Exit: (no control store at .*)$", second.output, re.MULTILINE)
    assert no_store.startswith(f"no control store at {ADDRESSES[0]}:{PORT} within {MEET_S} s: ")
    assert_refused(first, 0, ABSENT)
    assert_refused(second, 1, no_store)
    assert cli.main(["report", "merge", str(tmp_path / "out"), str(first.folder), str(second.folder)]) == INCOMPLETE
    why = f'rank 0 said "{ABSENT}", rank 1 said "{no_store}"'
    assert capsys.readouterr().err == f"gpu-acceptance: {first.folder}/journal/rank-00000.jsonl: no report, because nothing ran: {why}\n"
    assert not (tmp_path / "out").exists()
    seen.told(OUT_OF_REACH, f"{ABSENT}; on node 1: {no_store}", scenarios("out of reach").took_s)


def test_a_launcher_that_does_not_notice_that_its_rank_cannot_join_is_ended(scenarios):
    first, second = scenarios("out of reach, c10d").hosts
    assert_refused(first, 0, ABSENT)
    assert second.returncode in {1, -9}
    assert journals(second) == ["rank-00001.jsonl"]
    assert "\nExit: no control store at " in second.output


def test_two_launchers_that_never_meet_end_by_torchruns_own_timeout(scenarios):
    apart = scenarios("never there")
    first, second = apart.hosts
    assert [one.returncode for one in apart.hosts] == [1, 1]
    assert "1/2 clients joined" in first.output
    assert f"failed to connect to any network address of ({ADDRESSES[0]}, {PORT})" in second.output
    assert [one.folder for one in apart.hosts] == [None, None]


@pytest.mark.needs("libfaketime")
def test_a_clock_that_is_an_hour_ahead_is_told_and_changes_no_verdict(scenarios, seen):
    first, second = scenarios("clock").hosts
    assert (first.returncode, second.returncode) == (0, 0), first.output
    assert first.verdict_line == "ACCEPTED (cpu profile: no GPU was tested)"
    (said,) = re.findall(r"^clock of node 1 \(node-1\) is .*$", first.output, re.MULTILINE)
    match = re.fullmatch(r".* is (\d+\.\d) s ahead of that of node 0 \(node-0\), give or take (\d+\.\d) s", said)
    assert abs(float(match[1]) - 3600) <= float(match[2]) < 10
    assert said in (first.folder / "report.html").read_text()
    least_s, most_s = first.record.ranks[1].clock_ahead_s
    assert 3590 < least_s <= 3600 <= most_s < 3610
    assert read_journal(second.folder / "journal" / "rank-00001.jsonl").identity.clock_ahead_s == (least_s, most_s)
    assert all(record.duration_s < 60 for record in read_journal(second.folder / "journal" / "rank-00001.jsonl").records)
    seen.told(CLOCK, said, 0.0)


def test_clocks_that_agree_are_recorded_and_not_talked_about(scenarios):
    first, _ = scenarios("healed").hosts
    least_s, most_s = first.record.ranks[1].clock_ahead_s
    assert least_s <= 0 <= most_s
    assert "clock of node" not in first.output


def test_a_node_whose_own_name_is_a_loopback_address_is_named_where_the_group_fails(scenarios):
    first, _ = scenarios("own name").hosts
    said = "/etc/hosts sends the own name to 127.0.1.1 on node 1 (node-1): gloo may wait there, unless GLOO_SOCKET_IFNAME is set"
    assert said in first.row(FORMATION).message, first.output
