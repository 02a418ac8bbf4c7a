"""deploy/kubernetes in pods that run: kubelet and container runtime start start.sh in our image, and the verdict is the outcome of the Job.

Needs the nodes of tests/kubernetes/nodes.sh beside the control plane that TEST_KUBECONFIG names.
KEEP_POD_ANSWERS=FILE keeps what the API said, as in tests/kubernetes/pod_answers.json.
"""

import contextlib
import copy
import functools
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from pods import built, resized
from real_cluster import needs_cluster, real_cluster, trimmed
from test_real_kubernetes import ACCOUNT, SIZES, allowed, wait
from waiting import wait_until

from gpu_acceptance.folder.files import read_results
from gpu_acceptance.inventory import kubernetes

pytestmark = [needs_cluster, pytest.mark.launcher]

OBJECTS = ("ServiceAccount", "Role", "RoleBinding", "PersistentVolumeClaim", "Service")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder behind the claim's volume; at first it is root's alone."""
    return tmp_path_factory.mktemp("volume")


@pytest.fixture(scope="module")
def cluster(folder):
    """With our account, our service, our claim on a volume of this machine, and a GPU without a device plugin on each node of a kubelet."""
    with real_cluster() as found:
        nodes = [one["metadata"]["name"] for one in found.get("/api/v1/nodes?labelSelector=kubelet%3Dcontainerd")["items"]]
        if len(nodes) != 2:
            pytest.skip("no two nodes whose kubelet has a container runtime (tests/kubernetes/nodes.sh starts them)")
        for name in nodes:
            devices = {"nvidia.com/gpu": "1", "rdma/rdma_shared_device_a": "10"}
            status = found.get(f"/api/v1/nodes/{name}")["status"]
            found.report(f"nodes/{name}", {part: {**status[part], **devices} for part in SIZES})
        volume = {
            "capacity": {"storage": "10Gi"},
            "accessModes": ["ReadWriteMany"],
            "local": {"path": str(folder)},
            "claimRef": {"namespace": found.namespace, "name": "gpu-acceptance-reports"},
            "nodeAffinity": {
                "required": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "kubelet", "operator": "In", "values": ["containerd"]}]}]}
            },
        }
        meta = {"name": found.namespace, "labels": {"of": found.namespace}}
        found.create({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": meta, "spec": volume})
        found.create(*(built("all-nodes")[kind] for kind in OBJECTS))
        yield found


@pytest.fixture(scope="module")
def keep(cluster):
    """Keeps answers under their names, without what no reader of ours looks at."""
    kept: dict[str, Any] = {}
    yield lambda name: kept.update({name: trimmed(cluster.get(f"/api/v1/namespaces/{cluster.namespace}/pods"), cluster.namespace)})
    if file := os.environ.get("KEEP_POD_ANSWERS"):
        runtime = cluster.get("/api/v1/nodes?labelSelector=kubelet%3Dcontainerd")["items"][0]["status"]["nodeInfo"]
        versions = {name: runtime[name] for name in ("kubeletVersion", "containerRuntimeVersion")}
        lines = [f"{json.dumps(name)}: {json.dumps(told)}" for name, told in sorted({**versions, **kept}.items())]
        Path(file).write_text("{{\n{}\n}}\n".format(",\n".join(lines)))


@pytest.fixture
def account(cluster, tmp_path, monkeypatch):
    """As in a pod of ours."""
    monkeypatch.setattr(kubernetes, "ACCOUNT", cluster.mount(ACCOUNT, tmp_path / "account"))


@pytest.fixture
def job(tmp_path):
    """The Job of an overlay in nodes of this size, with a rank on each; only the size is changed."""

    def of(overlay, *arguments, **sizes):
        found = copy.deepcopy(built(overlay, resized(tmp_path, overlay, gpus_per_node=1, **sizes))["Job"])
        (container,) = found["spec"]["template"]["spec"]["containers"]
        container["resources"]["requests"] = {"cpu": "100m", "memory": "1Gi"}
        container["args"] = ["--level=health", *arguments]
        container["env"].append({"name": "OMP_NUM_THREADS", "value": "1"})
        return found

    return of


def ended(cluster, pods):
    """Exit codes of the containers of pods that have ended, and of the others None."""
    told = (one["status"].get("containerStatuses") or [{}] for one in pods)
    return [status[0].get("state", {}).get("terminated", {}).get("exitCode") for status in told]


def test_two_pods_of_the_manifest_are_accepted(cluster, job, folder, keep):
    """As the README says it: the terminal of rank 0, the verdict's own code, and the reports by the reader."""
    with cluster.run(2, 1, template=job("all-nodes", nodes=2)["spec"]["template"]) as run:
        assert wait_until(lambda: None not in ended(cluster, cluster.pods(run))), cluster.pods(run)
        first = "--selector=app.kubernetes.io/name=gpu-acceptance,batch.kubernetes.io/job-completion-index=0"
        log = cluster.ask("logs", "--follow", "--tail=-1", first).stdout
        assert ended(cluster, cluster.pods(run)) == [0, 0], log
        code = cluster.ask("get", "pods", first, "-o", "jsonpath={.items[0].status.containerStatuses[0].state.terminated.exitCode}")
        keep("pods_accepted")
        placed = {one["metadata"]["generateName"]: one["spec"]["nodeName"] for one in cluster.pods(run)}
    assert code.stdout == "0"
    assert "2 of 2 pods of this run running\n" in log
    run_id = f"gpu-acceptance-{run}"
    assert log.splitlines()[-1].startswith(f"ACCEPTED (health, cpu profile: no GPU was tested) | run {run_id} | ended ")
    assert sorted(placed.values()) == ["kubelet-a", "kubelet-b"]
    ranks = read_results(folder / run_id).ranks
    assert [(rank.host, rank.node) for rank in ranks] == [("gpu-acceptance-0", 0), ("gpu-acceptance-1", 1)]
    assert (folder / run_id).stat().st_gid == 1000  # the volume has the pods' group


