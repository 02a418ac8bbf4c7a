"""The kernel's log of a snapshot, where a site requires it: one message more, and exactly that row fails, and names GPU, XID and remedy."""

import json
from dataclasses import replace

import pytest
from kernel_logs import BLOCKS, CARD, DOUBT, PATH, write_log
from kernel_logs import GPU as RIGHT
from snapshots import changed, real, snapshot_of

from gpu_acceptance.cli.snapshot_file import encode, judge_snapshot
from gpu_acceptance.inventory import kernel_log
from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.thresholds.profile import load_profile, shipped_dir
from tests.judging import shipped_profile

IDLE = real()
BAD = 3
ADDRESS = IDLE["node"]["gpus"]["gpus"][BAD]["pci_bus_id"]
PORT = "00000000:00:1E.0"
LOG = "node.kernel_log"
NOT_PERMITTED = {"missing": "not permitted", "detail": "/dev/kmsg"}
NOBODY = {"missing": "not there", "detail": "the line names none"}
NO_SEVERITY = {"missing": "not there", "detail": "the line names no severity"}
ALL = {"errors", "elsewhere", "host", "nics"}
FINE = {Outcome.PASSED, Outcome.NOT_APPLICABLE}
GPU = f"on rank {BAD} (node-00, GPU {BAD}, serial 1650000000003)"


@pytest.fixture(scope="module")
def profile(tmp_path_factory):
    path = tmp_path_factory.mktemp("site") / "site-log.yaml"
    path.write_text("requires: [kernel_log]\nparameters: {infiniband.devices: mlx5_0}\n")
    return load_profile("h200-sxm", shipped_dir(), [path])


@pytest.fixture
def judged(profile):
    def judge(plain):
        _, rows, conclusion = judge_snapshot(snapshot_of(plain), profile)
        found = {row.nodeid.rsplit("test_", 1)[-1]: row for row in rows}
        return found, {topic for topic, row in found.items() if row.outcome not in FINE}, conclusion

    return judge


def xid(number, text="", address=ADDRESS):
    return {"number": number, "pci_bus_id": address, "at_s": 71.5, "pid": NOBODY, "process": NOBODY, "text": text}


def pcie(severity, address=ADDRESS):
    return {"pci_bus_id": address, "severity": severity, "at_s": 71.5, "text": "a line"}


def host_error(kind, severity, text):
    return {"at_s": 71.5, "text": text, "kind": kind, "severity": severity}


def sxid(number, is_fatal):
    return {"number": number, "switch": "nvidia-nvswitch0", "pci_bus_id": PORT, "at_s": 9.0, "is_fatal": is_fatal, "text": ""}


# what is in the log -> list, messages, the row that fails, its words, whose
DAMAGES = {
    "XID 79": (
        *("xids", [xid(79, "GPU has fallen off the bus.")], "errors"),
        *("errors.xids = 1 count (XID 79, GPU has fallen off the bus: reboot the node), need <= 0 count", GPU),
    ),
    "several XIDs, and one of a program": (
        *("xids", [xid(48), xid(63), xid(48), xid(31)], "errors"),
        "errors.xids = 3 count (XID 48, double bit ECC error: reset the GPU (2 times); "
        "XID 63, row remapping or page retirement: reset the GPU), need <= 0 count",
        GPU,
    ),
    "XID 154 that asks for a reset": (
        *("xids", [xid(154, "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)")], "errors"),
        *("errors.xids = 1 count (XID 154, GPU recovery action changed: reset the GPU), need", GPU),
    ),
    "an unknown XID": (
        *("xids", [xid(9999)], "errors"),
        *("errors.xids = 1 count (XID 9999, not in the table: contact the vendor's support), need", GPU),
    ),
    "a GPU off the bus": (
        *("lost_gpus", [{"pci_bus_id": ADDRESS, "at_s": 71.5}], "errors"),
        *("errors.lost = 1 count (72 s after boot), need <= 0 count", GPU),
    ),
    "a fatal PCIe error": (
        *("pcie_errors", [pcie("fatal"), pcie("corrected")], "errors"),
        *(f"errors.pcie = 1 count ({ADDRESS} fatal), need <= 0 count", GPU),
    ),
    "a non-fatal one": ("pcie_errors", [pcie("non-fatal")], "errors", f"errors.pcie = 1 count ({ADDRESS} non-fatal), need", GPU),
    "an XID of a GPU that is not there": (
        *("xids", [xid(79, address="00000000:FE:00.0")], "elsewhere"),
        *("elsewhere.gpus = 1 count (00000000:FE:00.0), need <= 0 count", "on node 0 (node-00)"),
    ),
    "a lost GPU that is not there": (
        *("lost_gpus", [{"pci_bus_id": "00000000:FE:00.0", "at_s": 3.0}], "elsewhere"),
        *("elsewhere.gpus = 1 count (00000000:FE:00.0), need", "on node 0 (node-00)"),
    ),
    "a fatal error of a switch": (
        *("sxids", [sxid(20034, True), sxid(12028, False)], "elsewhere"),
        *("elsewhere.sxids = 1 count (SXid 20034 of nvidia-nvswitch0), need <= 0 count", "on node 0 (node-00)"),
    ),
    "memory of the host": (
        *(
            "host_errors",
            [host_error("memory", "uncorrected", "EDAC MC1: 1 UE"), host_error("memory", "corrected", "1 CE")],
            "host",
        ),
        *("host.memory = 1 count (EDAC MC1: 1 UE), need <= 0 count", "on node 0 (node-00)"),
    ),
    "a machine check": (
        *("host_errors", [host_error("machine check", "fatal", "Bank 5")], "host"),
        *("host.machine_checks = 1 count (machine check, fatal: Bank 5), need <= 0 count", "on node 0 (node-00)"),
    ),
}


