"""Ranks started one by one: eight generations in a job whose second rank came late, and ranks that wait for others in vain."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass

import psutil
import pytest
from clean_environment import clean_environment
from faults import Fault, assert_nothing_left
from launching import Ranks
from suite import PYTHON, Finished, make_suite, plain_pytest
from waiting import HANG_S

from gpu_acceptance.cli import verbs as cli
from gpu_acceptance.folder.journal import read_journal

pytestmark = pytest.mark.launcher


LATE_S = 20
LATE = Fault("one rank starts 20 s late", "ACCEPTED")
EIGHT = Fault("8 generations of workers in a row", "ACCEPTED")
KILLED = Fault("SIGKILL of a fork server between two generations", "unchanged: ACCEPTED")
MiB = 1 << 20


@dataclass(frozen=True)
class Sight:
    num_descriptors: dict[int, int]  # by rank
    num_bytes: dict[int, int]  # resident
    num_keys: int


@dataclass(frozen=True)
class Seen:
    run: Finished
    exit_codes: dict[int, int]
    sights: list[Sight]  # one for each generation
    took_s: float


def look(ranks):
    supervisors = {rank: psutil.Process(process.pid) for rank, process in ranks.processes.items()}
    return Sight(
        {rank: supervisor.num_fds() for rank, supervisor in supervisors.items()},
        {rank: supervisor.memory_info().rss for rank, supervisor in supervisors.items()},
        ranks.num_keys,
    )


def fork_server_of(ranks, rank):
    children = psutil.Process(ranks.processes[rank].pid).children()
    (found,) = [child for child in children if "gpu_acceptance.worker.fork_server" in child.cmdline()]
    return found


@pytest.fixture(scope="module")
def eight(tmp_path_factory):
    suite = make_suite(tmp_path_factory.mktemp("eight"), "many_generations")
    with Ranks(suite, 2) as ranks:
        before = time.monotonic()
        ranks.start(0)
        time.sleep(LATE_S)
        ranks.start(1)
        sights = []
        for number in range(8):
            for rank in (0, 1):
                ranks.wait_for(f"number-{number}-{rank}")
            sights.append(look(ranks))
            if number == 6:
                fork_server_of(ranks, 1).kill()
        run = ranks.end()
        assert_nothing_left(suite)
        return Seen(run, ranks.exit_codes, sights, time.monotonic() - before)


def test_a_late_rank_is_waited_for(eight, seen):
    assert eight.exit_codes == {0: 0, 1: 0}, eight.run.output
    assert eight.run.verdict_line == "ACCEPTED (cpu profile: no GPU was tested)"
    seen.told(LATE, eight.run.verdict_line, eight.took_s)


def test_each_validation_had_workers_of_its_own(eight, seen):
    generations = [row.attempts[0].ranks[0].generation for row in eight.run.record.rows if row.subject == "many_generations"]
    assert generations == list(range(1, 9))
    seen.told(EIGHT, eight.run.verdict_line, eight.took_s)


def test_without_its_fork_server_a_rank_starts_its_worker_anew(eight, seen):
    logs = [log.read_text().splitlines() for log in sorted((eight.run.folder / "logs").glob("rank-0000?.log"))]
    first, second = [[line for line in log if line.startswith("=== the fork server ")] for log in logs]
    assert (first, len(second)) == ([], 1)
    assert eight.run.verdict_line == "ACCEPTED (cpu profile: no GPU was tested)"
    seen.told(KILLED, second[0], 0)


def test_no_descriptor_is_left_open_and_no_key_in_the_store(eight):
    assert eight.sights[7].num_descriptors == eight.sights[1].num_descriptors
    assert eight.sights[7].num_keys == eight.sights[1].num_keys


@pytest.mark.parametrize("rank", [0, 1])
def test_memory_stays_as_it_is(eight, rank):
    assert eight.sights[7].num_bytes[rank] - eight.sights[1].num_bytes[rank] < 8 * MiB


KILLS_THE_LEADER = """
import os, signal

if os.environ["RANK"] == "0" and "GPU_ACCEPTANCE_SUPERVISOR" not in os.environ:
    def pytest_collection_modifyitems():
        os.kill(os.getpid(), signal.SIGKILL)
