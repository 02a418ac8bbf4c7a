"""Eight generations of workers in a row, in a job whose second rank came 20 s late: ACCEPTED, and nothing grows with them.

Before the last one the fork server of that rank is killed: its worker is started anew, and nothing else is different.

Looked at from outside: the supervisors' descriptors and memory in /proc, the keys of the control store that hosts them.
"""

import time
from dataclasses import dataclass

import psutil
import pytest
from faults import Fault, assert_nothing_left
from launching import Ranks
from suite import Finished, make_suite

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


def test_no_descriptor_is_left_open(eight):
    assert eight.sights[7].num_descriptors == eight.sights[1].num_descriptors


def test_no_key_is_left_in_the_store(eight):
    assert eight.sights[7].num_keys == eight.sights[1].num_keys


@pytest.mark.parametrize("rank", [0, 1])
def test_memory_stays_as_it_is(eight, rank):
    assert eight.sights[7].num_bytes[rank] - eight.sights[1].num_bytes[rank] < 8 * MiB
