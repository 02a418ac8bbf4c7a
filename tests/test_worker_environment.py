"""The environment of a worker: variables that it keeps, and where NCCL writes."""

from pathlib import Path

import pytest

from gpu_acceptance.inventory import nccl_log
from gpu_acceptance.worker.worker import worker_environment


def environment(**base):
    return worker_environment(base, (3, 4), Path("stacks"), (5, Path("collectives")))


@pytest.mark.parametrize(
    ("asked", "level"),
    [
        (None, "WARN"),
        ("", "WARN"),
        ("VERSION", "WARN"),
        ("WARN", "WARN"),
        ("odd", "WARN"),
        ("INFO", "INFO"),
        ("info", "info"),
        ("TRACE", "TRACE"),
    ],
)
def test_nccl_warns_whatever_the_user_set(asked, level):
    given = {} if asked is None else {"NCCL_DEBUG": asked}
    assert environment(**given)["NCCL_DEBUG"] == level


def test_nccl_writes_to_stdout_wherever_the_user_sent_it():
    assert environment(NCCL_DEBUG_FILE="/tmp/mine.%p")["NCCL_DEBUG_FILE"] == ""
    assert environment()["NCCL_DEBUG_FILE"] == ""


def test_a_worker_that_reads_it_starts_with_the_whole_log_asks_no_hub_and_sets_nothing_that_nccl_chooses_by():
    started = environment(**{"NCCL_DEBUG_SUBSYS": "COLL", **nccl_log.ENVIRONMENT})
    assert started["NCCL_DEBUG"] == "INFO"
    assert set(started["NCCL_DEBUG_SUBSYS"].split(",")) >= {"INIT", "NET", "P2P", "SHM", "TUNING"}
    assert environment()["HF_HUB_OFFLINE"] == environment(HF_HUB_OFFLINE="0")["HF_HUB_OFFLINE"] == "1"
    ours = {"NCCL_DEBUG", "NCCL_DEBUG_FILE"}
    assert {name for name in environment() if name.startswith("NCCL_")} == ours
    assert environment(NCCL_NVLS_ENABLE="0", NCCL_P2P_DISABLE="1")["NCCL_P2P_DISABLE"] == "1"
    assert {name for name in nccl_log.ENVIRONMENT if not name.startswith("NCCL_DEBUG")} == set()
