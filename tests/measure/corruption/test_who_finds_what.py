"""Planted faults on 8 devices: which of the two comparisons finds which."""

import pytest
import torch

from gpu_acceptance.measure.corruption import kernels
from gpu_acceptance.measure.corruption.determinism import deterministic
from gpu_acceptance.measure.corruption.hashing import Flip
from gpu_acceptance.measure.corruption.repeat import repeat
from gpu_acceptance.measure.corruption.survey import Reading, Work, by_work, compare_peers

CPU = torch.device("cpu")
VERSIONS = {"torch": torch.__version__, "cuda": "none", "cublas": "none", "driver": "none", "gpu": "cpu"}
ALWAYS = Flip(repetition=None, element=77, bit=0)


@pytest.fixture(autouse=True)
def _deterministic():
    with deterministic(CPU):
        yield


def measured(flips):
    """One result and one reading of each device, whose planted fault is given."""
    kernel = kernels.make("attention", "ragged", CPU)
    results = [repeat(kernel, num_repetitions=5, flip=flip) for flip in flips]
    work = Work(**VERSIONS, kernel=kernel.name, shape=kernel.shape)
    return results, [Reading(f"rank {rank}", work, result.input_hash, result.hash) for rank, result in enumerate(results)]


def peers_of(readings):
    ((_, units),) = by_work(readings).items()
    return compare_peers({unit: reading.hash for unit, reading in units.items()})


def test_healthy_devices_pass_both():
    results, readings = measured([None] * 8)
    assert not any(result.num_mismatches for result in results)
    assert len(peers_of(readings).agree) == 8


def test_a_fault_that_comes_once_is_found_by_the_device_itself_alone():
    results, readings = measured([None] * 3 + [Flip(repetition=2, element=77, bit=0)] + [None] * 4)
    assert [result.num_mismatches for result in results] == [0, 0, 0, 1, 0, 0, 0, 0]
    assert peers_of(readings).minority == ()


def test_a_device_that_is_always_wrong_is_found_by_its_peers():
    results, readings = measured([None] * 5 + [ALWAYS] + [None] * 2)
    assert not any(result.num_mismatches for result in results)
    assert peers_of(readings).minority == ("rank 5",)


def test_devices_that_are_all_wrong_alike_are_found_by_neither():
    results, readings = measured([ALWAYS] * 8)
    assert not any(result.num_mismatches for result in results)
    assert len(peers_of(readings).agree) == 8
