"""Survivors of a dead rank end in real jobs under torchrun on gloo: some learn nothing of the death, some learn it before the launcher.

A child that holds the connections of the dead one keeps gloo in its collective, as NCCL is. For GPUs: tools/gpu/failure_xids.py.
"""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from failing import folder, nodes, place, plant

from gpu_acceptance.measure import failure as job
from gpu_acceptance.measure.failure import blame, measure

pytestmark = pytest.mark.launcher
NOT_GIVEN_UP = ""
UNHEARD = """
def die(way):
    if os.fork():
        os._exit(41)
    signal.pause()

rank._die = die
"""
HEARD_EARLY = """
def die(way):
    for fd in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # what is no connection
            one = socket.socket(fileno=os.dup(fd))
            one.getpeername()
            one.shutdown(socket.SHUT_RDWR)
    time.sleep(2)  # as a driver may take to free a GPU
    os._exit(41)

rank._die = die
"""
SAYS_WHETHER_IT_IS_IN_THE_COLLECTIVE = """
if os.environ["RANK"] == "0":
    works, all_reduce, abort = [], dist.all_reduce, dist.ProcessGroup.abort

    def kept(*arguments, **options):
        works.append(all_reduce(*arguments, **options))
        return works[-1]

    def told(group):
        print("before the abort the collective has ended:", works[-1].is_completed(), flush=True)
        abort(group)

    dist.all_reduce, dist.ProcessGroup.abort = kept, told
"""
HANGS_IN_ITS_ABORT = """
if os.environ["RANK"] == "1":
    dist.ProcessGroup.abort = lambda group: ctypes.PyDLL(None).sleep(60)  # and keeps the GIL
"""
WAITS_FOR_A_SECOND = "rank._COLLECTIVE_S = 1.0"


@pytest.fixture
def said(monkeypatch):
    """The output of launchers and ranks, which is lost with the job's folder."""
    texts, tail = [], job._tail
    monkeypatch.setattr(job, "_tail", lambda folder: texts.append(tail(folder)) or texts[-1])
    return texts


def exit_codes(text):
    """Return the exit code of each rank in the launcher's output: torch 2.9 names only the first."""
    return {int(rank): int(code) for rank, code in re.findall(r"\brank +: (\d+) .*?\bexitcode +: (-?\d+)", text, re.DOTALL)}


def test_sigterm_ends_a_rank_in_the_collective_and_one_whose_abort_hangs(tmp_path, monkeypatch, said):
    plant(UNHEARD + SAYS_WHETHER_IT_IS_IN_THE_COLLECTIVE + HANGS_IN_ITS_ABORT, tmp_path, monkeypatch)
    ended = measure("exit", place(num_ranks=3), folder(tmp_path))
    assert (ended.blamed, ended.problem) == (blame(2, "exit"), NOT_GIVEN_UP), said
    assert ended.num_left == 1  # the child that holds the connections
    assert "before the abort the collective has ended: False" in said[-1]
    assert {0: -15, 1: -14, 2: 41}.items() >= exit_codes(said[-1]).items(), said  # -14: SIGALRM; torchrun would send SIGKILL


def test_ranks_of_another_node_that_hear_nothing_end_after_their_time(tmp_path, monkeypatch):
    plant(UNHEARD + WAITS_FOR_A_SECOND, tmp_path, monkeypatch)
    other, of_the_dead = both(nodes(1, 2), tmp_path, monkeypatch)
    assert (other.blamed, other.problem, other.num_left) == ("rank 0, exit code 1", NOT_GIVEN_UP, 0)
    assert (of_the_dead.blamed, of_the_dead.problem, of_the_dead.num_left) == (blame(2, "exit"), NOT_GIVEN_UP, 1)


def test_a_rank_that_hears_of_the_death_before_its_launcher_is_not_named_for_it(tmp_path, monkeypatch):
    """Neither by the dead one's connections, nor by those of the other node, which is gone by then with the control store."""
    plant(HEARD_EARLY, tmp_path, monkeypatch)
    other, of_the_dead = both(nodes(1, 2), tmp_path, monkeypatch)
    assert (other.blamed, other.problem, other.num_left) == ("rank 0, exit code 1", NOT_GIVEN_UP, 0)
    assert (of_the_dead.blamed, of_the_dead.problem, of_the_dead.num_left) == (blame(2, "exit"), NOT_GIVEN_UP, 0)


def both(places, tmp_path, monkeypatch):
    """Return the end of the job on each of two nodes on this machine."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    with ThreadPoolExecutor() as nodes_at_once:
        return list(nodes_at_once.map(lambda one: measure("exit", one, folder(tmp_path, one.node)), places))
