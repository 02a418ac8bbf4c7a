"""Conditions that agents set on a node: who means what, by the table, and by the name of one that the table does not have."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_acceptance.base.strict_yaml import parse
from gpu_acceptance.inventory import kubernetes_health, kubernetes_own, node_conditions
from gpu_acceptance.inventory.answer import Missing, Why
from gpu_acceptance.inventory.kubernetes_node import Node, Taint
from gpu_acceptance.inventory.node_conditions import Meaning

READY = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
KUBELET = [READY, *({"type": f"{name}Pressure", "status": "False"} for name in ("Memory", "Disk", "PID"))]
TABLE = parse(node_conditions.CONDITIONS_FILE.read_bytes()).data
NAMES = [name for rows in TABLE["agents"].values() for kind in node_conditions._KINDS for name in rows.get(kind, ())]


def found(*conditions, labels=None, taints=()):
    """Findings in a node with these conditions beside those of a sound kubelet."""
    read = node_conditions.read_conditions({"conditions": [*KUBELET, *conditions]})
    told = kubernetes_own.Answers(Node("node-01", read, tuple(taints), labels or {}, ()), (), "uid")
    return {metric.removeprefix("kubernetes.node."): (value, detail) for metric, value, _, detail in kubernetes_health.node(told)}


def condition(kind, status, reason=None, message=None):
    return {"type": kind, "status": status, "reason": reason, "message": message}


def test_the_kubelet_alone_reports_no_fault():
    assert found() == {"ready": (True, "KubeletReady"), "pressure": (0, ""), "faults": (0, ""), "taints": (0, "")}


@pytest.mark.parametrize(
    ("kind", "status", "reason", "message", "told"),
    [
        ("GPUMissing", "True", "GPUMissing", "7 of 8 GPUs", "GPUMissing True (AKS: 7 of 8 GPUs)"),
        ("XIDErrors", "True", "XIDErrorsPresent", "", "XIDErrors True (AKS: XIDErrorsPresent)"),
        ("IBLinkFlapping", "True", None, None, "IBLinkFlapping True (AKS: no reason)"),
        ("UnhealthyNvidiaDevicePlugin", "True", "x", "", "UnhealthyNvidiaDevicePlugin True (AKS: x)"),
        ("AcceleratedHardwareReady", "False", "NvidiaXID79Error", "", "AcceleratedHardwareReady False (EKS: NvidiaXID79Error)"),
        ("KernelReady", "False", "SoftLockup", "", "KernelReady False (EKS: SoftLockup)"),
        ("NebiusGPUError", "True", "GPUHealthCheckFailedMK8S", '{"errors":[]}', 'NebiusGPUError True (Nebius: {"errors":[]})'),
        ("HardwareIssuesSuspected", "True", "a", "", "HardwareIssuesSuspected True (Nebius: a)"),
        ("XidCriticalError", "True", '{"48":true}', "", 'XidCriticalError True (GKE: {"48":true})'),
        ("GpuXidError", "True", "r", "", "GpuXidError True (NVSentinel: r)"),
        ("GpuNvlinkWatch", "True", "GpuNvlinkWatchIsNotHealthy", "", "GpuNvlinkWatch True (NVSentinel: GpuNvlinkWatchIsNotHealthy)"),
        ("SysLogsXIDError", "True", "r", "", "SysLogsXIDError True (NVSentinel: r)"),
        ("InfiniBandDegradationCheck", "True", "r", "", "InfiniBandDegradationCheck True (NVSentinel: r)"),
        ("GpuEcc", "True", "r", "", "GpuEcc True (OKE: r)"),
        ("GPURowRemap", "True", "r", "", "GPURowRemap True (OKE: r)"),
        ("RdmaWpaAuth", "True", "r", "", "RdmaWpaAuth True (OKE: r)"),
        ("AMDGPUUnhealthy", "True", "AMDGPUIsDown", "", "AMDGPUUnhealthy True (AMD GPU operator: AMDGPUIsDown)"),
        ("KernelDeadlock", "True", "DockerHung", "", "KernelDeadlock True (node-problem-detector: DockerHung)"),
        ("CperHardwareErrorFatal", "True", "r", "", "CperHardwareErrorFatal True (node-problem-detector: r)"),
        ("GcmSmiDisconnectedProblem", "True", "x", "found 7", "GcmSmiDisconnectedProblem True (GCM: found 7)"),
        ("NPDSmiDisconnectedProblem", "True", "r", "", "NPDSmiDisconnectedProblem True (GCM: r)"),
        ("MCEHardwareErrors", "True", "r", "", "MCEHardwareErrors True (OKE: r)"),
        # of no list: the name says it, in either polarity
        ("GPUECCRemapFailure", "True", "r", "", "GPUECCRemapFailure True (an agent that is not in the table: r)"),
        ("NvidiaXid74Error", "True", "r", "", "NvidiaXid74Error True (an agent that is not in the table: r)"),
        ("GPUHealthy", "False", "GPUXIDError", "", "GPUHealthy False (an agent that is not in the table: GPUXIDError)"),
        ("GPUNotReady", "True", "r", "", "GPUNotReady True (an agent that is not in the table: r)"),
        ("NVIDIAXID", "True", "r", "", "NVIDIAXID True (an agent that is not in the table: r)"),
        ("GPUNotFound", "True", "r", "", "GPUNotFound True (an agent that is not in the table: r)"),
        ("NVLinkErrorFree", "False", "r", "", "NVLinkErrorFree False (an agent that is not in the table: r)"),
        ("gpu_ecc_ok", "False", "r", "", "gpu_ecc_ok False (an agent that is not in the table: r)"),
        ("NVLinkB200Inactive", "True", "r", "", "NVLinkB200Inactive True (an agent that is not in the table: r)"),
        *(
            (name, "True", "r", "", f"{name} True (an agent that is not in the table: r)")
            for name in (
                *("RoCELinkDown", "RDMANICDown", "GPUXIDs", "XIDsDetected", "PCIeLinkDegraded", "HardwareFailure", "CPUMCEErrors"),
                *("NT_GPU_CARD_LOSE", "UncorrectableMemoryError", "roce-link-down", "RoceLinkDown", "GPURowRemapPending", "DIMMError"),
            )
        ),
        ("site.example/gpu-xid-errors", "True", "r", "", "site.example/gpu-xid-errors True (an agent that is not in the table: r)"),
    ],
)
def test_a_fault_that_an_agent_reports_is_counted_and_its_opposite_is_none(kind, status, reason, message, told):
    assert found(condition(kind, status, reason, message))["faults"] == (1, told)
    opposite = {"True": "False", "False": "True"}[status]
    assert found(condition(kind, opposite, reason, message)) == found()


@pytest.mark.parametrize(
    ("kind", "status", "reason"),
    [
        ("GPUMissing", "Unknown", "Timeout"),  # node-problem-detector could not run its check
        ("AcceleratedHardwareReady", "Unknown", ""),
        ("AcceleratedHardwareReady", "False", "DCGMError"),
        ("GpuDcgmConnectivityFailure", "True", "r"),
        ("GpuHealth", "True", "r"),  # well, or a check that failed
        ("GpuState", "True", "r"),  # the name does not tell which status is well
        ("GpuState", "False", "r"),
        ("GPUHealthy", "Unknown", "r"),
        ("GPUErrorsHealthy", "True", "r"),  # its words contradict each other
        ("NVLinkErrorFree", "true", "r"),  # no status of Kubernetes
        (None, "True", "r"),
        ("GPUXidErrors", None, "r"),
        ("NPDDcgmRunningProblem", "True", "r"),
        # of no list, and not of hardware: a fault that it reports may be one of hardware
        ("DiskFailure", "True", "r"),
        ("DNSProblem", "True", "r"),
        ("StorageNotReady", "True", "r"),
        ("NoDiskErrors", "False", "r"),
        ("DiskErrorsOk", "True", "r"),
    ],
)
def test_what_proves_nothing_leaves_the_number_of_faults_unknown(kind, status, reason):
    value, _ = found(condition(kind, status, reason))["faults"]
    assert value.missing is Why.UNREADABLE
    assert value.detail.startswith("no proof in either direction: ")
    assert str(kind) in value.detail
    assert found(condition(kind, status, reason), condition("XIDErrors", "True", "r"))["faults"] == (1, "XIDErrors True (AKS: r)")


@pytest.mark.parametrize(
    "kind",
    [
        *("NebiusMaintenanceScheduled", "VMEventScheduled", "SlurmNodeDrain", "OcaVersion", "EtcdIsVoter", "SeccompDefault"),
        *("MigrationPending", "NTPProblem", "ProcessReady", "SystemCertificate", "MaxIdle"),  # with `roce`, `mce` and `xid` inside
    ],
)
@pytest.mark.parametrize("status", ["True", "False", "Unknown"])
def test_plans_and_what_speaks_neither_of_hardware_nor_of_a_fault_are_not_judged(kind, status):
    assert found(condition(kind, status, "r")) == found()


@pytest.mark.parametrize(("kind", "status"), [("DiskFailure", "False"), ("NoDiskErrors", "True"), ("DNSProblem", "Unknown")])
def test_what_does_not_speak_of_hardware_and_reports_no_fault_is_not_judged(kind, status):
    assert found(condition(kind, status, "r")) == found()


STATUS = "sagemaker.amazonaws.com/node-health-status"
DEEP = "sagemaker.amazonaws.com/deep-health-check-status"
ANOMALY = "alibabacloud.com/node-anomaly"
LIFECYCLE = "node.coreweave.cloud/state"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *((STATUS, "UnschedulablePendingReplacement"), (STATUS, "UnschedulablePendingReboot"), (DEEP, "Failed")),
        *((ANOMALY, "true"), (LIFECYCLE, "triage")),
    ],
)
def test_a_label_by_which_an_agent_reports_a_fault_is_counted(key, value):
    assert found(labels={key: value})["faults"] == (1, f"{key}={value}")
    assert found(condition("XIDErrors", "True", "r"), labels={key: value})["faults"] == (2, f"XIDErrors True (AKS: r), {key}={value}")


@pytest.mark.parametrize(("key", "value"), [(STATUS, "Unschedulable"), (DEEP, "InProgress")])
def test_a_label_of_a_check_that_runs_leaves_the_number_of_faults_unknown(key, value):
    said = f"no proof in either direction: {key}={value}"
    assert found(labels={key: value})["faults"][0] == Missing(Why.UNREADABLE, said)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *((STATUS, "Schedulable"), (DEEP, "Passed"), (ANOMALY, "false"), (LIFECYCLE, "production")),
        *(("nvidia.com/gpu.present", "true"), ("site.example/gpu-error", "none")),
    ],
)
def test_another_label_is_not_judged(key, value):
    assert found(labels={key: value}) == found()


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("node.kubernetes.io/unschedulable", "", "node.kubernetes.io/unschedulable"),
        ("node.cloudprovider.kubernetes.io/shutdown", "", "node.cloudprovider.kubernetes.io/shutdown"),
        (STATUS, "UnschedulablePendingReboot", f"{STATUS}=UnschedulablePendingReboot"),
        (ANOMALY, "", ANOMALY),
    ],
)
def test_a_taint_for_a_fault_is_counted_once_for_all_its_effects(key, value, told):
    taints = [Taint(key, value, effect) for effect in ("NoSchedule", "NoExecute")]
    assert found(taints=taints)["taints"] == (1, told)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (STATUS, "Unschedulable"),
        ("nvidia.com/gpu-xid-error", "79"),
        ("gpu.node.nvsentinel/fault", ""),
        ("readiness.k8s.io/nvidia.com/gpu-not-ready", ""),
        ("readiness.k8s.io/acme.com/network-unavailable", "pending"),
        ("site.example/gpu", "failed"),
        ("site.example/gpu-xid", ""),
    ],
)
def test_a_taint_that_speaks_of_a_fault_of_hardware_leaves_the_number_unknown(key, value):
    taint = Taint(key, value, "NoSchedule")
    number, _ = found(taints=[taint])["taints"]
    assert number == Missing(Why.UNREADABLE, f"no proof in either direction: {key}{value and '='}{value}")
    assert found(taints=[taint, Taint("node.kubernetes.io/not-ready", "", "NoExecute")])["taints"] == (1, "node.kubernetes.io/not-ready")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("nvidia.com/gpu", ""),
        ("nvidia.com/gpu", "present"),
        ("CriticalAddonsOnly", "true"),
        ("site.example/gpu", "no"),
        ("site.example/own", ""),
    ],
)
def test_another_taint_is_not_judged(key, value):
    assert found(taints=[Taint(key, value, "NoSchedule")]) == found()


@pytest.mark.parametrize(("status", "reason"), [("maybe", "x"), (None, "x"), (True, "x")])
def test_an_odd_condition_costs_itself_alone(status, reason):
    odd = found(condition("Ready", status, reason))  # beside one that is True
    assert odd["ready"][0].missing is Why.UNREADABLE
    assert {name: value for name, value in odd.items() if name != "ready"} == {
        name: value for name, value in found().items() if name != "ready"
    }
    assert found(condition("Ready", "False", "NotReady"))["ready"] == (False, "NotReady")


def test_any_text_of_a_reason_is_told_on_one_line():
    for reason in ("a\nb", "x" * 9999, "\x1b[2J", "\u202e", 7, ["a"], {}):
        number, detail = found(condition("XIDErrors", "True", reason))["faults"]
        assert number == 1
        assert detail.isprintable()
        assert len(detail) < 250


def test_the_table_has_each_name_once_a_source_for_each_agent_and_no_word_twice():
    names = [
        name.lower()
        for rows in TABLE["agents"].values()
        for kind, names in rows.items()
        if kind in node_conditions._KINDS
        for name in names
    ]
    assert sorted(names) == sorted(set(names))
    assert all("https://" in rows["source"] for rows in TABLE["agents"].values())
    assert {kind for rows in TABLE["agents"].values() for kind in rows} <= {
        *("source", "blind_reasons", "bad_labels", "blind_labels", "bad_taints", "blind_taints"),
        *node_conditions._KINDS,
    }
    lists = [TABLE["unlisted"][kind] for kind in ("fault_words", "hardware_fault_words", "sound_words", "negations")]
    assert sum(map(len, lists)) == len(set().union(*lists))


ANY = st.one_of(st.none(), st.booleans(), st.integers(), st.text(), st.lists(st.text()), st.dictionaries(st.text(), st.text()))
TYPES = st.one_of(st.sampled_from([*NAMES, "GpuFooError", "GPUReady", "Foo", "GpuState"]), ANY)
STATUSES = st.one_of(st.sampled_from(["True", "False", "Unknown"]), ANY)
ONE = st.one_of(st.fixed_dictionaries({"type": TYPES, "status": STATUSES, "reason": ANY}), ANY)


@given(st.lists(ONE))
def test_any_conditions_in_any_order_are_read_and_no_fault_is_lost_or_counted_twice(conditions):
    read = node_conditions.read_conditions({"conditions": conditions})
    bad = {one.condition.type for one in node_conditions.judge(read) if one.meaning is Meaning.FAULT and one.agent != "kubelet"}
    value, detail = found(*conditions, *conditions)["faults"]
    assert detail.isprintable()
    assert isinstance(value, Missing) or value == len(bad)
    assert not (bad and isinstance(value, Missing))
    assert bad >= {
        one["type"] for one in conditions if isinstance(one, dict) and one.get("status") == "True" and one.get("type") == "XIDErrors"
    }
