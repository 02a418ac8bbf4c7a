"""What must be alike on all nodes: the same words for the same node, other words where something differs."""

import json

import pytest
from snapshots import changed, healthy_h200, snapshot_of

from gpu_acceptance.inventory import drift

HEALTHY = healthy_h200()


def facts_of(plain, **variables):
    return dict(drift.facts(snapshot_of(plain).node, variables))


def test_a_node_in_words():
    facts = facts_of(HEALTHY)
    assert facts["cpu"] == "2 x Intel(R) Xeon(R) Platinum 8480C, 4 cores, 8 threads"
    assert facts["governor"] == "performance"
    assert facts["driver"] == "580.159.04, CUDA 13.0"
    gpu = "NVIDIA H200, 692-2G520-0282-001, 96.00.A5.00.1A, G520.0282.02.02, True, False, True, default, 700.0, 1980"
    assert facts["gpus"] == f"8 x {gpu}"
    assert all(0 < len(what) <= 900 for what in facts.values())


@pytest.mark.parametrize(
    ("path", "value", "name", "says"),
    [
        ("gpus.gpus.3.vbios", "96.00.74.00.01", "gpus", "1 x NVIDIA H200, 692-2G520-0282-001, 96.00.74.00.01"),
        ("gpus.gpus.3.mig_is_on", True, "gpus", "7 x "),
        ("gpus.driver", "570.86.15", "driver", "570.86.15"),
        ("system.kernel_release", "6.8.0-99-generic", "kernel", "6.8.0-99-generic"),
        ("memory.total_bytes", 10**12, "memory", "931 GiB"),
        ("allowances.memlock_bytes", {"soft": 65536, "hard": "unlimited"}, "memlock", "65536 of unlimited"),
        ("allowances.memlock_bytes", {"missing": "not permitted", "detail": "/proc/self/limits"}, "memlock", "not permitted"),
        ("dmi.bios_version", "2.1", "bios", "2.1 of "),
        ("cpu.smt_active", False, None, ""),
    ],
)
def test_a_difference_changes_the_words_of_its_fact_alone(path, value, name, says):
    before, after = facts_of(HEALTHY), facts_of(changed(HEALTHY, f"node.{path}", value))
    assert {one for one in before if before[one] != after[one]} == ({name} if name else set())
    assert says in after.get(name, "")


def test_why_a_value_is_missing_counts_and_where_it_was_looked_for_does_not():
    one, other = ({"missing": "not there", "detail": detail} for detail in ("/a", "/b"))
    assert facts_of(changed(HEALTHY, "node.gpus.gpus", one)) == facts_of(changed(HEALTHY, "node.gpus.gpus", other))


def test_variables_are_shown_and_their_whole_is_compared():
    few = facts_of(HEALTHY, NCCL_DEBUG="WARN", CUDA_VISIBLE_DEVICES="0")["variables"]
    assert few.endswith(": NCCL_DEBUG=WARN")
    assert few == facts_of(HEALTHY, NCCL_DEBUG="WARN", CUDA_VISIBLE_DEVICES="7")["variables"]
    many = {f"NCCL_{number:03d}": "x" * 50 for number in range(100)}
    assert facts_of(HEALTHY, **many)["variables"] != facts_of(HEALTHY, **{**many, "NCCL_099": "y"})["variables"]


def test_what_a_machine_cannot_say_is_no_traceback():
    plain = json.loads(json.dumps(HEALTHY))
    missing = {"missing": "unreadable", "detail": "x"}
    for room in ("cpu", "memory", "system", "dmi", "virtualization"):
        plain["node"][room] = dict.fromkeys(plain["node"][room], missing)
    facts = facts_of(plain)
    assert facts["cpu"] == "unreadable x unreadable, unreadable cores, unreadable threads"
    assert facts["memory"] == "unreadable"
