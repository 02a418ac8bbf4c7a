"""Memory: does nearly all of each GPU's memory give back what was written to it?"""

import pytest

from gpu_acceptance.measure import memory_fill

pytestmark = pytest.mark.no_group


def test_patterns(ranks, check, record, parameter):
    """Nearly all free memory holds each of six patterns for a while, and not one word comes back changed."""
    result = memory_fill.measure(
        device=ranks.device,
        fraction=parameter("memory.fraction"),
        hold_s=parameter("memory.hold_s"),
        min_bytes=parameter("memory.min_bytes"),
        cpu_bytes=parameter("memory.cpu_bytes"),
    )
    check("memory.fill.wrong", result.num_wrong, "words", detail=result.where)
    check("memory.fill.fraction", result.fraction, "relative")
    record("memory.fill.tested_bytes", result.tested_bytes, "bytes")
