"""A snapshot comes back as it was written, no other file is one, and its GPUs are judged as a run would."""

import json
import re

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from judged_fields import judged_fields
from snapshots import REAL, changed, healthy_h200, leaves, real, snapshot_of, without

from gpu_acceptance.cli import snapshot_file as module
from gpu_acceptance.cli.snapshot_file import (
    SCHEMA_FILE,
    NoGpusError,
    NotASnapshotError,
    decode,
    encode,
    judge_snapshot,
    read_snapshot,
    redact,
    schema_text,
    take,
    write_snapshot,
)
from gpu_acceptance.folder.files import RecordError
from gpu_acceptance.record.outcome import Outcome
from tests.judging import shipped_profile

HEALTHY = healthy_h200()
LEAVES = leaves(HEALTHY)
FIRST_GPU = [path for path in LEAVES if path.startswith("node.gpus.gpus.0.")]
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.lists(st.integers(), max_size=2), st.just({})
)


def test_it_comes_back_as_it_was_written(tmp_path):
    snapshot = snapshot_of(HEALTHY)
    write_snapshot(tmp_path / "node.json", snapshot)
    assert read_snapshot(tmp_path / "node.json") == snapshot
    assert json.loads((tmp_path / "node.json").read_text()) == HEALTHY


def test_of_this_machine_it_says_what_is_not_there():
    snapshot = take()
    assert decode(encode(snapshot)) == snapshot


def test_the_published_schema_is_that_of_this_version_and_describes_it():
    assert SCHEMA_FILE.read_text() == schema_text(), "rewrite it: python -m gpu_acceptance.cli.snapshot_file"
    jsonschema.validate(HEALTHY, json.loads(schema_text()))


@pytest.mark.parametrize("path", FIRST_GPU)
def test_no_value_may_be_lacking(path):
    with pytest.raises(ValueError, match=r"is missing|unknown key|, not "):
        snapshot_of(without(HEALTHY, path))


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("schema_version", 2, "schema_version is 2; this version reads 1"),
        ("node.gpus.gpus.0.pcie.width", "16", "node.gpus.gpus.tuple"),
        ("node.gpus.gpus.0.pcie.width", 16.5, "node.gpus.gpus.tuple"),
        ("node.gpus.gpus.0.pcie.width", None, "node.gpus.gpus.tuple"),
        ("node.gpus.gpus.0.ecc.is_on", 1, "node.gpus.gpus.tuple"),
        ("node.gpus.gpus.0.colour", "green", "unknown key node.gpus.gpus[0].colour"),
        ("node.gpus.gpus.0.pcie.width", {"missing": "sunny", "detail": ""}, "node.gpus.gpus.tuple"),
        ("node.gpus.gpus.0.pcie.width", {"missing": "not there", "detail": "", "more": 1}, "unknown key node.gpus.gpus[0].pcie.width.more"),
    ],
)
def test_what_is_no_snapshot_says_where(path, value, says):
    with pytest.raises(ValueError, match=r".") as caught:
        snapshot_of(changed(HEALTHY, path, value))
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"", "an empty file"),
        (b"{\xff}", "a binary file"),
        (b"\x7fELF\0\0", "a binary file"),
        (b"[]", "a JSON file of another kind"),
        (b'{"schema_version": NaN}', "a JSON file of another kind"),
        (b"[" * 100_000, "a text file"),
        (b'{"a": "cut of', "a text file"),
        (b"extends: base\nlimits: {}\n", "a YAML file"),
        (b"GPU 0: NVIDIA H200 (UUID: GPU-1234)\n", "output of nvidia-smi"),
        (b"| NVIDIA-SMI 580.159.03    Driver Version: 580.159.03 |\n", "output of nvidia-smi"),
        (b"==============NVSMI LOG==============\n\nTimestamp : Fri\n", "output of nvidia-smi"),
        ((REAL / "h200x8-idle.xml").read_bytes(), "output of nvidia-smi"),
        (
            b'{"schema_version": 1, "header": {}, "conclusion": {}, "rows": []}',
            "the record of a run (`gpu-acceptance report build",
        ),
        (b'{"schema_version": 2, "node": {}}', "a snapshot of a newer version (schema_version 2; this version reads 1)"),
    ],
)
def test_another_file_is_no_snapshot(tmp_path, content, kind):
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(NotASnapshotError) as caught:
        read_snapshot(tmp_path / "x.json")
    assert str(caught.value).startswith(f"{tmp_path}/x.json: {kind}")
    assert str(caught.value).endswith("not a snapshot; `gpu-acceptance snapshot FILE` writes one, on the machine to look at")


