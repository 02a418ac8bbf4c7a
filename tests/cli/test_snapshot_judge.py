"""Health of a real node: as it is, it is accepted; with one thing wrong with one GPU, exactly that row fails and names it."""

import json
import re

import pytest
from judged_fields import judged_fields
from snapshots import changed, real, snapshot_of

from gpu_acceptance.cli.snapshot_file import NoGpusError, judge_snapshot
from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.thresholds.profile import load_profile, shipped_dir

HEALTHY, LOADED = real(), real("h200x8-loaded")
PROFILE = load_profile("h200-sxm", shipped_dir())
BAD = 3
GPU = f"node.gpus.gpus.{BAD}"
UNDAMAGED = {"retired_pages", "peers"}  # an H200 has none; peers have tests of their own
ASKED = [(topic, metric, path.removeprefix(f"{GPU}.")) for topic, metric, path in judged_fields(snapshot_of(HEALTHY), BAD)]
ANY_LINK = re.compile(r"nvlinks\.\d+")
NOT_SUPPORTED = {"missing": "not supported", "detail": ""}
FINE = {Outcome.PASSED, Outcome.NOT_APPLICABLE}

# what is wrong -> path, value, the row that fails, its words
DAMAGES = {
    "another model": ("name", "NVIDIA H100 80GB HBM3", "identity", "identity.name = NVIDIA H100 80GB HBM3"),
    "another board": ("part_number", "692-2G520-0200-000", "identity", "692-2G520-0200-000"),
    "another VBIOS": ("vbios", "96.00.74.00.01", "identity", "96.00.74.00.01"),
    "another inforom": ("inforom", "G520.0280.00.05", "identity", "G520.0280.00.05"),
    "memory missing": ("total_bytes", 140 * 2**30, "memory", "memory.total = 143360 MiB, need >= 143771 MiB"),
    "memory beyond repair": ("has_unrepairable_memory", True, "memory", "memory.unrepairable = true"),
    "channel repair pending": ("channel_repair_is_pending", True, "memory", "memory.channel_repair_pending = true"),
    "TPC repair pending": ("tpc_repair_is_pending", True, "memory", "memory.tpc_repair_pending = true"),
    "ECC off": ("ecc.is_on", False, "ecc", "ecc.on = false"),
    "ECC off after reboot": ("ecc.is_on_after_reboot", False, "ecc", "ecc.on_after_reboot = false"),
    "SRAM threshold exceeded": ("ecc.sram_threshold_exceeded", True, "ecc", "ecc.sram_threshold_exceeded = true"),
    "SRAM error since boot": ("ecc.volatile.sram_uncorrected", 1, "ecc", "ecc.volatile_sram_uncorrected = 1 count"),
    "DRAM error since boot": ("ecc.volatile.dram_uncorrected", 2, "ecc", "ecc.volatile_dram_uncorrected = 2 count"),
    "SRAM error ever": ("ecc.aggregate.sram_uncorrected", 1, "ecc", "ecc.aggregate_sram_uncorrected = 1 count"),
    "DRAM error ever": ("ecc.aggregate.dram_uncorrected", 7, "ecc", "ecc.aggregate_dram_uncorrected = 7 count"),
    "remapping pending": ("remapping.is_pending", True, "remapping", "remapping.pending = true"),
    "remapping failed": ("remapping.has_failed", True, "remapping", "remapping.failed = true"),
    "rows lost": ("remapping.num_uncorrected_rows", 1, "remapping", "remapping.uncorrected_rows = 1 count"),
    "bank without spares": ("remapping.num_banks_none", 1, "remapping", "remapping.banks_without_spares = 1 count"),
    "driver asks for a reset": ("recovery_action", "reset the GPU", "recovery", "recovery.action = reset the GPU"),
    "driver asks for a reboot": ("recovery_action", "reboot the node", "recovery", "recovery.action = reboot the node"),
    "maximum clock lowered": ("clocks.max_sm_mhz", 1755, "clocks", "clocks.max_sm = 1755 MHz"),
    "slow memory": ("clocks.max_memory_mhz", 2619, "clocks", "clocks.max_memory = 2619 MHz"),
    "application clock lowered": ("clocks.application_sm_mhz", 1410, "clocks", "clocks.lowered = 570 MHz"),
    "another default application clock": ("clocks.default_application_sm_mhz", 2100, "clocks", "clocks.lowered = 120 MHz"),
    "power limit 500 W": ("power.enforced_limit_w", 500.0, "power", "power.lowered = 200 W"),
    "another power class": ("power.default_limit_w", 600.0, "power", "power.default_limit = 600 W"),
    "heat": ("throttling.reasons", ["sw power cap", "hw thermal slowdown"], "throttling", "throttling.now = hw thermal slowdown"),
    "power brake": ("throttling.reasons", ["hw power brake slowdown"], "throttling", "throttling.now = hw power brake slowdown"),
    "a reason nobody knows": ("throttling.reasons", ["bits 0x1000"], "throttling", "throttling.now = bits 0x1000"),
    "a word nobody knows": ("throttling.reasons", ["gpu idle", "memory slowdown"], "throttling", "throttling.now = memory slowdown"),
    "no margin to slowdown": ("temperature.margin_c", 2, "temperature", "temperature.margin = 2 C"),
    "beyond its slowdown": ("temperature.margin_c", -3, "temperature", "temperature.margin = -3 C"),
    "Gen5 at Gen3": ("pcie.generation", 3, "pcie", "pcie.generation = 3 generation"),
    "x8": ("pcie.width", 8, "pcie", "pcie.width = 8 lanes"),
    "thermal slowdown by software": ("throttling.reasons", ["sw thermal slowdown"], "throttling", "throttling.now = sw thermal slowdown"),
    "hardware slowdown": ("throttling.reasons", ["gpu idle", "hw slowdown"], "throttling", "throttling.now = hw slowdown"),
    "a lost NVLink": ("nvlinks.5.is_active", False, "nvlink", "nvlink.active = 17 count"),
    "a slow NVLink": ("nvlinks.17.speed_mb_per_s", 20_000, "nvlink", "nvlink.slowest = 20000 MB/s"),
    "an NVLink trained again": ("nvlinks.0.num_recoveries", 1, "nvlink", "nvlink.recoveries = 1 count"),
    "fabric not ready": ("fabric.state", "in progress", "fabric", "fabric.state = in progress"),
    "fabric refused": ("fabric.status", "Insufficient Resources", "fabric", "fabric.status = Insufficient Resources"),
    "fabric not started": ("fabric.state", "not started", "fabric", "fabric.state = not started"),
    "MIG on": ("mig_is_on", True, "modes", "modes.mig = true"),
    "MIG on after reset": ("mig_is_on_after_reset", True, "modes", "modes.mig_after_reset = true"),
    "persistence off": ("persistence_is_on", False, "modes", "modes.persistence = false"),
    "somebody else's process": (
        *("processes", [{"pid": 1607, "used_bytes": 1_262_485_504}, {"pid": 1700, "used_bytes": NOT_SUPPORTED}], "processes"),
        "processes.foreign = 2 count (pid 1607: 1204 MiB, pid 1700: memory not supported), need <= 0",
    ),
    "memory of a process that a container hides": ("used_bytes", 1_920_860_160, "processes", "processes.memory_used = 1831 MiB"),
    "exclusive process": ("compute_mode", "exclusive process", "modes", "modes.compute = exclusive process"),
}


