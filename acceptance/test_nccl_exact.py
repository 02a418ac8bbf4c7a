"""Seven collectives give exact results on every rank at small, ragged and middle sizes.

Also in a world of one rank.
"""

import pytest

from gpu_acceptance.measure import nccl


@pytest.mark.drill("an element changes after its reduction", "nccl_exact.elements.wrong", parameters={"nccl_exact.planted_elements": 1})
def test_elements(ranks, check, record, parameter, drill):
    """No bit of any output differs from the exact result; a rank with a wrong output reports it."""
    num_planted = drill("nccl_exact.planted_elements", "nccl_exact.planted_rank")
    found = nccl.measure_exact(largest_bytes=parameter("nccl_exact.largest_bytes"), device=ranks.device, num_planted=num_planted)
    wrong = "; ".join(f"{operation}: {number}" for operation, number in found.items() if number)
    check("nccl_exact.elements.wrong", sum(found.values()), "elements", detail=wrong)
    check("nccl_exact.planted.elements", num_planted, "elements")
    record("nccl_exact.operations.run", len(found), "count")