def test_a_reader_holds_the_volume(cluster, folder, tmp_path):
    (folder / "of_a_run").write_text("verdict")
    cluster.create(built("reader")["Pod"])
    try:
        cluster.ask("wait", "--for=condition=Ready", "pod/gpu-acceptance-reader", "--timeout=50s")
        cluster.ask("cp", "gpu-acceptance-reader:/reports", str(tmp_path / "reports"))
        refused = cluster.ask("exec", "gpu-acceptance-reader", "--", "touch", "/reports/x", check=False)
    finally:
        cluster.ask("delete", "pod", "gpu-acceptance-reader", "--force", "--grace-period=0")
    assert (tmp_path / "reports" / "of_a_run").read_text() == "verdict"
    assert "Read-only file system" in refused.stderr


@contextlib.contextmanager
def applied(cluster, job):
    """A Job of one pod, as its controller makes it. Before 1.29 it knows no limit of each index, before 1.24 perhaps no index."""
    minor, job = int(re.match(r"\d+", cluster.get("/version")["minor"])[0]), copy.deepcopy(job)
    if minor < 29:
        job["spec"] = {key: value for key, value in job["spec"].items() if key not in {"completionMode", "backoffLimitPerIndex"}}
        job["spec"]["backoffLimit"] = 0
        template = job["spec"]["template"]["spec"]
        template["hostname"] = "gpu-acceptance-0"
        own = {
            "JOB_NAME": {"valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['job-name']"}}},
            "JOB_UID": {"valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['controller-uid']"}}},
            "RUN_PODS": {"value": "controller-uid=$(JOB_UID)"},
            "PET_NODE_RANK": {"value": "0"},
        }
        (container,) = template["containers"]
        container["env"] = [{"name": one["name"], **own.get(one["name"], one)} for one in container["env"]]
    cluster.create(job)
    try:
        yield
    finally:
        cluster.ask("delete", "job", "gpu-acceptance", "--cascade=background")
        cluster.ask("delete", "pods", "--all", "--force", "--grace-period=0")


def outcome(cluster):
    """Condition of the Job and code of its pod, once it has ended."""
    path = f"/apis/batch/v1/namespaces/{cluster.namespace}/jobs/gpu-acceptance"

    def conditions():
        return [one["type"] for one in cluster.get(path)["status"].get("conditions") or () if one["status"] == "True"]

    assert wait_until(lambda: {"Complete", "Failed"} & set(conditions())), cluster.get(path)
    (pod,) = cluster.get(f"/api/v1/namespaces/{cluster.namespace}/pods")["items"]
    (status,) = pod["status"]["containerStatuses"]
    state = status["state"]["terminated"]
    (condition,) = {"Complete", "Failed"} & set(conditions())
    return condition, state["exitCode"], state.get("message", "")


