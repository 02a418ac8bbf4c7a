"""Real snapshots of three nodes, one of which differs: exactly that fact fails, and names the node with both values."""

import pytest
from judging import make_identity
from snapshots import changed, real, snapshot_of

from gpu_acceptance.inventory import node
from gpu_acceptance.record.figure import make_figure
from gpu_acceptance.record.job import Job
from gpu_acceptance.record.outcome import Outcome, Status
from gpu_acceptance.record.row import Attempt, RankRecord
from gpu_acceptance.verdict.rows import make_row
from tests.judging import shipped_profile

NODES, ODD = 3, 1
NODEID = "acceptance/test_environment.py::test_node"
PROFILE = shipped_profile("h200-sxm")
LIKE_ITS_NEIGHBOURS = real()
NOT_THERE = {"missing": "not there", "detail": "x"}

# what is odd -> path, value, the fact that differs, what the odd node says, what most say
ODDITIES = {
    "another driver": ("gpus.driver", "570.86.15", "driver", "570.86.15, CUDA 13.0", "580.159.04, CUDA 13.0"),
    "a driver that is not there": ("gpus.driver", NOT_THERE, "driver", "not there, CUDA 13.0", "580.159.04, CUDA 13.0"),
    "another CUDA": ("gpus.cuda", "12.8", "driver", "580.159.04, CUDA 12.8", "580.159.04, CUDA 13.0"),
    "another kernel": ("system.kernel_release", "6.8.0-99-generic", "kernel", "6.8.0-99-generic", "6.18.44-fc-v657-gpu"),
    "another kernel parameter": ("system.kernel_parameters", ["iommu=pt"], "kernel_parameters", "iommu=pt", "pci=realloc=off"),
    "less memory": ("memory.total_bytes", 2**38, "memory", "256 GiB", "551 GiB"),
    "fewer cores": ("cpu.num_cores", 64, "cpu", "64 cores", "128 cores"),
    "a low memlock": ("allowances.memlock_bytes", {"soft": 65536, "hard": 65536}, "memlock", "65536 of 65536", "unlimited of unlimited"),
    "few files": ("allowances.nofile", {"soft": 1024, "hard": 20000}, "nofile", "1024 of 20000", "20000 of 20000"),
    "another clock": ("system.clock_source", "hpet", "clock_source", "hpet", "tsc"),
    "one VBIOS": ("gpus.gpus.3.vbios", "96.00.74.00.01", "gpus", "1 x NVIDIA H200, 692-2G520-0282-000, 96.00.74.00.01", "8 x NVIDIA H200"),
    "MIG on one GPU": ("gpus.gpus.3.mig_is_on", True, "gpus", "True, True, True, default, 700.0, 1980; 7 x", "8 x NVIDIA H200"),
    "a power limit": (
        "gpus.gpus.3.power.enforced_limit_w",
        500.0,
        "gpus",
        "1 x NVIDIA H200, 692-2G520-0282-000, 96.00.A5.00.1A, G520.0282.02.02, 580.159.04, True, False, True, default, 500.0, 1980; 7 x",
        "8 x NVIDIA H200",
    ),
    "no NVML": ("gpus.gpus", {"missing": "not there", "detail": "NVML does not start"}, "gpus", "not there", "8 x NVIDIA H200"),
}


def row_of(plains):
    """As `test_node` of acceptance/test_environment.py checks it, one rank a node."""
    job = Job(tuple(make_identity(rank, NODES, 1) for rank in range(NODES)))
    records = tuple(
        RankRecord(nodeid=NODEID, attempt=1, generation=1, rank=rank, outcome=Outcome.PASSED, figures=figures_of(plain))
        for rank, plain in enumerate(plains)
    )
    return make_row(NODEID, [Attempt(number=1, ranks=records)], PROFILE, job, {}, PROFILE.deadline_s)


def figures_of(plain):
    facts = node.facts(snapshot_of(plain).node, {})
    return tuple(make_figure(f"environment.node.{name}", what, "text", judged=True) for name, what in facts)


def test_three_nodes_alike_also_where_one_is_at_work():
    row = row_of([LIKE_ITS_NEIGHBOURS] * NODES)
    assert row.outcome is Outcome.PASSED
    assert {judgement.status for judgement in row.judgements} == {Status.HELD}
    assert row_of([real("h200x8-loaded"), LIKE_ITS_NEIGHBOURS, LIKE_ITS_NEIGHBOURS]).outcome is Outcome.PASSED


@pytest.mark.parametrize("oddity", ODDITIES)
def test_one_odd_node_fails_one_fact_and_is_named(oddity):
    path, value, fact, odd, most = ODDITIES[oddity]
    plains = [LIKE_ITS_NEIGHBOURS] * NODES
    plains[ODD] = changed(LIKE_ITS_NEIGHBOURS, f"node.{path}", value)
    row = row_of(plains)
    assert row.outcome is Outcome.FAILED
    missed = {judgement.metric: judgement for judgement in row.judgements if judgement.status is not Status.HELD}
    also = {"topology"} if oddity == "no NVML" else set()  # without GPUs nothing is known of their places
    assert missed.keys() == {f"environment.node.{name}" for name in {fact, *also}}
    missed = missed[f"environment.node.{fact}"]
    assert missed.status is Status.MISSED
    assert "node-01" in missed.message
    assert "node-00" not in missed.message
    assert odd in missed.message
    assert most in missed.message


def test_nodes_without_a_readable_fact_are_not_alike():
    unread = changed(LIKE_ITS_NEIGHBOURS, "node.memory.total_bytes", {"missing": "not permitted", "detail": "/proc/meminfo"})
    row = row_of([unread] * NODES)
    assert row.outcome is Outcome.ERROR
    (judgement,) = (one for one in row.judgements if one.status is not Status.HELD)
    assert judgement.message.startswith("environment.node.memory has no value: not permitted (/proc/meminfo), need equal on all [")


def test_one_node_without_a_readable_fact_is_an_error():
    unread = changed(LIKE_ITS_NEIGHBOURS, "node.dmi.bios_version", {"missing": "not permitted", "detail": "x"})
    job = Job((make_identity(0, 1, 1),))
    record = RankRecord(nodeid=NODEID, attempt=1, generation=1, rank=0, outcome=Outcome.PASSED, figures=figures_of(unread))
    attempts = [Attempt(number=1, ranks=(record,))]
    assert make_row(NODEID, attempts, PROFILE, job, {}, PROFILE.deadline_s).outcome is Outcome.ERROR
    waived = make_row(NODEID, attempts, PROFILE, job, {"environment.node.bios": "the container hides it"}, PROFILE.deadline_s)
    assert waived.outcome is not Outcome.ERROR


def test_three_nodes_that_all_differ_are_a_failure_without_a_majority():
    row = row_of([LIKE_ITS_NEIGHBOURS, *(changed(LIKE_ITS_NEIGHBOURS, "node.gpus.driver", one) for one in ("570.86.15", "575.57.08"))])
    assert row.outcome is Outcome.FAILED
    assert "environment.node.driver = 580.159.04, CUDA 13.0 without a majority (" in row.message
    assert "575.57.08, CUDA 13.0 on node 2), need equal on all" in row.message