def test_a_folder_is_no_snapshot(tmp_path):
    with pytest.raises(NotASnapshotError, match=f"^{tmp_path}: a folder, not a snapshot; "):
        read_snapshot(tmp_path)
    (tmp_path / "results.json").touch()
    with pytest.raises(NotASnapshotError, match=r": the folder of a run \(`gpu-acceptance verdict DIR` tells its verdict\), not a s"):
        read_snapshot(tmp_path)
    with pytest.raises(NotASnapshotError, match=r"nowhere: no such file; `gpu-acceptance snapshot FILE` writes one"):
        read_snapshot(tmp_path / "nowhere")


@pytest.mark.parametrize("text", ['{"schema_version": 1, "taken_at": "cut off', '{"schema_version": 1, "node": {}}'])
def test_what_is_left_of_a_snapshot_is_damaged(tmp_path, text):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(RecordError, match=r"not JSON: EOF while parsing a string|taken_at is missing"):
        read_snapshot(tmp_path / "x.json")


@pytest.mark.slow
@given(st.sampled_from(FIRST_GPU), VALUES)
def test_any_value_anywhere_is_taken_or_refused_in_words(path, value):
    plain = changed(HEALTHY, path, value)
    try:
        snapshot = snapshot_of(plain)
    except ValueError as error:
        assert str(error)  # noqa: PT017 - either is fine, a traceback of another kind is not
    else:
        assert decode(encode(snapshot)) == snapshot


def test_redacted_it_names_no_machine_and_is_else_the_same():
    text = encode(redact(snapshot_of(HEALTHY)))
    assert "1653924100003" not in text
    assert "GPU-00000003-0000-4000-8000" not in text
    assert "node-07" not in text
    plain = json.loads(text)
    assert plain["node"]["host"] == "node-00"
    assert plain["node"]["gpus"]["gpus"][2]["serial"] == "1650000000002"
    different = {path for path, value in leaves(plain).items() if value != LEAVES[path]}
    assert {path.rsplit(".", 1)[-1] for path in different} == {"host", "serial", "uuid", "product_serial", "chassis_serial", "source"}
    assert module.decode(text) == redact(snapshot_of(HEALTHY))


