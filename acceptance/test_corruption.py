"""Silent data corruption: does equal work give equal bits, again and again, and on every GPU?"""

import pytest

from gpu_acceptance.inventory import versions
from gpu_acceptance.inventory.answer import Missing, Why
from gpu_acceptance.measure.corruption import determinism, peers, survey

# cuBLAS reads it at its first call; one validation runs all kernels, so that one worker of its own is enough.
pytestmark = [pytest.mark.no_group, pytest.mark.worker(env={determinism.VARIABLE: determinism.ALLOWED[0]})]


def test_kernels(ranks, check, record, parameter, drill):
    """Every kernel at every shape has the same bits at each repetition, and on all GPUs of one model under the same versions."""
    flip_every = drill("corruption.planted_flip_every", "corruption.planted_flip_rank")
    found = survey.measure(device=ranks.device, seconds=parameter("corruption.seconds"), flip_every=flip_every)
    check("corruption.kernels.run", len(found.by_kernel), "count", detail="; ".join(map(": ".join, found.unsupported.items())))
    check("corruption.repeats.mismatches", found.num_mismatches, "count", detail=found.mismatches)
    check("corruption.inputs.changed", found.num_inputs_changed, "count", detail=found.inputs_changed)
    check("corruption.planted.flips", found.num_planted, "count")

    kind = peers.kind_of(ranks.device, versions.read())
    kinds, fingerprints = ranks.gather("kind", kind), ranks.gather("fingerprint", found.fingerprint)
    odd = peers.odd_kind(kind, kinds)
    differing = peers.differing_works(found.fingerprint, kind, found.works, list(zip(kinds, fingerprints, strict=True)))
    check("corruption.peers.hash", Missing(Why.NOT_THERE, odd) if odd else found.hash, "text", detail=differing)

    record("corruption.detection.limit", found.detection_limit_per_minute, "events/min")
    record("corruption.detection.limit_of_one_kernel", found.weakest_detection_limit_per_minute, "events/min")
    for kernel, results in found.by_kernel.items():
        record(f"corruption.{kernel}.repetitions", sum(result.num_repetitions for result in results), "count")
        record(f"corruption.{kernel}.hash", " ".join(result.hash for result in results), "text")