@pytest.mark.parametrize("name", ["h200x8-idle", "h200x8-loaded"])
def test_a_healthy_log_holds(name, profile):
    _, rows, conclusion = judge_snapshot(snapshot_of(real(name)), profile, allow_busy=True)
    assert {row.outcome for row in rows if row.subject == "kernel_log"} == {Outcome.PASSED}
    assert conclusion.exit_code == 0


@pytest.mark.parametrize("damage", DAMAGES)
def test_one_message_fails_one_row_with_its_gpu_and_remedy(damage, judged, profile):
    name, messages, topic, says, where = DAMAGES[damage]
    rows, bad, conclusion = judged(changed(IDLE, f"{LOG}.{name}", messages))
    assert bad == {topic}
    assert (rows[topic].outcome, conclusion.exit_code) == (Outcome.FAILED, 1)
    metric = f"kernel_log.{says.split(' ')[0]}"
    assert f"kernel_log.{says}" in rows[topic].message
    assert f"{where}; to do: {profile.limits[metric].remedy}" in rows[topic].message


@pytest.mark.parametrize(
    ("name", "messages"),
    [
        ("xids", [xid(31), xid(43), xid(13)]),
        ("pcie_errors", [pcie("corrected")]),
        ("pcie_errors", [pcie("fatal", "00000000:FE:00.0")]),  # of a device that no GPU is behind
        ("sxids", [sxid(12028, False)]),
    ],
)
def test_a_message_without_a_repair_is_not_counted(name, messages, judged):
    _, bad, conclusion = judged(changed(IDLE, f"{LOG}.{name}", messages))
    assert (bad, conclusion.verdict) == (set(), "ACCEPTED")


def with_path(plain, path):
    index = next(index for index, place in enumerate(plain["node"]["gpu_places"]) if place["pci_bus_id"] == ADDRESS)
    return changed(plain, f"node.gpu_places.{index}.pci_path", path)


def test_an_error_of_a_port_above_a_gpu_is_its_own(judged):
    plain = with_path(changed(IDLE, f"{LOG}.pcie_errors", [pcie("fatal", PORT)]), "pci0000:00/0000:00:1e.0/0000:8b:00.0")
    rows, bad, _ = judged(plain)
    assert bad == {"errors"}
    assert f"kernel_log.errors.pcie = 1 count ({PORT} fatal), need <= 0 count" in rows["errors"].message
    assert GPU in rows["errors"].message


def incomplete(judged, plain, topics, *says):
    rows, bad, conclusion = judged(plain)
    assert (bad, conclusion.verdict) == (topics, "INCOMPLETE")
    for text in says:
        assert any(text in row.message for row in rows.values())


@pytest.mark.parametrize(
    ("change", "topic", "said"),
    [
        (
            lambda plain: with_path(changed(plain, f"{LOG}.pcie_errors", [pcie("fatal", PORT)]), NOT_PERMITTED),
            *("errors", "errors.pcie has no value: not permitted (/dev/kmsg), need <= 0 count"),
        ),
        (
            lambda plain: changed(plain, f"{LOG}.pcie_errors", [pcie(NO_SEVERITY)]),
            *("errors", f"errors.pcie has no value: unreadable ({ADDRESS}: not there (the line names no severity)), need"),
        ),
        (
            lambda plain: changed(plain, f"{LOG}.sxids", [sxid(10002, {"missing": "not there", "detail": "neither"})]),
            *(
                "elsewhere",
                "elsewhere.sxids has no value: unreadable (SXid 10002 of nvidia-nvswitch0: not there (neither)), need",
            ),
        ),
    ],
    ids=["a port of unknown GPUs", "no severity", "a switch without a fatality"],
)
def test_a_message_in_doubt_is_no_pass(change, topic, said, judged):
    incomplete(judged, change(IDLE), {topic}, f"kernel_log.{said}")