def rows_of(plain, **how):
    _, rows, conclusion = judge_snapshot(snapshot_of(plain), PROFILE, **how)
    return {row.nodeid.rsplit("test_", 1)[-1]: row for row in rows}, conclusion


def bad_rows(rows):
    return {topic for topic, row in rows.items() if row.outcome not in FINE}


def test_a_healthy_node_is_accepted():
    rows, conclusion = rows_of(HEALTHY)
    assert bad_rows(rows) == set()
    assert conclusion.line == "ACCEPTED (a snapshot of 8 GPUs: nothing was run)"
    assert conclusion.exit_code == 0
    assert len(rows) == 16


def test_a_healthy_node_under_load_fails_by_who_is_on_it_and_nothing_else():
    rows, conclusion = rows_of(LOADED)
    assert bad_rows(rows) == {"processes"}
    assert (conclusion.verdict, conclusion.exit_code) == ("REJECTED", 1)
    foreign, memory = (line.partition("; to do: ")[0] for line in rows["processes"].message.splitlines())
    all_of_them = "on rank 0 (node-00, GPU 0, serial 1650000000000) and 7 more: ranks 1-7"
    assert foreign.startswith("gpu_health.processes.foreign = 1 count (pid 1607: 1204 MiB), need <= 0 count [base.yaml: policy: ")
    assert memory.startswith("gpu_health.processes.memory_used = 1831 MiB, need <= 1024 MiB [base.yaml: policy: what a driver keeps ")
    assert foreign.endswith(all_of_them)
    assert memory.endswith(all_of_them)


