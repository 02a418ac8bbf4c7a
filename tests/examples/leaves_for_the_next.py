"""One test function, quick enough that functions of torch are looked at later: what the first leaves is told of the one that fails."""

import pytest
import torch

SOUND = torch.equal


@pytest.mark.parametrize("number", range(4))
def test_equal(number, check):
    if number == 0:
        torch.equal = print
    check("leaves_for_the_next.value", 5.0, "GB/s")
    assert number == 0 or torch.equal is SOUND