def test_a_line_in_an_unknown_format_may_be_of_any_gpu(judged):
    plain = changed(IDLE, f"{LOG}.unreadable", [{"at_s": 9.0, "text": "NVRM: Xid ???"}])
    said = "kernel_log.errors.xids has no value: unreadable (in no known form: NVRM: Xid ???), need <= 0 count"
    incomplete(judged, plain, {"errors", "elsewhere"}, said, "on rank 0 (node-00, GPU 0, serial 1650000000000) and 7 more")


def test_a_log_that_does_not_reach_back_to_boot_proves_nothing_good(judged):
    reach = IDLE["node"]["kernel_log"]["reach"] | {"first_sequence": 900, "first_s": 86400.4, "is_since_boot": False}
    plain = changed(IDLE, f"{LOG}.reach", reach)
    said = "has no value: not there (not all of the kernel log since boot is there: it begins 86400 s after it), need <= 0 count"
    incomplete(judged, plain, ALL, f"kernel_log.errors.xids {said}", f"kernel_log.elsewhere.sxids {said}")


def test_a_message_in_a_log_that_does_not_reach_back_counts(judged):
    reach = IDLE["node"]["kernel_log"]["reach"] | {"first_sequence": 900, "is_since_boot": False}
    rows, _, conclusion = judged(changed(changed(IDLE, f"{LOG}.reach", reach), f"{LOG}.xids", [xid(79)]))
    assert conclusion.exit_code == 1
    assert "kernel_log.errors.xids = 1 count (XID 79, " in rows["errors"].message


def test_a_log_that_may_not_be_read_is_not_measured(judged):
    plain = changed(IDLE, LOG, dict.fromkeys(IDLE["node"]["kernel_log"], NOT_PERMITTED))
    incomplete(judged, plain, ALL, "kernel_log.errors.lost has no value: not permitted (/dev/kmsg), need <= 0 count")


def test_a_gpu_without_an_address_has_no_messages_and_is_not_fine(judged):
    plain = changed(IDLE, f"node.gpus.gpus.{BAD}.pci_bus_id", {"missing": "unreadable", "detail": "GPU is lost"})
    incomplete(judged, plain, {"errors"}, "kernel_log.errors.xids has no value: unreadable (GPU is lost), need <= 0 count")
    incomplete(
        judged, changed(plain, f"{LOG}.xids", [xid(79)]), {"errors", "elsewhere"}, "kernel_log.elsewhere.gpus has no value: unreadable"
    )


def test_the_log_is_judged_only_where_a_site_requires_it():
    profile = shipped_profile("h200-sxm")
    assert "kernel_log" not in profile.requires
    _, rows, conclusion = judge_snapshot(snapshot_of(changed(IDLE, f"{LOG}.xids", [xid(79)])), profile)
    assert {row.subject for row in rows} == {"gpu_health"}
    assert conclusion.verdict == "ACCEPTED"


def test_an_error_of_the_host_in_a_snapshot_of_an_older_version_is_in_doubt(judged):
    plain = changed(IDLE, f"{LOG}.host_errors", [{"at_s": 1.0, "text": "EDAC MC1: 1 CE"}])
    incomplete(judged, plain, {"host"}, "kernel_log.host.memory has no value: unreadable (not there (the snapshot is of an older version)")


@pytest.mark.parametrize("name", BLOCKS)
def test_real_lines_on_a_real_node_have_their_verdict(name, judged, tmp_path):
    """The lines as the device gives them, on a node whose GPU and card have the addresses of the lines."""
    wanted, lines = BLOCKS[name]
    write_log(tmp_path, lines)
    plain = changed(with_path(IDLE, PATH), f"node.gpus.gpus.{BAD}.pci_bus_id", RIGHT)
    index = next(index for index, place in enumerate(plain["node"]["gpu_places"]) if place["pci_bus_id"] == ADDRESS)
    plain = changed(changed(plain, f"node.gpu_places.{index}.pci_bus_id", RIGHT), "node.infiniband.devices", [CARD])
    snapshot = snapshot_of(plain)
    snapshot = replace(snapshot, node=replace(snapshot.node, kernel_log=kernel_log.read(tmp_path)))
    _, bad, conclusion = judged(json.loads(encode(snapshot)))
    assert conclusion.exit_code == (0 if not wanted else 1 if set(wanted.values()) != {DOUBT} else 6)
    assert bad == {metric.split(".")[0] for metric in wanted}
