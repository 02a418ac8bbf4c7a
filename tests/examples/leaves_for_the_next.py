"""One test function, quick: what the first leaves must not become a miss of the next."""

import pytest
import torch

SOUND = torch.equal


@pytest.mark.parametrize("number", range(3))
def test_equal(number, check):
    if number == 0:
        torch.equal = print
    check("leaves_for_the_next.value", 5.0 if number == 0 or torch.equal is SOUND else 0.0, "GB/s")