def test_under_load_it_is_accepted_where_busy_gpus_are_allowed_and_that_is_said():
    _, rows, conclusion = judge_snapshot(snapshot_of(LOADED), PROFILE, allow_busy=True)
    assert conclusion.line == "ACCEPTED (2 waived, busy GPUs allowed, a snapshot of 8 GPUs: nothing was run)"
    (row,) = [row for row in rows if row.nodeid.endswith("::test_processes")]
    said = "waived (GPUs that other programs use are allowed (--allow-busy)): gpu_health.processes.foreign = 1 count (pid 1607: 1204 MiB)"
    assert row.message.startswith(said)


@pytest.mark.parametrize("damage", DAMAGES)
def test_one_damage_fails_one_row_and_names_the_gpu(damage):
    path, value, topic, says = DAMAGES[damage]
    rows, conclusion = rows_of(changed(HEALTHY, f"{GPU}.{path}", value))
    assert bad_rows(rows) == {topic}
    assert (rows[topic].outcome, conclusion.exit_code) == (Outcome.FAILED, 1)
    assert says in rows[topic].message
    remedies = [PROFILE.limits[metric].remedy for _, metric, asked in ASKED if asked == path]
    told = rows[topic].message.partition(" on rank 3 (node-00, GPU 3, serial 1650000000003); to do: ")[2]
    assert any(told.startswith(remedy) for remedy in remedies)


@pytest.mark.parametrize(("path", "value"), [("clocks.application_sm_mhz", 1995), ("power.enforced_limit_w", 750.0)])
def test_what_somebody_has_raised_is_not_lowered(path, value):
    rows, _ = rows_of(changed(HEALTHY, f"{GPU}.{path}", value))
    assert bad_rows(rows) == set()


def test_every_limit_says_what_to_do_about_a_miss():
    limits = [limit for limit in PROFILE.limits.values() if limit.subject == "gpu_health"]
    assert len(limits) > 35
    assert [limit.metric for limit in limits if not limit.remedy] == []


def test_every_value_that_any_row_judges_has_a_damage_of_its_own():
    """Of one link, all."""
    asked = {ANY_LINK.sub("nvlinks", path) for topic, _, path in ASKED if topic not in UNDAMAGED}
    assert asked == {ANY_LINK.sub("nvlinks", path) for path, *_ in DAMAGES.values()}


def test_peers_that_are_not_reached_are_counted_on_the_gpu_that_asks():
    peers = HEALTHY["node"]["gpus"]["peers"]
    index = next(number for number, peer in enumerate(peers) if peer["source"] == BAD)
    rows, conclusion = rows_of(changed(HEALTHY, f"node.gpus.peers.{index}.nvlink", "topology not supported"))
    assert bad_rows(rows) == {"peers"}
    assert "gpu_health.peers.without_nvlink = 1 count" in rows["peers"].message
    assert conclusion.exit_code == 1


