"""Health of a snapshot: one thing is wrong with one GPU, and exactly that row fails and names it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from snapshots import NUM_GPUS, changed, healthy_h200, leaves, snapshot_of

from gpu_acceptance.record import Outcome
from gpu_acceptance.snapshot_judge import NoGpusError, judge_snapshot
from gpu_acceptance.thresholds import load_profile, shipped_dir

HEALTHY = healthy_h200()
PROFILE = load_profile("h200-sxm", shipped_dir())
BAD = 3
GPU = f"node.gpus.gpus.{BAD}"
NOT_PERMITTED = {"missing": "not permitted", "detail": "nvml: Insufficient Permissions"}
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
    "power limit 500 W": ("power.enforced_limit_w", 500.0, "power", "power.lowered = 200 W"),
    "another power class": ("power.default_limit_w", 600.0, "power", "power.default_limit = 600 W"),
    "heat": ("throttling.reasons", ["sw power cap", "hw thermal slowdown"], "throttling", "throttling.now = hw thermal slowdown"),
    "power brake": ("throttling.reasons", ["hw power brake slowdown"], "throttling", "throttling.now = hw power brake slowdown"),
    "a reason nobody knows": ("throttling.reasons", ["bits 0x1000"], "throttling", "throttling.now = bits 0x1000"),
    "no margin to slowdown": ("temperature.margin_c", 2, "temperature", "temperature.margin = 2 C"),
    "beyond its slowdown": ("temperature.margin_c", -3, "temperature", "temperature.margin = -3 C"),
    "Gen5 at Gen3": ("pcie.generation", 3, "pcie", "pcie.generation = 3 generation"),
    "x8": ("pcie.width", 8, "pcie", "pcie.width = 8 lanes"),
    "a lost NVLink": ("nvlinks.5.is_active", False, "nvlink", "nvlink.active = 17 count"),
    "a slow NVLink": ("nvlinks.17.speed_mb_per_s", 20_000, "nvlink", "nvlink.slowest = 20000 MB/s"),
    "an NVLink trained again": ("nvlinks.0.num_recoveries", 1, "nvlink", "nvlink.recoveries = 1 count"),
    "fabric not ready": ("fabric.state", "in progress", "fabric", "fabric.state = in progress"),
    "fabric refused": ("fabric.status", "Insufficient Resources", "fabric", "fabric.status = Insufficient Resources"),
    "MIG on": ("mig_is_on", True, "modes", "modes.mig = true"),
    "MIG on after reset": ("mig_is_on_after_reset", True, "modes", "modes.mig_after_reset = true"),
    "persistence off": ("persistence_is_on", False, "modes", "modes.persistence = false"),
    "exclusive process": ("compute_mode", "exclusive process", "modes", "modes.compute = exclusive process"),
}


def rows_of(plain):
    _, rows, conclusion = judge_snapshot(snapshot_of(plain), PROFILE)
    return {row.nodeid.rsplit("test_", 1)[-1]: row for row in rows}, conclusion


def bad_rows(rows):
    return {topic for topic, row in rows.items() if row.outcome not in FINE}


def test_a_healthy_node_is_accepted():
    rows, conclusion = rows_of(HEALTHY)
    assert bad_rows(rows) == set()
    assert conclusion.line == "ACCEPTED (a snapshot: nothing was run)"
    assert conclusion.exit_code == 0
    assert len(rows) == 15


@pytest.mark.parametrize("damage", DAMAGES)
def test_one_damage_fails_one_row_and_names_the_gpu(damage):
    path, value, topic, says = DAMAGES[damage]
    rows, conclusion = rows_of(changed(HEALTHY, f"{GPU}.{path}", value))
    assert bad_rows(rows) == {topic}
    assert (rows[topic].outcome, conclusion.exit_code) == (Outcome.FAILED, 1)
    assert says in rows[topic].message
    assert "on rank 3 (node-07, GPU 3, serial 1653924100004); to do: " in rows[topic].message


@pytest.mark.parametrize(("path", "value"), [("clocks.application_sm_mhz", 1995), ("power.enforced_limit_w", 750.0)])
def test_what_somebody_has_raised_is_not_lowered(path, value):
    rows, _ = rows_of(changed(HEALTHY, f"{GPU}.{path}", value))
    assert bad_rows(rows) == set()


JUDGED = [path for path, *_ in DAMAGES.values()]


@pytest.mark.parametrize("path", sorted(set(JUDGED)))
def test_a_value_that_may_not_be_read_fails_its_row_and_is_not_fine(path):
    topic = next(topic for one, _, topic, _ in DAMAGES.values() if one == path)
    rows, conclusion = rows_of(changed(HEALTHY, f"{GPU}.{path}", NOT_PERMITTED))
    assert bad_rows(rows) == {topic}
    assert conclusion.verdict == "INCOMPLETE"
    assert "not permitted (" in rows[topic].message
    assert "nvml: Insufficient Permissions" in rows[topic].message


def test_every_limit_says_what_to_do_about_a_miss():
    limits = [limit for limit in PROFILE.limits.values() if limit.subject == "gpu_health"]
    assert len(limits) > 35
    assert [limit.metric for limit in limits if not limit.remedy] == []


def test_every_value_that_any_row_judges_has_a_damage_of_its_own():
    """By trying: whatever, when it cannot be read, changes a row, is damaged above (of one link, all)."""
    moved = set()
    for path in leaves(HEALTHY["node"]["gpus"]["gpus"][BAD]):
        if path.startswith("nvlinks.") and not path.startswith("nvlinks.5."):
            continue
        try:
            rows, _ = rows_of(changed(HEALTHY, f"{GPU}.{path}", NOT_PERMITTED))
        except ValueError:
            continue  # what must be there, such as its index
        if bad_rows(rows):
            moved.add(path)
    damaged = {path.replace("nvlinks.17", "nvlinks.5").replace("nvlinks.0", "nvlinks.5") for path in JUDGED}
    assert moved - {"clocks.default_application_sm_mhz"} == damaged


def test_peers_that_are_not_reached_are_counted_on_the_gpu_that_asks():
    peers = HEALTHY["node"]["gpus"]["peers"]
    index = next(number for number, peer in enumerate(peers) if peer["source"] == BAD)
    rows, conclusion = rows_of(changed(HEALTHY, f"node.gpus.peers.{index}.nvlink", "topology not supported"))
    assert bad_rows(rows) == {"peers"}
    assert "gpu_health.peers.without_nvlink = 1 count" in rows["peers"].message
    assert conclusion.exit_code == 1


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
    plain = changed(HEALTHY, "node.bus.gpus", [f"0000:{number:02x}:00.0" for number in range(NUM_GPUS)])
    del plain["node"]["gpus"]["gpus"][7]
    _, conclusion = rows_of(plain)
    assert conclusion.verdict == "INCOMPLETE"
    assert "7 of 8 GPUs" in conclusion.line


@pytest.mark.parametrize(
    ("gpus", "says"),
    [
        ({"missing": "not there", "detail": "NVML does not start: Driver Not Loaded"}, "NVML does not start: Driver Not Loaded"),
        ([], "node-07 has no GPU"),
    ],
)
def test_a_machine_that_shows_no_gpu_is_never_fine(gpus, says):
    with pytest.raises(NoGpusError, match=says):
        rows_of(changed(HEALTHY, "node.gpus.gpus", gpus))


PATHS = sorted(leaves(HEALTHY["node"]["gpus"]["gpus"][BAD]))
ANYTHING = st.one_of(
    st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=8), st.just(NOT_PERMITTED)
)


@given(st.dictionaries(st.sampled_from(PATHS), ANYTHING, min_size=1, max_size=6))
def test_whatever_a_snapshot_says_it_is_judged_or_refused_in_words(changes):
    plain = HEALTHY
    for path, value in changes.items():
        plain = changed(plain, f"{GPU}.{path}", value)
    try:
        rows, conclusion = rows_of(plain)
    except ValueError as error:
        assert str(error)  # noqa: PT017 - either is fine, a traceback of another kind is not
        return
    if any(value == NOT_PERMITTED and path in JUDGED for path, value in changes.items()):
        assert conclusion.verdict != "ACCEPTED"
    assert (conclusion.verdict == "ACCEPTED") == (not bad_rows(rows))
