import pytest
import torch
import torch.distributed as dist
from gloo_ranks import answers_of
from hypothesis import given
from hypothesis import strategies as st

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
def test_bus_factor_on_8_ranks(collective):
    """https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md"""
    assert bus_factor(collective, world_size=8) == ON_8_RANKS.get(collective, 1)


@given(world_size=st.integers(2, 4096))
def test_bus_factors_of_any_world(world_size):
    assert bus_factor("all_gather", world_size) == bus_factor("reduce_scatter", world_size)
    assert bus_factor("all_reduce", world_size) == 2 * bus_factor("all_gather", world_size)
    assert 0.5 <= bus_factor("all_gather", world_size) < 1
    assert bus_factor("all_gather", world_size) < bus_factor("all_gather", world_size + 1)


def test_bus_factor_names_the_known_collectives():
    known = "all_gather, all_reduce, reduce_scatter, all_to_all, broadcast, reduce, send_recv"
    with pytest.raises(ValueError, match=f"^unknown collective 'gather'; known: {known}$"):
        bus_factor("gather", world_size=8)


def test_a_world_of_one_is_refused(monkeypatch):
    monkeypatch.setattr(dist, "get_world_size", lambda group: 1)
    with pytest.raises(ValueError, match=r"^all_reduce needs at least 2 ranks, this world has 1$"):
        nccl.measure("all_reduce", num_bytes=64, device=torch.device("cpu"), block_s=0.01, num_blocks=2)


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
@pytest.mark.parametrize("fault", ["wrong", "nan"])
@each_collective
def test_one_wrong_element_is_told_by_the_rank_that_has_it(collective, fault, answers):
    assert [answer[fault][collective] for answer in answers] == [0, min(1, MESSAGES[collective][1][1])]


@pytest.mark.slow
@each_collective
def test_a_collective_that_moves_nothing_has_every_element_wrong_that_was_to_come(collective, answers):
    wrong = [answer["nothing"][collective] for answer in answers]
    to_come = {"all_gather": [500, 500], "broadcast": [0, 1001]}  # the rest is in place from the beginning
    assert wrong == to_come.get(collective, MESSAGES[collective][1])


@pytest.mark.slow
@each_collective
def test_right_elements_in_the_wrong_place_are_wrong(collective, answers):
    assert [answer["swapped"][collective] for answer in answers] == MESSAGES[collective][1]


@pytest.mark.slow
@each_collective
def test_a_drill_gives_as_many_wrong_elements_to_the_rank_that_asked_for_them(collective, answers):
    assert [answer["planted"][collective] for answer in answers] == [0, min(2, MESSAGES[collective][1][1])]


@pytest.mark.slow
@each_collective
def test_elements_are_counted_without_timing(collective, answers):
    assert [answer["none"][collective] for answer in answers] == [0, 0]


@pytest.mark.parametrize(
    ("means_s", "late"),
    [([1.0, 1.0], ()), ([1.0, 0.89], (1,)), ([1.0, 0.91, 1.01], ()), ([0.5, 1, 1, 1], (0,)), ([0.5, 0.5, 1, 1], (0, 1)), ([1.0], ())],
)
def test_a_rank_is_late_that_spends_less_time_in_an_operation_than_most(means_s, late):
    assert nccl.late_ranks(means_s) == late


@pytest.mark.parametrize(
    ("nodes", "pairs"),
    [
        ([0, 0, 1, 1], [0, 0, 0, 0]),
        ([0, 0, 3, 3, 5, 5, 9], [0, 0, 0, 0, 1, 1, 1]),
        ([0, 1, 2, 2], [0, 0, 5, 6]),  # the third node has no neighbour: each of its ranks is alone
        ([4, 4], [1, 2]),
    ],
)
def test_neighbours_are_two_nodes(nodes, pairs):
    assert nccl.neighbours(nodes) == pairs


@pytest.mark.slow
def test_a_slow_rank_runs_as_many_operations_as_a_fast_one(answers):
    assert answers[0]["num_runs"] == answers[1]["num_runs"]


@pytest.mark.slow
def test_a_message_is_no_shorter_than_an_element_of_shards_one_for_each_rank(answers):
    assert answers[0]["shortest"] == {c: 8 if c in {"all_gather", "reduce_scatter", "all_to_all"} else 4 for c in NAMES}


@pytest.mark.slow
def test_a_message_of_no_bytes_is_refused(answers):
    assert answers[0]["too_small"] == "num_bytes=0: at least 1"


@pytest.mark.slow
def test_every_collective_is_exact_at_three_sizes_and_a_drill_is_found(answers):
    assert [answer["exact"]["num_operations"] for answer in answers] == [3 * len(NAMES)] * 2
    assert [answer["exact"]["num_planted"] for answer in answers] == [0, 1]
    assert [answer["exact"]["wrong_by_operation"] for answer in answers] == [{}, {"all_reduce of 4096 bytes": 1}]


@pytest.mark.slow
def test_sizes_that_are_the_same_are_run_once(answers):
    assert answers[0]["exact_at_one_element"] == [len(NAMES), 0]


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


@pytest.mark.slow
def test_unknown_collectives_are_refused_before_anything_is_sent(answers):
    assert answers[0]["unknown"].startswith("unknown collective 'gather'; known: all_gather")


@pytest.mark.slow
def test_latency_called_one_by_one(answers):
    for answer in answers:
        assert answer["latency"]["num_bytes"] == 8
        assert 0 < answer["latency"]["latency_us"] < 1e6
        assert answer["latency"]["block_cv_percent"] >= 0


@pytest.mark.parametrize(("collective", "told"), [("all_reduce", "the others wait for rank 1, 3"), ("broadcast", ""), ("send_recv", "")])
def test_who_comes_late_is_told_where_every_rank_waits_for_every_other(collective, told):
    result = nccl.CollectiveResult(collective, 8, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, late_ranks=(1, 3), num_wrong=0)
    assert result.late == told


@pytest.mark.parametrize(("collective", "wanted"), [("all_reduce", 1000), ("all_to_all", 2000)])
def test_buffers_that_do_not_fit_are_refused(collective, wanted, monkeypatch):
    monkeypatch.setattr(dist, "get_rank", lambda group: 0)
    monkeypatch.setattr(dist, "get_world_size", lambda group: 2)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (999, 4096))
    with pytest.raises(ValueError, match=f"^buffers of {wanted} bytes on cuda:1: only 999 bytes are free$"):
        collectives.Buffers(collective, 1000, torch.device("cuda", 1))
