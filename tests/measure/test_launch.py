import pytest
import torch

from gpu_acceptance.measure import launch
from gpu_acceptance.measure.timing import Blocks

CPU = torch.device("cpu")


@pytest.fixture
def short_blocks(monkeypatch):
    monkeypatch.setattr(launch, "_BLOCK_S", 0.001)


def test_every_kernel_of_a_sound_device_is_counted(short_blocks):
    result = launch.measure(device=CPU, num_blocks=2)
    assert result.num_wrong == 0
    assert result.kernel_us > 0
    assert result.round_trip_us > 0


def test_a_kernel_that_did_not_run_leaves_wrong_elements(short_blocks, monkeypatch):
    real, calls = torch.Tensor.add_, []

    def lose_the_third(elements, number):
        calls.append(number)
        return elements if len(calls) == 3 else real(elements, number)

    monkeypatch.setattr(torch.Tensor, "add_", lose_the_third)
    assert launch.measure(device=CPU, num_blocks=2).num_wrong == 1024


def test_the_median_block_is_the_figure(monkeypatch):
    blocks = iter([Blocks((4e-6, 3e-6, 9e-6), 20), Blocks((2e-5, 1e-5, 3e-5), 20)])
    monkeypatch.setattr(launch, "time_blocks", lambda operation, **_: next(blocks))
    result = launch.measure(device=CPU, num_blocks=3)
    assert (result.kernel_us, result.round_trip_us) == (pytest.approx(4), pytest.approx(20))
