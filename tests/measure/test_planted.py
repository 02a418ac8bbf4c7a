"""Faults that a drill plants around a validation: each spoils what it says, and nothing once it is over."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn

from gpu_acceptance.measure import planted
from gpu_acceptance.measure.collectives import Buffers
from gpu_acceptance.measure.planted import PLANTS

ACCEPTANCE = Path(__file__).parents[2] / "acceptance"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.float8_e4m3fn])
def test_one_element_is_spoiled_in_its_highest_byte(dtype):
    tensor = torch.ones(3, 5).to(dtype)
    planted.spoil(tensor, 15 + 7)
    before = torch.ones(15).to(dtype).view(torch.uint8)
    differing = (tensor.flatten().view(torch.uint8) != before).nonzero().flatten().tolist()
    assert differing == [7 * tensor.element_size() + tensor.element_size() - 1]


def test_nothing_is_spoiled_where_there_is_nothing():
    planted.spoil(torch.empty(0), 3)


@pytest.mark.parametrize(
    ("name", "work", "expected"),
    [
        ("products", lambda: torch.eye(8) @ torch.eye(8), torch.eye(8)),
        ("products", lambda: torch.mm(torch.eye(8), torch.eye(8), out=torch.empty(8, 8)), torch.eye(8)),
        ("arrays", lambda: torch.mul(torch.ones(8), 1.0, out=torch.empty(8)), torch.ones(8)),
        ("arrays", lambda: torch.empty(8).fill_(3), torch.full((8,), 3.0)),
    ],
)
def test_results_are_spoiled_while_it_lasts(name, work, expected):
    with PLANTS[name]():
        spoiled = work()
    assert int((spoiled != expected).sum()) == 1
    assert torch.equal(work(), expected)


def test_what_is_not_of_its_kind_is_left_alone():
    with PLANTS["products"]():
        assert torch.equal(torch.ones(8) * 2, torch.full((8,), 2.0))


def trained(num_steps=1):
    weight = nn.Parameter(torch.ones(2, 2))
    optimizer = torch.optim.AdamW([weight], lr=0.0)
    weight.grad = torch.zeros(2, 2)
    for _ in range(num_steps):
        optimizer.step()
    return weight.detach()


def test_one_weight_changes_after_each_step():
    with PLANTS["weights"]():
        assert trained(2)[0, 0].item() == pytest.approx(1.01**2)
    assert torch.equal(trained(2), torch.ones(2, 2))


def test_patched_functions_are_put_back():
    ddp = nn.parallel.DistributedDataParallel
    before = ddp.__init__, Buffers.run
    with PLANTS["no reduction"](), PLANTS["collectives"]():
        assert (ddp.__init__ is before[0], Buffers.run is before[1]) == (False, False)
    assert (ddp.__init__, Buffers.run) == before


def test_every_plant_that_a_validation_names_is_there_and_none_is_unused():
    named = {name for path in ACCEPTANCE.glob("test_*.py") for name in re.findall(r'plant="([^"]+)"', path.read_text())}
    assert named == PLANTS.keys()