@pytest.mark.parametrize(
    ("kept", "silent"),
    [
        (lambda peer: False, "1, 2, 3, 4, 5, 6, 7"),
        (lambda peer: peer["source"] != BAD, "0, 1, 2, 4, 5, 6, 7"),
        (lambda peer: (peer["source"], peer["target"]) != (BAD, 5), "5"),
    ],
    ids=["no pair", "none of one GPU", "one pair"],
)
def test_peers_that_nothing_is_told_of_are_not_reached(kept, silent):
    peers = [peer for peer in HEALTHY["node"]["gpus"]["peers"] if kept(peer)]
    rows, conclusion = rows_of(changed(HEALTHY, "node.gpus.peers", peers))
    assert bad_rows(rows) == {"peers"}
    assert f"peers.without_read is no value but not there (nothing is told of the way to GPU {silent})" in rows["peers"].message
    assert conclusion.verdict == "INCOMPLETE"


def test_a_gpu_that_fell_off_the_bus_fails_every_row():
    gpu = {path: {"missing": "unreadable", "detail": "GPU is lost"} for path in HEALTHY["node"]["gpus"]["gpus"][BAD]}
    plain = json.loads(json.dumps(HEALTHY))
    whole = plain["node"]["gpus"]["gpus"][BAD]
    plain["node"]["gpus"]["gpus"][BAD] = {**_all_missing(whole, gpu["name"]), "index": BAD}
    rows, conclusion = rows_of(plain)
    assert bad_rows(rows) == set(rows) - {"retired_pages", "peers"}
    assert conclusion.verdict != "ACCEPTED"


def _all_missing(whole, missing):
    if isinstance(whole, dict) and "missing" not in whole:
        return {key: _all_missing(part, missing) for key, part in whole.items()}
    return missing


def test_seven_of_eight_gpus_are_not_a_node():
    _, conclusion = rows_of(seven_gpus())
    assert conclusion.verdict == "INCOMPLETE"
    assert "7 of 8 GPUs" in conclusion.line


def test_a_gpu_whose_file_in_sysfs_cannot_be_read_still_counts():
    on_bus = HEALTHY["node"]["bus"]["gpus"]
    hidden = {"gpus": on_bus[:7], "unreadable": [on_bus[7]]}
    _, conclusion = rows_of(changed(seven_gpus(), "node.bus", hidden))
    assert conclusion.verdict == "INCOMPLETE"
    assert "7 of 8 GPUs" in conclusion.line


def test_a_node_must_have_the_gpus_that_were_ordered():
    """One that fell off the bus as well shows nowhere."""
    gone = changed(seven_gpus(), "node.bus.gpus", HEALTHY["node"]["bus"]["gpus"][:7])
    assert rows_of(gone)[-1].verdict == "ACCEPTED"
    rows, conclusion = rows_of(gone, num_gpus=8)
    assert bad_rows(rows) == {"site"}
    assert conclusion.exit_code == 1
    assert rows["site"].message.startswith("environment.site.difference = node-00 has 7 GPUs, not 8, need == none [base.yaml: policy: ")
    assert "; to do: find out why the nodes that are named differ from what was ordered" in rows["site"].message
    rows, conclusion = rows_of(HEALTHY, num_gpus=8)
    assert (bad_rows(rows), conclusion.line) == (set(), "ACCEPTED (a snapshot of 8 GPUs: nothing was run)")
    rows, conclusion = rows_of(seven_gpus(), num_gpus=8)  # the bus shows the eighth
    assert (bad_rows(rows), conclusion.verdict) == (set(), "INCOMPLETE")


def seven_gpus():
    plain = real()
    plain["node"]["gpus"]["gpus"].pop()
    return plain


@pytest.mark.parametrize(
    ("gpus", "says"),
    [
        ({"missing": "not there", "detail": "NVML does not start: Driver Not Loaded"}, "NVML does not start: Driver Not Loaded"),
        ([], "node-00 has no GPU"),
    ],
)
def test_a_machine_that_shows_no_gpu_is_never_fine(gpus, says):
    with pytest.raises(NoGpusError, match=says):
        rows_of(changed(HEALTHY, "node.gpus.gpus", gpus))
