"""Answers of a real control plane, kept by test_real_kubernetes.py and test_real_pods.py: no cluster is needed."""

import json
from functools import partial
from pathlib import Path

import kubernetes_validate
import pytest

from gpu_acceptance.cli import meet
from gpu_acceptance.inventory import kubernetes, kubernetes_health, kubernetes_own
from gpu_acceptance.inventory.answer import Missing, Why

pytestmark = pytest.mark.needs("openssl")

KEPT = Path(__file__).parents[1] / "kubernetes"
ANSWERS = json.loads((KEPT / "answers.json").read_text())
RAN = json.loads((KEPT / "pod_answers.json").read_text())
RUNS = sorted(name for name in (*ANSWERS, *RAN) if name.startswith("pods_"))
UNSCHEDULABLE = "(PodScheduled: Unschedulable)"
OTHER = "1 node(s) didn't match Pod's node affinity"
TAINTED = "1 node(s) had taint {maintenance: fan}, that the pod didn't tolerate"
UNHEARD = "its containers are Ready and it is not: its node does not report"


def test_the_version_is_named():
    assert ANSWERS["version"] == RAN["kubeletVersion"] == "v1.20.2"
    assert RAN["containerRuntimeVersion"] == "containerd://1.6.20"


@pytest.mark.parametrize("name", RUNS)
def test_kept_answers_have_the_form_of_kubernetes(name):
    for one in {**ANSWERS, **RAN}[name]["items"]:
        kubernetes_validate.validate({"apiVersion": "v1", "kind": "Pod", **one}, kubernetes_validate.latest_version(), strict=True)


SAID = {  # the last pod that does not run, less its name; NODE is where it is
    "anti_affinity": f"is Pending: 0/4 nodes are available: {OTHER}, {TAINTED}, 2 node(s) didn't match pod affinity/anti-affinity, "
    f"2 node(s) didn't match pod anti-affinity rules. {UNSCHEDULABLE}",
    "bound": "on NODE is Pending: its kubelet has not taken it up",
    "claim": f'is Pending: 0/4 nodes are available: 4 persistentvolumeclaim "nobody-s" not found. {UNSCHEDULABLE}',
    "config_error": 'on NODE is Pending: secret "nobody-s" not found (acceptance: CreateContainerConfigError)',
    "gpus": f"is Pending: 0/4 nodes are available: {OTHER}, {TAINTED}, 2 Insufficient nvidia.com/gpu. {UNSCHEDULABLE}",
    "job_cordoned": "on NODE is Failed: REJECTED: 1 limit missed in 1 of 62 validations (health, cpu profile: no GPU was tested, "
    "1 node of the cluster without a pod of this run: not tested, 1 added, overlay site-kubernetes.yaml) | "
    "run gpu-acceptance-af500cea-ea31-4958-a704-5f5e8962dd0e | ended 6.4 s ago | "
    "/reports/gpu-acceptance-af500cea-ea31-4958-a704-5f5e8962dd0e/results.json (acceptance: Error, exit code 1)",
    "never_pulled": 'on NODE is Pending: Container image "nobody-s:1" is not present with pull policy of Never '
    "(acceptance: ErrImageNeverPull)",
    "no_command": "on NODE is Failed: failed to create containerd task: failed to create shim task: OCI runtime create failed: "
    'runc create failed: unable to start container process: exec: "nobody-s": executable file not found in $PATH: unknown '
    "(acceptance: StartError, exit code 128)",
    "no_folder": "on NODE is Pending: acceptance: ContainerCreating",
    "no_image": 'on NODE is Pending: rpc error: code = Unknown desc = failed to pull and unpack image "127.0.0.1:9/nobody-s:1": '
    'failed to resolve reference "127.0.0.1:9/nobody-s:1": failed to do request: Head "http://127.0.0.1:9/v2/nobody-s/manifests/1": '
    "dial tcp 127.0.0.1:9: connect: connection refused (acceptance: ErrImagePull)",
    "no_memory": "on NODE is Failed: acceptance: OOMKilled, exit code 137",
    "no_node": f"is Pending: 0/4 nodes are available: {OTHER}, {TAINTED}, 1 node(s) had taint {{node.kubernetes.io/not-ready: }}, "
    f"that the pod didn't tolerate, 1 node(s) were unschedulable. {UNSCHEDULABLE}",
    "no_volume": "on NODE is Pending: acceptance: ContainerCreating",
    "refused": "on NODE is Failed: Pod Node didn't have enough resource: nvidia.com/gpu, requested: 9, used: 0, capacity: 8 "
    "(OutOfnvidia.com/gpu)",
    "selector": f"is Pending: 0/4 nodes are available: {TAINTED}, 3 node(s) didn't match Pod's node affinity. {UNSCHEDULABLE}",
    "taint": f"is Pending: 0/4 nodes are available: {TAINTED}, 3 node(s) didn't match Pod's node affinity. {UNSCHEDULABLE}",
    "terminating": "on NODE is Terminating: Kubernetes gives no reason",
    "unreachable": f"on NODE is NotReady: {UNHEARD}",
    "usage": "on NODE is Failed: no run in /reports/gpu-acceptance-e3ed78ad-75fa-4286-ae21-62deb40e1603: see the error above "
    "(acceptance: Error, exit code 4)",
}


