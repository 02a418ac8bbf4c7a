"""deploy/kubernetes, `gpu-acceptance pods` and subject `kubernetes` against a real control plane: its scheduler, its rights, its nodes.

Nothing runs in a pod: we report in place of a kubelet, but for the one of kubemark, whose container runtime runs nothing.
KEEP_ANSWERS=FILE keeps what the API said, as in tests/kubernetes/answers.json.
"""

import contextlib
import copy
import functools
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from clean_environment import clean_environment
from pods import MANIFESTS, built, in_pod, needs_mounts, suite_in_pod
from real_cluster import needs_cluster, real_cluster, trimmed
from suite import PYTHON, plain_pytest
from waiting import wait_until

from gpu_acceptance.cli import meet
from gpu_acceptance.inventory import kubernetes
from gpu_acceptance.inventory.answer import Missing, Why
from gpu_acceptance.record.outcome import Outcome

pytestmark = [needs_cluster, pytest.mark.launcher]

ACCOUNT = "gpu-acceptance"
API_ROLE = list(yaml.safe_load_all((MANIFESTS / "components" / "api" / "role.yaml").read_text()))


@pytest.fixture(scope="module")
def cluster():
    """With our account, our claim and a volume for it, and nodes that differ."""
    with real_cluster() as found:
        objects = built("all-nodes")
        volume = {
            "capacity": {"storage": "10Gi"},
            "accessModes": ["ReadWriteMany"],
            "hostPath": {"path": "/nowhere"},
            "persistentVolumeReclaimPolicy": "Retain",
            "claimRef": {"namespace": found.namespace, "name": "gpu-acceptance-reports"},
        }
        meta = {"name": found.namespace, "labels": {"of": found.namespace}}
        found.create({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": meta, "spec": volume})
        found.create(*(objects[kind] for kind in ("ServiceAccount", "Role", "RoleBinding", "PersistentVolumeClaim")))
        found.node("node-01")
        found.node("node-02")
        found.node("node-03", labels={"rack": "7"}, taints=[{"key": "maintenance", "value": "fan", "effect": "NoSchedule"}])
        claim = f"/api/v1/namespaces/{found.namespace}/persistentvolumeclaims/gpu-acceptance-reports"
        assert wait_until(lambda: found.get(claim)["status"]["phase"] == "Bound")
        yield found


@pytest.fixture(scope="module")
def keep(cluster):
    """Keeps answers under their names, without what no reader of ours looks at."""
    kept: dict[str, Any] = {}
    yield lambda name, answer: kept.update({name: trimmed(answer, cluster.namespace)})
    if file := os.environ.get("KEEP_ANSWERS"):
        version = cluster.get("/version")["gitVersion"]
        lines = [f"{json.dumps(name)}: {json.dumps(kept[name])}" for name in sorted(kept)]
        Path(file).write_text("{{\n{}\n}}\n".format(",\n".join([f'"version": "{version}"', *lines])))


@pytest.fixture
def account(cluster, tmp_path, monkeypatch):
    """As in a pod of ours."""
    monkeypatch.setattr(kubernetes, "ACCOUNT", cluster.mount(ACCOUNT, tmp_path / "account"))


def wait(cluster, run, number, timeout_s=0.0):
    """Code and lines of the wait for pods, in the first pod."""
    lines: list[str] = []
    read = functools.partial(kubernetes.read_pods, f"batch.kubernetes.io/controller-uid={run}", cluster.environment)
    return meet.await_pods(read, number, timeout_s, lines.append), lines


def bound(cluster, run):
    """Pods that the scheduler has put on a node, and those that it found none for."""
    pods = cluster.pods(run)
    said = [condition for one in pods for condition in one["status"].get("conditions") or () if condition["type"] == "PodScheduled"]
    return [one for one in pods if one["spec"].get("nodeName")], [one for one in said if one["status"] == "False"]


def of(cluster, number):
    return f"node-{number:02}-{cluster.namespace}"


# --- the manifests -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("overlay", ["one-gpu", "one-node", "all-nodes", "reader"])
def test_an_overlay_is_taken_and_by_an_older_kubernetes_refused_with_the_reason(cluster, overlay):
    """Up to 1.28 the limit of failures of each index is unknown."""
    minor = int(re.match(r"\d+", cluster.get("/version")["minor"])[0])
    done = cluster.ask("apply", "--dry-run=server", "-k", str(MANIFESTS / "overlays" / overlay), check=False)
    if minor >= 29 or overlay == "reader":
        assert done.returncode == 0, done.stderr
    else:
        assert 'unknown field "backoffLimitPerIndex"' in done.stderr


# --- the wait for pods ---------------------------------------------------------------------------------------------------------


SIZES = ("capacity", "allocatable")
CLAIM = {"name": "reports", "persistentVolumeClaim": {"claimName": "nobody-s"}}
SHM = {"name": "shm", "emptyDir": {"medium": "Memory"}}
WORDS = [  # pods, GPUs of each, what differs from our manifest, how many are bound, the scheduler's words, of which each release has these
    ("gpus", 3, 8, {}, 2, "Insufficient nvidia.com/gpu"),
    ("anti_affinity", 3, 1, {}, 2, "anti-affinity"),
    ("selector", 1, 8, {"nodeSelector": {"rack": "8"}}, 0, "didn't match"),
    ("taint", 1, 8, {"nodeSelector": {"rack": "7"}}, 0, "taint"),
    ("claim", 1, 8, {"volumes": [SHM, CLAIM]}, 0, 'persistentvolumeclaim "nobody-s" not found'),
]


@pytest.mark.parametrize(("name", "number", "gpus", "spec", "num_bound", "words"), WORDS, ids=[row[0] for row in WORDS])
def test_why_a_pod_has_no_node_is_said_in_the_schedulers_words(cluster, account, keep, name, number, gpus, spec, num_bound, words):
    with cluster.run(number, gpus, **spec) as run:
        assert wait_until(lambda: [len(part) for part in bound(cluster, run)] == [num_bound, number - num_bound]), cluster.pods(run)
        keep(f"pods_{name}", cluster.get(f"/api/v1/namespaces/{cluster.namespace}/pods"))
        code, lines = wait(cluster, run, number)
    assert code == 6
    (line,) = [line for line in lines if "PodScheduled" in line]
    assert re.fullmatch(rf"pod gpu-acceptance-\d-\w{{5}} is Pending: .*{re.escape(words)}.* \(PodScheduled: Unschedulable\)", line), line
    assert lines[-1].startswith(f"INCOMPLETE: 0 of {number} pod")


def test_a_cordoned_node_and_one_that_is_not_ready_get_no_pod(cluster, account, keep):
    first, second = of(cluster, 1), of(cluster, 2)
    try:
        cluster.ask("cordon", first)
        cluster.report_node(second, ready="False")
        assert wait_until(lambda: len(cluster.taints(second)) == 2)
        keep("node_cordoned", cluster.get(f"/api/v1/nodes/{first}"))
        keep("node_not_ready", cluster.get(f"/api/v1/nodes/{second}"))
        with cluster.run(1) as run:
            assert wait_until(lambda: len(bound(cluster, run)[1]) == 1)
            keep("pods_no_node", cluster.get(f"/api/v1/namespaces/{cluster.namespace}/pods"))
            code, lines = wait(cluster, run, 1)
    finally:
        cluster.ask("uncordon", first)
        cluster.report_node(second)
        assert wait_until(lambda: not cluster.taints(first) + cluster.taints(second))
    assert code == 6
    assert "unschedulable" in lines[0]
    assert "not-ready" in lines[0]


def test_a_pod_whose_kubelet_is_silent_is_named_with_its_node_until_it_runs(cluster, account, keep):
    """Two pods of a run, each on a node of its own."""
    with cluster.run(2) as run:
        assert wait_until(lambda: len(bound(cluster, run)[0]) == 2)
        first, second = cluster.pods(run)
        assert {one["spec"]["nodeName"] for one in (first, second)} == {of(cluster, 1), of(cluster, 2)}
        cluster.report_running(first["metadata"]["name"])
        keep("pods_bound", cluster.get(f"/api/v1/namespaces/{cluster.namespace}/pods"))
        code, lines = wait(cluster, run, 2)
        name, node = second["metadata"]["name"], second["spec"]["nodeName"]
        assert (code, lines[0]) == (6, f"pod {name} on {node} is Pending: its kubelet has not taken it up")
        cluster.report_running(name)
        assert wait(cluster, run, 2) == (0, ["2 of 2 pods of this run running"])
        unreachable(cluster, keep, run, second)


@needs_mounts
def test_the_verb_in_a_pod_asks_by_the_account_that_is_mounted(cluster, tmp_path):
    with cluster.run(1, nodeSelector={"rack": "8"}) as run:
        assert wait_until(lambda: len(bound(cluster, run)[1]) == 1)
        verb = ("pods", f"--labels=batch.kubernetes.io/controller-uid={run}", "--number=1", "--timeout=1s")
        command = in_pod(cluster.mount(ACCOUNT, tmp_path / "account"), PYTHON, "-m", "gpu_acceptance", *verb)
        environment = {**clean_environment(), **cluster.environment}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 6, done.stderr
    assert "is Pending: 0/" in done.stdout.splitlines()[1]
    assert done.stdout.splitlines()[-1].startswith("INCOMPLETE: 0 of 1 pod of this run running after ")


MISSING = {"name": "X", "valueFrom": {"secretKeyRef": {"name": "nobody-s", "key": "x"}}}
NOWHERE = {"name": "reports", "configMap": {"name": "nobody-s"}}


@pytest.fixture
def hollow(cluster):
    """A kubelet's node, with 8 GPUs without a device plugin."""
    if "hollow" not in [one["metadata"]["name"] for one in cluster.get("/api/v1/nodes")["items"]]:
        pytest.skip("no node of a kubelet: no kubemark was beside the control plane (tests/kubernetes/control_plane.sh)")
    cluster.report("nodes/hollow", {part: {**cluster.get("/api/v1/nodes/hollow")["status"][part], "nvidia.com/gpu": "8"} for part in SIZES})
    return {"nodeName": "hollow", "nodeSelector": {}}


@pytest.mark.parametrize(
    ("name", "gpus", "env", "volume", "said"),
    [
        ("config_error", 8, MISSING, [], 'Pending: secret "nobody-s" not found (acceptance: CreateContainerConfigError)'),
        ("no_volume", 8, None, [NOWHERE], "Pending: acceptance: ContainerCreating"),
        (
            "refused",
            9,
            None,
            [],
            "Failed: Pod Node didn't have enough resource: nvidia.com/gpu, requested: 9, used: 0, capacity: 8 (OutOfnvidia.com/gpu)",
        ),
    ],
)
def test_what_a_kubelet_says_of_a_pod_that_it_does_not_start(cluster, account, keep, hollow, name, gpus, env, volume, said):
    with cluster.run(1, gpus, small=True, env=env, volumes=[SHM, *(volume or [{"name": "reports", "emptyDir": {}}])], **hollow) as run:
        assert wait_until(lambda: wait(cluster, run, 1)[1][0].endswith(f" on hollow is {said}")), wait(cluster, run, 1)
        keep(f"pods_{name}", cluster.get(f"/api/v1/namespaces/{cluster.namespace}/pods"))


def test_a_pod_that_a_kubelet_runs_is_one_that_runs(cluster, account, keep, hollow):
    with cluster.run(1, small=True, volumes=[SHM, {"name": "reports", "emptyDir": {}}], **hollow) as run:
        assert wait_until(lambda: wait(cluster, run, 1) == (0, ["1 of 1 pod of this run running"])), cluster.pods(run)
        keep("pods_running", cluster.get(f"/api/v1/namespaces/{cluster.namespace}/pods"))


def unreachable(cluster, keep, run, pod):
    """The node of a running pod falls silent; then the pod is deleted."""
    name, node = pod["metadata"]["name"], pod["spec"]["nodeName"]
    cluster.alive.discard(node)
    try:
        assert wait_until(lambda: set(cluster.taints(node)) == {"node.kubernetes.io/unreachable"})
        assert wait_until(lambda: wait(cluster, run, 2)[0] == 6, 30)
        keep("node_unreachable", cluster.get(f"/api/v1/nodes/{node}"))
        keep("pods_unreachable", cluster.get(f"/api/v1/namespaces/{cluster.namespace}/pods"))
        said = f"pod {name} on {node} is NotReady: its containers are Ready and it is not: its node does not report"
        assert wait(cluster, run, 2)[1][0] == said
        cluster.ask("delete", "pod", name, "--wait=false")
        assert wait(cluster, run, 2)[1][0] == f"pod {name} on {node} is Terminating: Kubernetes gives no reason"
        keep("pods_terminating", cluster.get(f"/api/v1/namespaces/{cluster.namespace}/pods"))
    finally:
        cluster.alive.add(node)
        cluster.report_node(node)
        assert wait_until(lambda: not cluster.taints(node))


# --- what the account may ---------------------------------------------------------------------------------------------------------


def test_our_role_gives_the_pods_of_the_namespace_and_nothing_else(cluster, account, keep, monkeypatch):
    own, node = f"/api/v1/namespaces/{cluster.namespace}", f"/api/v1/nodes/{of(cluster, 1)}"
    assert isinstance(kubernetes.items(f"{own}/pods", cluster.environment), list)
    bodies, answered = [], kubernetes._answered
    monkeypatch.setattr(kubernetes, "_answered", lambda path, status, body: bodies.append(body) or answered(path, status, body))
    for path in (node, "/api/v1/nodes", "/api/v1/pods", "/api/v1/namespaces/kube-system/pods", f"{own}/secrets"):
        lack = kubernetes.get(path, cluster.environment)
        assert isinstance(lack, Missing)
        assert lack.missing is Why.NOT_PERMITTED
        assert f"GET {path}: status 403, '" in lack.detail
        assert f'is forbidden: User "system:serviceaccount:{cluster.namespace}:gpu-acceptance" cannot ' in lack.detail
    keep("forbidden", json.loads(bodies[0]))


def test_an_account_without_the_role_says_so_and_the_launcher_waits(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(kubernetes, "ACCOUNT", cluster.mount("default", tmp_path / "account"))
    code, (line,) = wait(cluster, "0", 2, 3600)
    assert code == 0
    assert line.startswith(
        f"the pods of this run are not awaited before torchrun starts: not permitted (GET /api/v1/namespaces/{cluster.namespace}/"
    )
    assert f'pods is forbidden: User "system:serviceaccount:{cluster.namespace}:default" cannot list' in line


def test_an_unknown_token_is_not_permitted(cluster, account):
    (kubernetes.ACCOUNT / "token").write_text("a.token.of-nobody")
    path = f"/api/v1/namespaces/{cluster.namespace}/pods"
    assert kubernetes.get(path, cluster.environment) == Missing(Why.NOT_PERMITTED, f"GET {path}: status 401, 'Unauthorized'")


# --- subject kubernetes in a run ----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def allowed(cluster):
    """The cluster role of components/api, under a name of its own."""
    role, binding = copy.deepcopy(API_ROLE)
    for one in (role, binding):
        one["metadata"] = {"name": cluster.namespace, "labels": {"of": cluster.namespace}}
    binding["roleRef"]["name"] = cluster.namespace
    binding["subjects"][0]["namespace"] = cluster.namespace
    cluster.create(role, binding)
    try:
        yield
    finally:
        cluster.ask("delete", "clusterrolebindings,clusterroles", cluster.namespace)


def variables(cluster, pod):
    """The environment of this pod, as the manifest sets it."""
    return {**cluster.environment, "NODE_NAME": pod["spec"]["nodeName"], "POD_UID": pod["metadata"]["uid"]}


def test_a_run_that_may_ask_is_accepted_and_one_that_may_not_is_incomplete(cluster, tmp_path, keep):
    """One pod of one run, with the rights of components/api and without."""
    suite = suite_in_pod(tmp_path / "suite", cluster.mount(ACCOUNT, tmp_path / "account"))
    with cluster.run(1, nodeSelector={"kubernetes.io/hostname": of(cluster, 1)}) as run:
        assert wait_until(lambda: len(bound(cluster, run)[0]) == 1)
        (pod,) = cluster.pods(run)
        cluster.report_running(pod["metadata"]["name"])
        keep("node_well", cluster.get(f"/api/v1/nodes/{of(cluster, 1)}"))
        keep("pods_of_node", cluster.get(f"/api/v1/pods?fieldSelector=spec.nodeName%3D{of(cluster, 1)}"))
        refused = plain_pytest(suite, env=variables(cluster, pod))
        with allowed(cluster):
            accepted = plain_pytest(suite, env=variables(cluster, pod))
    assert refused.returncode == 6, refused.output
    said = refused.row("test_node").message
    assert "not permitted (GET /api/v1/nodes/" in said
    assert f'User "system:serviceaccount:{cluster.namespace}:gpu-acceptance" cannot get resource "nodes"' in said
    assert accepted.returncode == 0, accepted.output
    assert set(accepted.outcomes().values()) == {Outcome.PASSED}
    figures = {figure.metric: figure.value for name in ("test_node", "test_elsewhere") for figure in figures_of(accepted, name)}
    assert figures["kubernetes.node.name"] == of(cluster, 1)
    assert figures["kubernetes.nodes.untested"] == 0  # its selector fits that node alone


def figures_of(ended, name):
    return ended.row(name).attempts[-1].ranks[0].figures
