import pytest
import torch
import torch.distributed as dist
from gloo_ranks import answers_of

from gpu_acceptance.measure import collectives, nccl
from gpu_acceptance.measure.collectives import NAMES, bus_factor

# Elements of a message in gloo_world.py, and of what each of its two ranks gets of it.
MESSAGES = {
    "all_gather": (1000, [1000, 1000]),
    "all_reduce": (1001, [1001, 1001]),
    "reduce_scatter": (1000, [500, 500]),
    "all_to_all": (1000, [1000, 1000]),
    "broadcast": (1001, [1001, 1001]),
    "reduce": (1001, [1001, 0]),
    "send_recv": (1001, [1001, 1001]),
}
ON_8_RANKS = {"all_reduce": 1.75, "all_gather": 0.875, "reduce_scatter": 0.875, "all_to_all": 0.875}
each_collective = pytest.mark.parametrize("collective", NAMES)


@each_collective
def test_bus_factor_on_8_ranks_and_on_2(collective):
    """https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md"""
    assert bus_factor(collective, world_size=8) == ON_8_RANKS.get(collective, 1)
    assert bus_factor(collective, world_size=2) == (0.5 if ON_8_RANKS.get(collective) == 0.875 else 1)


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """The output of two real ranks."""
    return answers_of("gloo_world.py", 2, tmp_path_factory.mktemp("gloo"))


@pytest.mark.slow
@each_collective
def test_two_ranks_agree_on_every_number(collective, answers):
    first, second = (answer["sound"][collective] for answer in answers)
    assert first == second
    assert first["num_wrong"] == 0
    assert first["num_bytes"] == 4 * MESSAGES[collective][0]
    assert 0 < first["elapsed_s"] <= first["slowest_s"]
    assert 0 < first["p50_s"] <= first["p99_s"]
    assert first["busbw_gb_per_s"] == pytest.approx(first["num_bytes"] / first["elapsed_s"] / 1e9 * bus_factor(collective, 2))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "wrong"),
    [  # on each rank, from the elements that it gets
        ("none", lambda first, second: [0, 0]),  # counted without timing
        ("wrong", lambda first, second: [0, min(1, second)]),
        ("nan", lambda first, second: [0, min(1, second)]),
        ("planted", lambda first, second: [0, min(2, second)]),  # a drill
        ("swapped", lambda first, second: [first, second]),
        ("nothing", lambda first, second: [first, second]),  # moved, so that all are wrong that were to come
    ],
)
@each_collective
def test_wrong_elements_are_told_by_the_rank_that_has_them(collective, fault, wrong, answers):
    in_place = {"all_gather": [500, 500], "broadcast": [0, 1001]} if fault == "nothing" else {}  # the rest is there from the beginning
    assert [answer[fault][collective] for answer in answers] == in_place.get(collective, wrong(*MESSAGES[collective][1]))


@pytest.mark.parametrize(
    ("means_s", "late"),
    [([1.0, 1.0], ""), ([1.0, 0.89], "1"), ([1.0, 0.91, 1.01], ""), ([0.5, 1, 1, 1], "0"), ([0.5, 0.5, 1, 1], "0, 1"), ([1.0], "")],
)
def test_a_rank_is_late_that_spends_less_time_in_an_operation_than_most(means_s, late):
    assert nccl.late(means_s) == (late and f"the others wait for rank {late}")


@pytest.mark.slow
def test_nobody_is_late_where_a_rank_may_be_done_before_another_has_come(answers):
    assert {collective for collective in NAMES if answers[0]["late"][collective]} == {"all_gather", "all_reduce", "reduce_scatter"}


@pytest.mark.parametrize(
    ("nodes", "pairs"),
    [
        ([0, 0, 1, 1], [[0, 0, 0, 0]]),
        ([0, 0, 3, 3, 5, 5, 9], [[0, 0, 0, 0, 1, 1, 1]]),
        ([0, 1, 2, 2], [[0, 0, 5, 6], [3, 0, 0, 0]]),  # the third node has no partner but one that has been in a pair
        ([4, 4], []),
    ],
)
def test_each_node_is_in_a_pair(nodes, pairs):
    assert list(nccl.pairings(nodes)) == pairs


@pytest.mark.slow
def test_a_slow_rank_runs_as_many_operations_as_a_fast_one_and_a_message_has_an_element_or_of_shards_one_for_each_rank(answers):
    assert answers[0]["num_runs"] == answers[1]["num_runs"]
    assert answers[0]["shortest"] == {c: 8 if c in {"all_gather", "reduce_scatter", "all_to_all"} else 4 for c in NAMES}


@pytest.mark.slow
def test_every_collective_is_exact_at_three_sizes_a_drill_is_found_and_small_ones_have_a_latency(answers):
    assert [len(answer["exact"]) for answer in answers] == [3 * len(NAMES)] * 2
    wrong = [{operation: number for operation, number in answer["exact"].items() if number} for answer in answers]
    assert wrong == [{}, {"all_reduce of 4096 bytes": 1}]
    assert all(0 < answer["latency_us"] < 1e6 for answer in answers)
    assert list(answers[0]["exact_at_one_element"].values()) == [0] * len(NAMES)  # sizes that are the same are run once


@pytest.mark.parametrize(
    ("largest", "names"),
    [
        (8 * 2**30, ["8b", "512b", "32k", "2m", "128m", "8g"]),
        (2**20, ["8b", "512b", "32k", "1m"]),
        (8, ["8b"]),
        (1000, ["8b", "512b", "1000b"]),
    ],
)
def test_a_curve_goes_from_8_bytes_to_the_largest_size(largest, names):
    assert [nccl.size_name(size) for size in nccl.curve_sizes(largest)] == names


@pytest.mark.parametrize(("collective", "wanted"), [("all_reduce", 1000), ("all_to_all", 2000)])
def test_buffers_that_do_not_fit_are_refused(collective, wanted, monkeypatch):
    monkeypatch.setattr(dist, "get_rank", lambda group: 0)
    monkeypatch.setattr(dist, "get_world_size", lambda group: 2)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (999, 4096))
    with pytest.raises(ValueError, match=f"^buffers of {wanted} bytes on cuda:1: only 999 bytes are free$"):
        collectives.Buffers(collective, 1000, torch.device("cuda", 1))
