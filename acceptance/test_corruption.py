"""Equal work gives equal bits, at every repetition and on every GPU: no silent data corruption.

The report gives the rate of corruption that the run excludes.
"""

import pytest

from gpu_acceptance.measure.corruption import repeat, survey

# cuBLAS reads it at its first call. One validation runs all kernels, so that one worker of its own is enough.
pytestmark = [pytest.mark.no_group, pytest.mark.worker(env=repeat.ENVIRONMENT)]


@pytest.mark.drill("a bit flips in one of 50 results", "corruption.repeats.mismatches", parameters={"corruption.planted_flip_every": 50})
def test_kernels(ranks, check, parameter, drill, check_survey):
    """Every kernel at every shape has the same bits at each repetition, and on all GPUs of one model under the same versions."""
    flip_every = drill("corruption.planted_flip_every", "corruption.planted_flip_rank")
    found = survey.measure(device=ranks.device, seconds=parameter("corruption.seconds"), flip_every=flip_every)
    check("corruption.kernels.run", len(found.by_kernel), "count", detail="; ".join(map(": ".join, found.unsupported.items())))
    check("corruption.planted.flips", found.num_planted, "count")
    check_survey("corruption", found)
