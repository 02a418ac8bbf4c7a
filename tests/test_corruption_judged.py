"""Hashes judged by the shipped limits: the odd GPU is named, and what was not compared is not held."""

import pytest

from gpu_acceptance.inventory.answer import Missing, Why
from gpu_acceptance.measure.corruption.survey import odd_kind
from gpu_acceptance.record.figure import make_figure
from gpu_acceptance.record.outcome import Status
from gpu_acceptance.record.row import Attempt
from gpu_acceptance.verdict.judge import judge
from tests.judging import make_job, make_record, shipped_profile

METRIC = "corruption.peers.hash"
PROFILE = shipped_profile("h200-sxm")


def judged(hashes, details=None):
    """The one judgement of hashes by rank, in which a Missing is no hash."""
    details = details or {}
    records = [
        make_record(rank, figures=(make_figure(METRIC, value, "text", judged=True, detail=details.get(rank, "")),))
        for rank, value in hashes.items()
    ]
    (judgement,) = judge((Attempt(number=1, ranks=tuple(records)),), PROFILE, make_job(len(hashes)), {}, "corruption")
    return judgement


def test_the_gpu_in_the_minority_is_named_with_its_serial_and_its_kernel():
    judgement = judged({0: "a", 1: "a", 2: "b", 3: "a"}, details={2: "differs in mm_bf16 8191x8193x4099"})
    assert (judgement.status, judgement.ranks) == (Status.MISSED, (2,))
    assert judgement.message.startswith(
        "corruption.peers.hash = b (differs in mm_bf16 8191x8193x4099) where most have a on ranks 0-1,3, need equal on all [base.yaml: "
    )
    assert "on rank 2 (node-00, GPU 2, serial 165390002); to do: stop using the GPU that differs" in judgement.message


@pytest.mark.parametrize(("hash_of_rank_3", "status", "ranks"), [("a", Status.INVALID, (1,)), ("b", Status.MISSED, (3,))])
def test_a_gpu_of_another_model_is_not_accused_and_excuses_no_other(hash_of_rank_3, status, ranks):
    kinds = ["an H200", "an H100", "an H200", "an H200"]
    why = Missing(Why.NOT_THERE, odd_kind("an H100", kinds))
    judgement = judged({0: "a", 1: why, 2: "a", 3: hash_of_rank_3})
    assert (judgement.status, judgement.ranks) == (status, ranks)
    told = "corruption.peers.hash has no value: not there (not compared: this is an H100; most ranks are an H200)"
    assert told in judgement.message
