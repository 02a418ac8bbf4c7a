import pytest
import torch
import torch.distributed as dist
from gloo_ranks import answers_of
from hypothesis import given
from hypothesis import strategies as st

from gpu_acceptance.measure import nccl
from gpu_acceptance.measure.nccl import bus_factor

COLLECTIVES = ["all_gather", "all_reduce", "reduce_scatter"]
NUM_ELEMENTS = 1000  # of the messages in gloo_world.py


@pytest.mark.parametrize(("collective", "expected"), [("all_reduce", 1.75), ("all_gather", 0.875), ("reduce_scatter", 0.875)])
def test_bus_factor_on_8_ranks(collective, expected):
    assert bus_factor(collective, world_size=8) == expected


@given(world_size=st.integers(2, 4096))
def test_bus_factors_of_any_world(world_size):
    assert bus_factor("all_gather", world_size) == bus_factor("reduce_scatter", world_size)
    assert bus_factor("all_reduce", world_size) == 2 * bus_factor("all_gather", world_size)
    assert 0.5 <= bus_factor("all_gather", world_size) < 1
    assert bus_factor("all_gather", world_size) < bus_factor("all_gather", world_size + 1)


def test_bus_factor_names_the_known_collectives():
    with pytest.raises(ValueError, match=r"^unknown collective 'gather'; known: all_gather, all_reduce, reduce_scatter$"):
        bus_factor("gather", world_size=8)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_a_world_of_one_is_refused(collective, monkeypatch):
    monkeypatch.setattr(dist, "get_world_size", lambda: 1)
    with pytest.raises(ValueError, match=f"^{collective} needs at least 2 ranks, this world has 1$"):
        nccl.measure(collective, num_bytes=64, device=torch.device("cpu"), block_s=0.01, num_blocks=2)


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """What each of two real ranks printed."""
    return answers_of("gloo_world.py", 2, tmp_path_factory.mktemp("gloo"))


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_two_ranks_agree_on_every_number(collective, answers):
    first, second = (answer["sound"][collective] for answer in answers)
    assert first == second
    assert first["num_wrong"] == 0
    assert first["num_bytes"] == 4 * NUM_ELEMENTS
    assert 0 < first["elapsed_s"] <= first["slowest_s"]
    assert first["busbw_gb_per_s"] == pytest.approx(4 * NUM_ELEMENTS / first["elapsed_s"] / 1e9 * bus_factor(collective, 2))


@pytest.mark.parametrize("fault", ["wrong", "nan"])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_one_wrong_element_on_one_rank_is_told_to_all(collective, fault, answers):
    assert [answer[fault][collective]["num_wrong"] for answer in answers] == [1, 1]


@pytest.mark.parametrize(("collective", "per_rank"), [("all_gather", 500), ("all_reduce", 1000), ("reduce_scatter", 500)])
def test_a_collective_that_moves_nothing_has_every_element_wrong_that_was_to_come(collective, per_rank, answers):
    assert [answer["nothing"][collective]["num_wrong"] for answer in answers] == [2 * per_rank] * 2


@pytest.mark.parametrize(("collective", "per_rank"), [("all_gather", 1000), ("all_reduce", 1000), ("reduce_scatter", 500)])
def test_right_elements_in_the_wrong_place_are_wrong(collective, per_rank, answers):
    assert [answer["swapped"][collective]["num_wrong"] for answer in answers] == [2 * per_rank] * 2


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_a_rank_that_saw_wrong_elements_says_so_even_when_the_sum_is_lost(collective, answers):
    assert [answer["lying"][collective]["num_wrong"] for answer in answers] == [0, 1]


def test_a_slow_rank_runs_as_many_operations_as_a_fast_one(answers):
    assert answers[0]["num_runs"] == answers[1]["num_runs"]


def test_messages_of_less_than_an_element_per_rank_are_refused(answers):
    assert answers[0]["too_small"] == "num_bytes=7: less than one fp32 element for each of 2 ranks"


def test_unknown_collectives_are_refused_before_anything_is_sent(answers):
    assert answers[0]["unknown"].startswith("unknown collective 'gather'; known: all_gather")