IDLE, LOADED = real(), real("h200x8-loaded")
PROFILE = shipped_profile("h200-sxm")
BAD = 3
GPU = f"node.gpus.gpus.{BAD}"
UNDAMAGED = {"retired_pages", "peers"}  # an H200 has none; peers have tests of their own
ASKED = [(topic, metric, path.removeprefix(f"{GPU}.")) for topic, metric, path in judged_fields(snapshot_of(IDLE), BAD)]
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
    "an unknown reason": ("throttling.reasons", ["bits 0x1000"], "throttling", "throttling.now = bits 0x1000"),
    "an unknown word": ("throttling.reasons", ["gpu idle", "memory slowdown"], "throttling", "throttling.now = memory slowdown"),
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
    "fabric unhealthy": ("fabric.health", "unhealthy", "fabric", "fabric.health = unhealthy"),
    "fabric not started": ("fabric.state", "not started", "fabric", "fabric.state = not started"),
    "MIG on": ("mig_is_on", True, "modes", "modes.mig = true"),
    "MIG on after reset": ("mig_is_on_after_reset", True, "modes", "modes.mig_after_reset = true"),
    "persistence off": ("persistence_is_on", False, "modes", "modes.persistence = false"),
    "a foreign process": (
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
    rows, conclusion = rows_of(IDLE)
    assert bad_rows(rows) == set()
    assert conclusion.line == "ACCEPTED (a snapshot of 8 GPUs: nothing was run)"
    assert conclusion.exit_code == 0
    assert len(rows) == 16


def test_a_healthy_node_under_load_fails_only_by_its_processes():
    rows, conclusion = rows_of(LOADED)
    assert bad_rows(rows) == {"processes"}
    assert (conclusion.verdict, conclusion.exit_code) == ("REJECTED", 1)
    foreign, memory = (line.partition("; to do: ")[0] for line in rows["processes"].message.splitlines())
    all_of_them = "on rank 0 (node-00, GPU 0, serial 1650000000000) and 7 more: ranks 1-7"
    assert foreign.startswith("gpu_health.processes.foreign = 1 count (pid 1607: 1204 MiB), need <= 0 count [base.yaml: policy: ")
    assert memory.startswith("gpu_health.processes.memory_used = 1831 MiB, need <= 1024 MiB [base.yaml: policy: what a driver keeps ")
    assert foreign.endswith(all_of_them)
    assert memory.endswith(all_of_them)


def test_under_load_it_is_accepted_with_allow_busy_and_the_line_says_so():
    _, rows, conclusion = judge_snapshot(snapshot_of(LOADED), PROFILE, allow_busy=True)
    assert conclusion.line == "ACCEPTED (2 waived, busy GPUs allowed, a snapshot of 8 GPUs: nothing was run)"
    (row,) = [row for row in rows if row.nodeid.endswith("::test_processes")]
    said = "waived (GPUs that other programs use are allowed (--allow-busy)): gpu_health.processes.foreign = 1 count (pid 1607: 1204 MiB)"
    assert row.message.startswith(said)


@pytest.mark.parametrize("damage", DAMAGES)
def test_one_damage_fails_one_row_and_names_the_gpu(damage):
    path, value, topic, says = DAMAGES[damage]
    rows, conclusion = rows_of(changed(IDLE, f"{GPU}.{path}", value))
    assert bad_rows(rows) == {topic}
    assert (rows[topic].outcome, conclusion.exit_code) == (Outcome.FAILED, 1)
    assert says in rows[topic].message
    remedies = [PROFILE.limits[metric].remedy for _, metric, asked in ASKED if asked == path]
    told = rows[topic].message.partition(" on rank 3 (node-00, GPU 3, serial 1650000000003); to do: ")[2]
    assert any(told.startswith(remedy) for remedy in remedies)


@pytest.mark.parametrize(("path", "value"), [("clocks.application_sm_mhz", 1995), ("power.enforced_limit_w", 750.0)])
def test_a_raised_value_is_not_lowered(path, value):
    rows, _ = rows_of(changed(IDLE, f"{GPU}.{path}", value))
    assert bad_rows(rows) == set()


def test_every_limit_says_what_to_do_about_a_miss():
    limits = [limit for limit in PROFILE.limits.values() if limit.subject == "gpu_health"]
    assert len(limits) > 35
    assert [limit.metric for limit in limits if not limit.remedy] == []


def test_every_value_that_any_row_judges_has_a_damage_of_its_own():
    """All faults of one link."""
    asked = {ANY_LINK.sub("nvlinks", path) for topic, _, path in ASKED if topic not in UNDAMAGED}
    assert asked == {ANY_LINK.sub("nvlinks", path) for path, *_ in DAMAGES.values()}


def test_peers_that_are_not_reached_are_counted_on_the_gpu_that_asks():
    peers = IDLE["node"]["gpus"]["peers"]
    index = next(number for number, peer in enumerate(peers) if peer["source"] == BAD)
    rows, conclusion = rows_of(changed(IDLE, f"node.gpus.peers.{index}.nvlink", "topology not supported"))
    assert bad_rows(rows) == {"peers"}
    assert "gpu_health.peers.without_nvlink = 1 count" in rows["peers"].message
    assert conclusion.exit_code == 1


@pytest.mark.parametrize(
    ("kept", "silent"),
    [
        (lambda peer: False, "1-7"),
        (lambda peer: peer["source"] != BAD, "0-2,4-7"),
        (lambda peer: (peer["source"], peer["target"]) != (BAD, 5), "5"),
    ],
    ids=["no pair", "none of one GPU", "one pair"],
)
def test_peers_without_an_answer_are_not_reached(kept, silent):
    peers = [peer for peer in IDLE["node"]["gpus"]["peers"] if kept(peer)]
    rows, conclusion = rows_of(changed(IDLE, "node.gpus.peers", peers))
    assert bad_rows(rows) == {"peers"}
    assert f"peers.without_read has no value: not there (NVML gave no link to GPU {silent})" in rows["peers"].message
    assert conclusion.verdict == "INCOMPLETE"


def test_a_gpu_that_fell_off_the_bus_fails_every_row():
    gpu = {path: {"missing": "unreadable", "detail": "GPU is lost"} for path in IDLE["node"]["gpus"]["gpus"][BAD]}
    plain = json.loads(json.dumps(IDLE))
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
    on_bus = IDLE["node"]["bus"]["gpus"]
    hidden = {"gpus": on_bus[:7], "unreadable": [on_bus[7]]}
    _, conclusion = rows_of(changed(seven_gpus(), "node.bus", hidden))
    assert conclusion.verdict == "INCOMPLETE"
    assert "7 of 8 GPUs" in conclusion.line


def test_a_node_must_have_the_gpus_that_were_ordered():
    """One that fell off the bus as well shows nowhere."""
    gone = changed(seven_gpus(), "node.bus.gpus", IDLE["node"]["bus"]["gpus"][:7])
    assert rows_of(gone)[-1].verdict == "ACCEPTED"
    rows, conclusion = rows_of(gone, num_gpus=8)
    assert bad_rows(rows) == {"site"}
    assert conclusion.exit_code == 1
    assert rows["site"].message.startswith("environment.site.difference = node-00 has 7 GPUs, not 8, need == none [base.yaml: policy: ")
    assert "; to do: find out why the nodes that are named differ from what was ordered" in rows["site"].message
    rows, conclusion = rows_of(IDLE, num_gpus=8)
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
        rows_of(changed(IDLE, "node.gpus.gpus", gpus))
