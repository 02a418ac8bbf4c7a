"""Each GPU's memory passes a pattern test over nearly all of it: every word reads back as written."""

import pytest

from gpu_acceptance.measure import memory_fill

pytestmark = pytest.mark.no_group


@pytest.mark.drill("a word changes while it is held", "memory.fill.wrong", parameters={"memory.planted_words": 1})
@pytest.mark.drill("a fifth of the memory is left out", "memory.fill.fraction", parameters={"memory.fraction": 0.8})
def test_patterns(ranks, check, record, parameter, drill):
    """Nearly all free memory holds each of six patterns for a while, and every word reads back unchanged."""
    num_planted = drill("memory.planted_words", "memory.planted_rank")
    result = memory_fill.measure(
        device=ranks.device,
        fraction=parameter("memory.fraction"),
        hold_s=parameter("memory.hold_s"),
        min_bytes=parameter("memory.min_bytes"),
        cpu_bytes=parameter("memory.cpu_bytes"),
        between_write_and_verify=memory_fill.plant(num_planted),
    )
    check("memory.fill.wrong", result.num_wrong, "words", detail=result.where)
    check("memory.fill.fraction", result.fraction, "relative")
    check("memory.planted.words", num_planted, "words")
    record("memory.fill.tested_bytes", result.tested_bytes, "bytes")
