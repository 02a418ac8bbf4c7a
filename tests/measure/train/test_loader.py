"""A DistributedSampler gives samples by its definition in worlds of several sizes; faults on two real ranks (gloo) are found."""

import pytest
import torch
from gloo_ranks import answers_of
from torch.utils.data import DistributedSampler

from gpu_acceptance.measure.train import loader
from gpu_acceptance.measure.train.loader import Epoch, Numbers, count, num_same, per_rank, sizes

pytestmark = pytest.mark.slow

NUM_SAMPLES = 2 * loader.SAMPLES_PER_RANK + 1
SOUND = {"num_missing": 0, "num_repeated": 0, "padding_difference": 0}


def order_of(num_samples, world_size, *, epoch=0, drop_last=False):
    parts = []
    for rank in range(world_size):
        part = DistributedSampler(Numbers(num_samples), num_replicas=world_size, rank=rank, drop_last=drop_last)
        part.set_epoch(epoch)
        parts.append(list(part))
    return torch.tensor(parts)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("num_samples", [7, 8, 20, 21, 22, 41])
@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
def test_what_torch_gives_is_what_it_is_defined_to_give(world_size, num_samples, drop_last):
    order_WK = order_of(num_samples, world_size, drop_last=drop_last)
    assert order_WK.shape == (world_size, per_rank(num_samples, world_size, drop_last=drop_last))
    num_distinct = num_samples - num_samples % world_size if drop_last else num_samples
    assert count(order_WK, num_samples, drop_last=drop_last) == Epoch(num_distinct, **SOUND)


def test_more_ranks_than_samples_are_padding_over_and_over():
    assert count(order_of(2, 7), 2, drop_last=False) == Epoch(2, **SOUND)


def test_the_sizes_are_shared_evenly_and_not():
    assert sizes(1) == [1000, 1001]
    assert sizes(2) == [2000, 2001]
    assert sizes(7) == [7000, 7001, 7006]


@pytest.mark.parametrize(
    ("place", "number", "wanted"),
    [
        ((1, 1), 0, Epoch(5, **SOUND)),  # as it was
        ((1, 1), 3, Epoch(4, num_missing=1, num_repeated=1, padding_difference=0)),
        ((1, 1), 99, Epoch(4, num_missing=1, num_repeated=1, padding_difference=0)),  # of no data
        ((2, 1), 0, Epoch(5, num_missing=0, num_repeated=0, padding_difference=1)),  # padding with another sample
        ((2, 1), -1, Epoch(5, num_missing=0, num_repeated=0, padding_difference=2)),  # none
    ],
)
def test_what_differs_is_counted(place, number, wanted):
    order_WK = torch.tensor([[4, 1], [3, 0], [2, 4]])
    order_WK[place] = number
    assert count(order_WK, 5, drop_last=False) == wanted


def test_a_rank_that_gives_less_leaves_samples_out():
    order_WK = order_of(8, 2)
    order_WK[1, 2:] = -1
    assert count(order_WK, 8, drop_last=False) == Epoch(6, num_missing=2, num_repeated=0, padding_difference=2)


def test_each_epoch_that_has_an_order_again_counts():
    first, second = order_of(20, 2), order_of(20, 2, epoch=1)
    assert [num_same([first, second]), num_same([first, second, first]), num_same([first] * 3)] == [0, 1, 2]


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    return answers_of("train/loader_ranks.py", 2, tmp_path_factory.mktemp("ranks"))


def test_every_sample_is_read_once_over_all_ranks_by_workers_that_end(answers):
    for answer in answers:
        assert answer["padded"]["epochs"] == [{"num_distinct": NUM_SAMPLES, **SOUND}] * 2
        assert answer["padded"]["workers"] == [{"num_started": 2, "num_missing": 0, "num_left": 0, "fault": ""}] * 2
        assert answer["dropped"]["epochs"] == [{"num_distinct": NUM_SAMPLES - 1, **SOUND}] * 2
        assert answer["padded"]["num_same_order"] == answer["dropped"]["num_same_order"] == 0


def test_an_epoch_that_is_not_shuffled_anew(answers):
    for answer in answers:
        assert answer["never shuffled anew"]["num_same_order"] == 1
        assert answer["never shuffled anew"]["epochs"] == [{"num_distinct": NUM_SAMPLES, **SOUND}] * 2


def test_a_rank_that_reads_the_part_of_another(answers):
    """All are told alike. Half is read twice, but for the first sample, which the padding of rank 1 was to be."""
    half = NUM_SAMPLES // 2
    wanted = {"num_distinct": half + 1, "num_missing": half, "num_repeated": half, "padding_difference": 1}
    for answer in answers:
        assert answer["another's part"]["epochs"] == [wanted] * 2


def test_a_dead_worker_is_told_by_its_rank_and_what_nobody_read_is_not_counted(answers):
    sound, faulty = (answer["a dead worker"] for answer in answers)
    assert [one["num_missing"] for one in sound["workers"]] == [0, 0]
    assert all(one["num_missing"] >= 1 and one["num_left"] == 0 for one in faulty["workers"])
    assert all("DataLoader worker" in one["fault"] or "Connection" in one["fault"] or "EOF" in one["fault"] for one in faulty["workers"])
    assert sound["epochs"] == faulty["epochs"] == []


def test_workers_that_never_began_say_nothing_about_samples(answers):
    told = [answer["a path that is too long"] for answer in answers]
    assert told[0] == "no worker of a DataLoader could be started: on another rank"
    assert told[1] == "no worker of a DataLoader could be started: OSError: AF_UNIX path too long"


def test_data_that_come_too_late_are_told_from_training(answers):
    """Two workers that take 1.2 s for a batch give one each 0.6 s."""
    for answer in answers:
        sound, slow = answer["loaded"]["sound"], answer["loaded"]["slow"]
        assert 0 < sound["waits"] < slow["waits"]
        assert slow["phases"]["data_wait_s"] > 0.05
        assert all(seconds > 0 for found in (sound, slow) for seconds in found["phases"].values())
