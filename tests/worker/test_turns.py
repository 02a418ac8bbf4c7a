"""Who works when, with threads for ranks."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from gpu_acceptance.worker.session import of_own_node, once_per_node, take_turns


def run(hosts, work, together=take_turns, place="host"):
    """What each rank got; ranks meet at a barrier as they do in `gather`. Fails where they do not all come."""
    shared = [None] * len(hosts)
    barrier = threading.Barrier(len(hosts), timeout=60)

    def rank_runs(rank):
        def gather(key, value):
            shared[rank] = (key, value)
            barrier.wait()
            got = list(shared)
            barrier.wait()
            assert len({key for key, _ in got}) == 1
            return [value for _, value in got]

        return together(lambda: work(rank), rank=rank, gather=gather, **{place: hosts[rank]})

    with ThreadPoolExecutor(len(hosts)) as pool:
        return list(pool.map(rank_runs, range(len(hosts))))


@pytest.mark.parametrize("hosts", ["a", "aaaa", "aabb", "abab", "aaab", "baa", "abc"])
def test_one_rank_of_a_host_works_at_a_time_and_each_gets_what_it_made(hosts):
    lock, working, crowds, overlaps = threading.Lock(), Counter(), [], []

    def work(rank):
        with lock:
            working[hosts[rank]] += 1
            crowds.append(working[hosts[rank]])
        threading.Event().wait(0.02)
        with lock:
            overlaps.append(sum(working.values()))
            working[hosts[rank]] -= 1
        return 10 * rank

    assert run(hosts, work) == [10 * rank for rank in range(len(hosts))]
    assert crowds == [1] * len(hosts)
    assert max(overlaps) <= len(set(hosts))


def test_hosts_do_not_wait_for_each_other():
    both = threading.Barrier(2, timeout=60)
    assert run("ab", lambda rank: both.wait() in {0, 1}) == [True, True]


def test_nobody_leaves_before_the_last_has_worked():
    done = []
    assert run("aaa", lambda rank: done.append(rank)) == [None] * 3
    assert done == [0, 1, 2]


@pytest.mark.parametrize("length", [0, 1, 399, 400, 401, 2000])
@pytest.mark.parametrize("nodes", [(0,), (0, 0, 0, 0), (0, 1, 0, 1), (1, 0, 0)])
def test_one_rank_of_each_node_works_and_all_of_that_node_get_its_text(nodes, length):
    worked = []

    def work(rank):
        worked.append(rank)
        return str(rank) * length

    first = {node: nodes.index(node) for node in nodes}
    assert run(nodes, work, once_per_node, "node") == [str(first[node]) * length for node in nodes]
    assert sorted(worked) == sorted(first.values())


def test_nodes_whose_texts_differ_in_length_each_get_their_own():
    assert run((0, 1, 1), lambda rank: "x" * (5000 if rank else 3), once_per_node, "node") == ["xxx", "x" * 5000, "x" * 5000]


@pytest.mark.parametrize(("rank", "local_rank", "own"), [(0, 0, "ab"), (1, 1, "ab"), (2, 0, "cd"), (5, 1, "ef")])
def test_ranks_are_numbered_node_by_node(rank, local_rank, own):
    ranks = SimpleNamespace(rank=rank, local_rank=local_rank, local_world_size=2)
    assert of_own_node(ranks, list("abcdef")) == list(own)
