"""Warnings among what a process wrote: those that NCCL and libibverbs wrote, those that are known, and what is none."""

import re

import pytest
from inventory.test_nccl_log import LOGS

from gpu_acceptance.inventory.nccl_log import HARMLESS_WARNINGS, unexpected_warnings

CONFIG = "libibverbs: Warning: couldn't open config directory '/etc/libibverbs.d'."


def test_a_real_warning_is_named_from_its_place_on():
    found = unexpected_warnings((LOGS / "tree.txt").read_text(encoding="utf-8").splitlines())
    text = "NCCL WARN Error : no algorithm/protocol available for function AllGather with datatype ncclInt8. NCCL_ALGO was set to TREE."
    assert found == {"nccl": [f"enqueue.cc:1859 {text}"], "libibverbs": []}


@pytest.mark.parametrize("name", ["plain", "shm", "socket"])
def test_real_logs_without_a_warning(name):
    assert unexpected_warnings((LOGS / f"{name}.txt").read_text(encoding="utf-8").splitlines()) == {"nccl": [], "libibverbs": []}


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("n:1:2 [0] NCCL WARN Cuda failure 999", "NCCL WARN Cuda failure 999"),
        ("[x] n:1:2 [-1] net.cc:7 (ncclNetInit) NCCL WARN no", "net.cc:7 (ncclNetInit) NCCL WARN no"),
    ],
)
def test_other_forms(line, text):
    assert unexpected_warnings([line])["nccl"] == [text]


def test_libibverbs():
    driver = "libibverbs: Warning: no userspace device-specific driver found for /sys/class/infiniband_verbs/uverbs0"
    assert unexpected_warnings([driver, CONFIG])["libibverbs"] == [driver]


def test_a_known_warning_with_more_behind_it_is_not_known():
    assert unexpected_warnings([f"{CONFIG} and more"])["libibverbs"] == [f"{CONFIG} and more"]


@pytest.mark.parametrize("line", ["NCCL WARN", "invalid usage (run with NCCL_DEBUG=WARN for details)", "n:1:2 [0] NCCL INFO WARN"])
def test_what_is_no_warning(line):
    assert unexpected_warnings([line]) == {"nccl": [], "libibverbs": []}


def test_each_harmless_one_has_a_reason_and_is_on_the_page():
    page = (LOGS.parents[2] / "docs" / "limits.md").read_text(encoding="utf-8")
    assert all(HARMLESS_WARNINGS.values())
    assert [pattern for pattern in HARMLESS_WARNINGS if re.split(r"[\[\\(]", pattern)[0].rstrip(" '") not in page] == []