"""
# Hosts the store, as a launcher does, and may open 256 files. The rank is its own child, not one of tests/warm.py.
LAUNCHER = """
import resource, sys
from pathlib import Path
import launching, warm
warm._server = lambda: None
resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
with launching.Ranks(Path(sys.argv[1]), 2, "--join-timeout=1", "--run-id=second") as ranks:
    ranks.start(0).processes[0].wait()
print(ranks.exit_codes, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""
ABSENT = "rank 1 (node 0) did not arrive within 1 s; see what torchrun said there"


@pytest.fixture
def suite(tmp_path):
    return make_suite(tmp_path / "suite", "passes")


def wait_in_vain(suite, *arguments) -> str:
    """The output of rank 0 of two, which is alone."""
    with Ranks(suite, 2, "--join-timeout=1", *arguments) as ranks:
        for process in ranks.start(0).processes.values():
            process.wait(timeout=HANG_S)
        assert ranks.exit_codes == {0: 6}, ranks.outputs
        return ranks.outputs


def test_no_older_run_answers_for_one_that_never_began(suite, capsys):
    accepted = plain_pytest(suite, "--run-id=first")
    assert accepted.returncode == 0, accepted.output
    assert f"Exit: {ABSENT}\n" in wait_in_vain(suite, "--run-id=first")  # whose name it must not take
    (folder,) = [path for path in (suite / "reports").iterdir() if path.name != "first"]
    assert read_journal(folder / "journal" / "rank-00000.jsonl").refusal.message == ABSENT
    assert cli.main(["verdict", str(suite / "reports")]) == 6
    assert capsys.readouterr().out.startswith(f"INCOMPLETE: nothing ran: {ABSENT} | run {folder.name} | ended ")


def test_it_has_the_name_that_was_asked_for_and_its_launcher_may_open_what_ranks_need(suite):
    environment = {**clean_environment(), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([PYTHON, "-c", LAUNCHER, str(suite)], env=environment, capture_output=True, text=True, check=True, timeout=HANG_S)
    assert done.stdout == f"{{0: 6}} {1024 + 8 * 2}\n", done.stderr
    assert [path.name for path in (suite / "reports").iterdir()] == ["second"]


def test_where_nothing_can_be_written_the_line_stays_and_one_more_says_so(suite, tmp_path):
    (tmp_path / "taken").touch()
    said = wait_in_vain(suite, f"--report-dir={tmp_path}/taken", "--run-id=third")
    assert f"Exit: {ABSENT}\nthis rank left no journal: cannot write to {tmp_path}/taken/third: [Errno 20] Not a directory" in said
    assert f'"{ABSENT}"' in said  # and nothing more for torchrun's own line


def test_a_leader_that_is_killed_while_ranks_collect_is_named_by_the_others(suite):
    (suite / "acceptance" / "conftest.py").write_text(KILLS_THE_LEADER)
    with Ranks(suite, 2) as ranks:
        run = ranks.start(0, 1).end()
        assert ranks.exit_codes == {0: -signal.SIGKILL, 1: 6}, run.output
    assert '"no verdict: rank 0 lost: no heartbeat for 15 s"' in run.output
    assert "INTERNALERROR" not in run.terminal_of(1)
    assert [line["kind"] for line in run.journal_of(0)] == ["identity"]
    assert [line["kind"] for line in run.journal_of(1)] == ["identity", "refusal"]
    assert cli.main(["verdict", str(run.folder)]) == 6


def test_a_second_process_of_one_rank_is_refused_and_the_run_goes_on(tmp_path):
    """Both would read from one queue, and each would miss what the other heard: it gets no secret."""
    suite = make_suite(tmp_path, "sleeps_on")
    with Ranks(suite, 2, "--join-timeout=15") as ranks:
        ranks.start(0, 1).wait_for("sleeps-1")
        first = ranks.processes[1]
        ranks.start(1)
        assert ranks.processes[1].wait(timeout=HANG_S) == 6, ranks.outputs
        assert first.wait(timeout=HANG_S) == ranks.processes[0].wait(timeout=HANG_S) == 0, ranks.outputs
    assert "it has given it to another process that is rank 1" in ranks.outputs