API = [
    {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
    {"name": "POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
]


@pytest.mark.parametrize(
    ("name", "may_ask", "told"),
    [
        ("accepted", True, ("Complete", 0, "")),
        ("cordoned", True, ("Failed", 1, "REJECTED: 1 limit missed in 1 of ")),
        ("may_not_ask", False, ("Failed", 6, "INCOMPLETE: ")),
    ],
)
def test_the_verdict_is_the_outcome_of_the_job(cluster, job, keep, name, may_ask, told):
    """As the image's user, with subject `kubernetes`: the node is cordoned before it is read, or the pod has no right to read it."""
    one = job("one-node", "--limits=site-kubernetes")
    one["spec"]["template"]["spec"]["containers"][0]["env"] += API
    if name == "cordoned":
        one["spec"]["template"]["spec"]["tolerations"].append({"key": "node.kubernetes.io/unschedulable", "operator": "Exists"})
        for node in ("kubelet-a", "kubelet-b"):
            cluster.ask("cordon", node)
    try:
        with contextlib.ExitStack() as stack:
            if may_ask:
                stack.enter_context(allowed(cluster))
            stack.enter_context(applied(cluster, one))
            condition, code, message = outcome(cluster)
            keep(f"pods_job_{name}")
    finally:
        for node in ("kubelet-a", "kubelet-b"):
            cluster.ask("uncordon", node)
    assert (condition, code) == told[:2], message
    assert told[2] in message


def begun(reports):
    """Return whether rank 0 has ended a validation."""
    journal = reports / "journal" / "rank-00000.jsonl"
    return journal.exists() and '"kind":"rank"' in journal.read_text()


def interrupted(reports):
    conclusion = read_results(reports).conclusion
    return conclusion.verdict == "INCOMPLETE" and conclusion.reasons[0] == "interrupted: SIGTERM"


def test_a_pod_that_is_deleted_leaves_a_report(cluster, job, folder):
    """By SIGTERM, and 90 s until the kill."""
    template = job("one-node", "--level=quick")["spec"]["template"]
    with cluster.run(1, 1, template=template) as run:
        assert wait_until(lambda: begun(folder / f"gpu-acceptance-{run}")), cluster.pods(run)
        cluster.ask("delete", "pod", cluster.pods(run)[0]["metadata"]["name"])  # and waits until it is gone
    assert interrupted(folder / f"gpu-acceptance-{run}")


def test_a_deadline_that_is_reached_leaves_a_report(cluster, job, folder):
    """It is moved once the run has begun, as no time is right for a machine of any speed."""
    path = f"/apis/batch/v1/namespaces/{cluster.namespace}/jobs/gpu-acceptance"
    with applied(cluster, job("one-node", "--level=quick")):
        reports = folder / f"gpu-acceptance-{cluster.get(path)['metadata']['uid']}"
        assert wait_until(lambda: begun(reports))
        cluster.ask("patch", "job", "gpu-acceptance", "--patch", '{"spec": {"activeDeadlineSeconds": 1}}')
        assert wait_until((reports / "results.json").exists)
        (condition,) = [one for one in cluster.get(path)["status"]["conditions"] if one["type"] == "Failed"]
    assert condition["reason"] == "DeadlineExceeded"
    assert interrupted(reports)


NOBODY = {"name": "reports", "hostPath": {"path": "/nobody-s", "type": "Directory"}}


@pytest.mark.parametrize(
    ("name", "container", "volumes", "said"),
    [
        (
            "no_image",
            {"image": "127.0.0.1:9/nobody-s:1"},
            None,
            r"Pending: .*127\.0\.0\.1:9.* \(acceptance: (ErrImagePull|ImagePullBackOff)\)",
        ),
        (
            "never_pulled",
            {"image": "nobody-s:1", "imagePullPolicy": "Never"},
            None,
            r"Pending: .*nobody-s:1.* \(acceptance: ErrImageNeverPull\)",
        ),
        ("no_command", {"command": ["nobody-s"]}, None, r"Failed: .*nobody-s.* \(acceptance: \w+, exit code 128\)"),
        ("no_folder", {}, [NOBODY], r"Pending: acceptance: ContainerCreating"),
        ("usage", {"args": ["--level=nobody-s"]}, None, r"Failed: .*\(acceptance: Error, exit code 4\)"),
        ("no_memory", {"command": ["python3", "-c", "x = b'1' * 2**28"]}, None, r"Failed: acceptance: OOMKilled, exit code 137"),
    ],
)
def test_what_a_kubelet_and_a_runtime_say_of_a_pod_that_does_not_run(cluster, account, job, keep, name, container, volumes, said):
    template = job("one-node")["spec"]["template"]
    (ours,) = template["spec"]["containers"]
    ours.update(container)
    if name == "no_memory":
        ours["resources"]["limits"]["memory"] = ours["resources"]["requests"]["memory"] = "128Mi"
    if volumes:
        template["spec"]["volumes"] = [one for one in template["spec"]["volumes"] if one["name"] != "reports"] + volumes
    asked = functools.partial(wait, cluster)
    with cluster.run(1, 1, template=template) as run:
        pattern = re.compile(rf"pod gpu-acceptance-0-\w{{5}} on kubelet-[ab] is {said}", re.DOTALL)
        assert wait_until(lambda: pattern.fullmatch(asked(run, 1)[1][0])), (asked(run, 1), cluster.pods(run))
        keep(f"pods_{name}")