def wait(api, name):
    """For the pods of this answer: code, lines, and the node of each pod by its name."""
    answer, lines = {**ANSWERS, **RAN}[f"pods_{name}"], []
    api.answer = (200, json.dumps(answer))
    read = partial(kubernetes.read_pods, "batch.kubernetes.io/controller-uid=any", api.environment)
    nodes = {one["metadata"]["name"]: one["spec"].get("nodeName", "nowhere") for one in answer["items"]}
    return meet.await_pods(read, len(nodes), 0.0, lines.append), lines, nodes


@pytest.mark.parametrize("name", SAID)
def test_the_reason_why_a_pod_does_not_run(api, name):
    code, lines, nodes = wait(api, name)
    pod, said = [line for line in lines if line.startswith("pod ")][-1].removeprefix("pod ").split(" ", 1)
    assert (code, said) == (6, SAID[name].replace("NODE", nodes[pod]))


def test_pods_that_have_ended_well(api):
    """A first pod that begins late finds none of them running."""
    code, (*said, _), nodes = wait(api, "accepted")
    assert (code, said) == (6, [f"pod {name} on {nodes[name]} is Succeeded: Kubernetes gives no reason" for name in sorted(nodes)])


def test_a_pod_that_runs(api):
    assert wait(api, "running")[:2] == (0, ["1 of 1 pod of this run running"])


def told_by(api, node, pods):
    """Answers to the first of these pods, as if it were on this node, under the name node-01."""
    own = pods["items"][0]
    api.node, api.pods = node, [{**own, "spec": {**own["spec"], "nodeName": "node-01"}}]
    api.environment.update(NODE_NAME="node-01", POD_UID=own["metadata"]["uid"])
    return kubernetes_own.read(api.environment)


STOPPED = "kubelet: Kubelet stopped posting node status."
WELL = {
    "node.ready": (True, "KubeletReady"),
    "node.pressure": (0, ""),
    "node.faults": (0, ""),
    "node.taints": (0, ""),
    "devices.gpus": (8, ""),
    "devices.withdrawn": (0, ""),
    "pods.same_run": (1, ""),
    "pods.others": (0, ""),
}
SICK = {  # what differs
    "well": {},
    "cordoned": {"node.taints": (1, "node.kubernetes.io/unschedulable")},
    "not_ready": {"node.ready": (False, "KubeletNotReady"), "node.taints": (1, "node.kubernetes.io/not-ready")},  # two taints of one key
    "unreachable": {
        "node.ready": (False, "NodeStatusUnknown"),
        "node.pressure": (3, f"MemoryPressure Unknown ({STOPPED}), DiskPressure Unknown ({STOPPED}), PIDPressure Unknown ({STOPPED})"),
        "node.taints": (1, "node.kubernetes.io/unreachable"),
    },
}


@pytest.mark.parametrize("name", SICK)
def test_a_node(api, name):
    told = told_by(api, ANSWERS[f"node_{name}"], ANSWERS["pods_of_node"])
    topics = (kubernetes_health.node, kubernetes_health.devices, kubernetes_health.pods)
    found = {metric.removeprefix("kubernetes."): (value, detail) for topic in topics for metric, value, _, detail in topic(told)}
    own = {"pods.same_run": (1, f"default/{api.pods[0]['metadata']['name']}")}
    assert found == {**WELL, **own, **SICK[name]}


@pytest.mark.parametrize(("name", "said"), [("not_ready", "node-02 (node.kubernetes.io/not-ready)"), ("cordoned", "none")])
def test_a_node_that_the_run_is_not_on(api, name, said):
    """Our selector fits both, and the run is on the first."""
    api.other_nodes = [ANSWERS[f"node_{name}"]]
    told = told_by(api, ANSWERS["node_well"], ANSWERS["pods_bound"])
    _, (_, names, _) = kubernetes_health.elsewhere_facts(told, kubernetes_health.read_candidates(told, api.environment), ["node-01"])
    assert names == said


def test_a_missing_right_is_named_in_the_words_of_the_api(api):
    api.answer = (403, json.dumps(ANSWERS["forbidden"]))
    message = (
        'nodes "node-01" is forbidden: User "system:serviceaccount:default:gpu-acceptance" cannot get resource "nodes" '
        'in API group "" at the cluster scope'
    )
    assert kubernetes_own.read(api.environment).node == Missing(Why.NOT_PERMITTED, f"GET /api/v1/nodes/node-01: status 403, {message!r}")
