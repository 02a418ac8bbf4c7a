"""What carries data between GPUs, in one line of what was tested."""

import re

from gpu_acceptance.report.build import build_page
from gpu_acceptance.report.topology import fabric
from tests.report import samples
from tests.report.pages import parse

CARDS = "8 x MT4129, MT_0000000838, 28.39.1002"


def with_fabric(record, links=lambda rank: 18, algorithm="NVLS"):
    """The record after a run that looked at links, fabric and NCCL's log."""
    health = samples.row(
        "acceptance/test_gpu_health.py::test_nvlink",
        lambda rank: [
            samples.figure("gpu_health.nvlink.active", links(rank), "count", anomaly="" if links(rank) is not None else "not supported"),
            samples.figure("gpu_health.fabric.state", "completed", "text"),
        ],
        [],
    )
    physics = samples.row(
        "acceptance/test_nccl.py::test_physics",
        lambda rank: [
            samples.figure("nccl.all_reduce.algorithm", algorithm, "text"),
            samples.figure("nccl.transport.intranode", "P2P", "text"),
        ],
        [],
    )
    return with_cards(record.model_copy(update={"rows": (*record.rows, health, physics)}), CARDS)


def with_cards(record, cards):
    ranks = [one.model_copy(update={"inventory": {**one.inventory, "rdma_devices": cards}}) for one in record.ranks]
    return record.model_copy(update={"ranks": tuple(ranks)})


def test_links_fabric_algorithm_transport_and_cards_stand_in_one_line():
    line = f"NVLinks up on each GPU: 18; fabric: completed; NCCL: NVLS, P2P; RDMA devices: {CARDS}"
    assert fabric(with_fabric(samples.accepted())) == line
    (identity,) = [one for one in parse(build_page(with_fabric(samples.accepted()))).all("section") if one.attributes["id"] == "identity"]
    assert line in re.sub(r"\s+", " ", identity.text)


def test_where_ranks_differ_all_that_they_say_is_there():
    assert fabric(with_fabric(samples.accepted(), links=lambda rank: 17 if rank == 3 else 18)).startswith(
        "NVLinks up on each GPU: 17, 18; "
    )


def test_what_was_not_told_is_said():
    told = fabric(with_fabric(samples.accepted(), links=lambda rank: None))
    assert told.startswith("NVLinks up on each GPU: not told; fabric: completed; ")


def test_a_machine_without_gpus_has_cards_alone():
    assert fabric(with_cards(samples.cpu(), "none")) == "RDMA devices: none"
