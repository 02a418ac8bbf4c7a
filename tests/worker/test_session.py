"""Figures and values that a worker takes from a validation, and turns of ranks, with threads for ranks."""

import json
import re
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from gpu_acceptance.control.control import MAX_MESSAGE_BYTES
from gpu_acceptance.inventory.answer import Missing, Why
from gpu_acceptance.inventory.gpu import Gpu, GpuProcess, GpuUse
from gpu_acceptance.measure.pace import Spread
from gpu_acceptance.worker.session import (
    MOST_FIGURES,
    Figures,
    check_gathered,
    of_own_node,
    once_per_node,
    take_turns,
    use_before,
    worker_session,
)


def test_figures_are_taken_until_the_end_and_noted_after_it():
    late = []
    figures = Figures("acceptance/test_a.py::test_a", late)
    figures.add("a.x.value", 2.0, "GB/s", judged=True, spread=Spread(1.5))
    (taken,) = figures.close()
    assert (taken.metric, taken.value, taken.judged, taken.spread_percent) == ("a.x.value", 2.0, True, 1.5)
    figures.add("a.x.value", 0.1, "GB/s", judged=True)
    assert late == ["acceptance/test_a.py::test_a gave a.x.value after it had ended"]
    assert figures.close() == []


def test_too_many_figures_are_refused():
    figures = Figures("a", [])
    for _ in range(MOST_FIGURES):
        figures.add("a.x.value", 1, "count", judged=False)
    with pytest.raises(ValueError, match="more than 2000 figures in one validation"):
        figures.add("a.x.value", 1, "count", judged=False)


def test_numbers_and_short_texts_may_be_gathered():
    for value in (1, 1.5, True, "x" * 2000, ""):
        check_gathered("key", value, 2)


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("key", "x" * 2001, "gather wants a number, a bool or a text of at most 2000 characters, got 'xxx"),
        ("key", [1], r"gather wants a number, a bool or a text of at most 2000 characters, got \[1\]"),
        ("key", None, "got None"),
        ("", 1, "gather wants a key of 1 to 100 characters, got ''"),
        (7, 1, "gather wants a key of 1 to 100 characters, got 7"),
    ],
)
def test_other_values_and_keys_may_not(key, value, text):
    with pytest.raises(ValueError, match=text):
        check_gathered(key, value, 2)


@pytest.mark.parametrize("world_size", [90, 1024])
def test_the_values_of_all_ranks_fit_into_one_message(world_size):
    """Each character outside ASCII is 6 bytes of JSON, one outside the basic plane 12."""
    refused = rf"gather wants at most \d+ bytes of JSON from each of {world_size} ranks, got 24002: '😀😀"
    with pytest.raises(ValueError, match=refused) as caught:
        check_gathered("key", "😀" * 2000, world_size)
    most = int(re.search(r"at most (\d+)", str(caught.value))[1])
    value = "é" * ((most - 2) // 6)
    check_gathered("key", value, world_size)
    with pytest.raises(ValueError, match=f"at most {most} bytes of JSON from each of {world_size} ranks, got {most + 1}: "):
        check_gathered("key", value + "x" * (most - len(json.dumps(value)) + 1), world_size)
    message = {"type": "gathered", "seq": 10**9, "values": [value] * world_size}
    assert MAX_MESSAGE_BYTES * 0.9 < len(json.dumps([world_size, message])) < MAX_MESSAGE_BYTES


def test_fixtures_refuse_without_a_supervisor(pytestconfig):
    with pytest.raises(pytest.UsageError, match="no supervisor started this process, so nothing here would be judged"):
        worker_session(pytestconfig)


TAKEN = GpuUse((GpuProcess(1607, 2**30), GpuProcess(1700, Missing(Why.NOT_SUPPORTED))), Missing(Why.NOT_PERMITTED, "nvml"))


def test_the_use_of_a_gpu_before_the_run_is_found_by_its_uuid():
    gpus = [Gpu(index=0, name="NVIDIA H200", uuid="GPU-0", use=GpuUse((), 0)), Gpu(index=1, name="NVIDIA H200", uuid="GPU-1", use=TAKEN)]
    assert use_before(gpus, "GPU-1") == TAKEN
    assert use_before(gpus, "GPU-0") == GpuUse((), 0)


@pytest.mark.parametrize("gpus", [[], [Gpu(index=0, name="")], [Gpu(index=0, name="", uuid="GPU-0", use=None)]])
def test_the_use_of_a_gpu_that_nvml_did_not_show_is_unknown(gpus):
    unknown = Missing(Why.NOT_THERE, "NVML did not show this GPU before the run began")
    assert use_before(gpus, "GPU-0") == GpuUse(unknown, unknown)


def test_a_validation_cannot_write_counters_that_its_supervisor_reads():
    text = "counters.xids: what rises on a GPU is read by its supervisor; a validation measures under its own subject"
    with pytest.raises(ValueError, match=re.escape(text)):
        Figures("a", []).add("counters.xids", 0, "count", judged=True)


def run(hosts, work, together=take_turns, place="host"):
    """Return the result of each rank; ranks meet at a barrier as they do in `gather`. Fails where one does not come."""
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


@pytest.mark.parametrize("length", [0, 1, 399, 400, 401, 2000])
@pytest.mark.parametrize("nodes", [(0,), (0, 0, 0, 0), (0, 1, 0, 1), (1, 0, 0)])
def test_one_rank_of_each_node_works_and_all_of_that_node_get_its_text(nodes, length):
    worked = []

    def work(rank):
        worked.append(rank)
        return str(rank) * length * (1 + 2 * rank)  # texts of nodes differ in length

    first = {node: nodes.index(node) for node in nodes}
    assert run(nodes, work, once_per_node, "node") == [str(first[node]) * length * (1 + 2 * first[node]) for node in nodes]
    assert sorted(worked) == sorted(first.values())


@pytest.mark.parametrize(("rank", "local_rank", "own"), [(0, 0, "ab"), (1, 1, "ab"), (2, 0, "cd"), (5, 1, "ef")])
def test_ranks_are_numbered_node_by_node(rank, local_rank, own):
    ranks = SimpleNamespace(rank=rank, local_rank=local_rank, local_world_size=2)
    assert of_own_node(ranks, list("abcdef")) == list(own)
