"""A real control plane of Kubernetes on this machine, and we in place of its kubelets: what becomes of nodes and pods we report.

TEST_KUBECONFIG names the kubeconfig of its administrator. Its API is on 127.0.0.0/8, and it has no other user, as nodes come and go there.
"""

import base64
import contextlib
import copy
import ipaddress
import json
import subprocess
import threading
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from needs import KUBECONFIG
from pods import built
from waiting import wait_until

needs_cluster = pytest.mark.needs("Kubernetes", "kubectl")
PRESENT = {"nvidia.com/gpu.present": "true"}
_DEVICES = {"cpu": "192", "memory": "2113407768Ki", "pods": "110", "rdma/rdma_shared_device_a": "1000"}
_PRESSURE = ("MemoryPressure", "DiskPressure", "PIDPressure")
_RUNNING = ("Initialized", "Ready", "ContainersReady", "PodScheduled")
_BEAT_S = 5.0  # Kubernetes calls a node unreachable after 40 s without
# What a reader of ours may look at.
_METADATA = ("name", "namespace", "uid", "labels", "ownerReferences", "deletionTimestamp")
_SPEC = ("nodeName", "nodeSelector", "affinity", "hostname", "subdomain", "taints", "unschedulable")
_STATUS = ("phase", "reason", "message", "startTime", "conditions", "containerStatuses", "capacity", "allocatable")


@dataclass
class RealCluster:
    """One namespace of the cluster, and nodes that have its name as a label. `alive`: those whose kubelet reports."""

    namespace: str
    host: str
    port: str
    alive: set[str] = field(default_factory=set)

    @property
    def environment(self) -> dict[str, str]:
        return {"KUBERNETES_SERVICE_HOST": self.host, "KUBERNETES_SERVICE_PORT": self.port}

    def ask(self, *arguments: str, told: Any = None, check: bool = True) -> subprocess.CompletedProcess[str]:
        """kubectl, as the administrator; `told` is an object that it gets."""
        command = ["kubectl", f"--kubeconfig={KUBECONFIG}", f"--namespace={self.namespace}", *arguments]
        given = None if told is None else json.dumps(told)
        return subprocess.run(command, input=given, capture_output=True, text=True, timeout=60, check=check)

    def get(self, path: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.ask("get", "--raw", path).stdout)
        return found

    def create(self, *objects: dict[str, Any]) -> None:
        self.ask("create", "-f", "-", told={"apiVersion": "v1", "kind": "List", "items": list(objects)})

    def node(self, name: str, gpus: int = 8, labels: dict[str, str] = PRESENT, taints: Sequence[dict[str, str]] = ()) -> str:
        """Makes one, and reports it as a kubelet and a device plugin do, until it is ready for pods; gives its name in the cluster."""
        name = f"{name}-{self.namespace}"
        meta = {"name": name, "labels": {"kubernetes.io/hostname": name, "of": self.namespace, **labels}}
        self.create({"apiVersion": "v1", "kind": "Node", "metadata": meta, "spec": {"taints": list(taints)}})
        numbers = {**_DEVICES, "nvidia.com/gpu": str(gpus)}
        self.report_node(name, capacity=numbers, allocatable=numbers)
        self.alive.add(name)
        assert wait_until(lambda: len(self.taints(name)) == len(taints)), self.taints(name)
        return name

    def taints(self, name: str) -> list[str]:
        """Keys of those of a node."""
        return [taint["key"] for taint in self.get(f"/api/v1/nodes/{name}")["spec"].get("taints") or ()]

    def report_node(self, name: str, ready: str = "True", **status: Any) -> None:
        conditions = [{"type": one, "status": "False", "reason": f"KubeletHasNo{one}"} for one in _PRESSURE]
        conditions += [{"type": "Ready", "status": ready, "reason": "KubeletReady" if ready == "True" else "KubeletNotReady"}]
        times = {"lastHeartbeatTime": _now(), "lastTransitionTime": _now()}
        self.report(f"nodes/{name}", {"conditions": [{**one, **times} for one in conditions], **status})

    def report_running(self, name: str) -> None:
        """A pod, as the kubelet of its node does once its container runs."""
        container = {"name": "acceptance", "image": "gpu-acceptance:0.1.0", "imageID": "an-image", "ready": True, "restartCount": 0}
        status = {
            "phase": "Running",
            "startTime": _now(),
            "conditions": [{"type": one, "status": "True", "lastTransitionTime": _now()} for one in _RUNNING],
            "containerStatuses": [{**container, "started": True, "state": {"running": {"startedAt": _now()}}}],
        }
        self.report(f"namespaces/{self.namespace}/pods/{name}", status)

    def report(self, path: str, status: dict[str, Any]) -> None:
        """These parts of the status of an object, `nodes/NAME`."""
        found = self.get(f"/api/v1/{path}")
        found["status"] = {**found.get("status", {}), **status}
        del found["metadata"]["resourceVersion"]  # also where another client wrote it meanwhile
        self.ask("replace", "--raw", f"/api/v1/{path}/status", "-f", "-", told=found)

    def beat(self) -> None:
        """Each node alive renews its lease."""
        spec = {"leaseDurationSeconds": 40, "renewTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")}
        meta = {"namespace": "kube-node-lease", "labels": {"of": self.namespace}}
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
        leases = [{**lease, "metadata": {**meta, "name": name}, "spec": {**spec, "holderIdentity": name}} for name in sorted(self.alive)]
        if leases:
            self.ask(
                "apply", "--namespace=kube-node-lease", "-f", "-", told={"apiVersion": "v1", "kind": "List", "items": leases}, check=False
            )

    def pods(self, run: str) -> list[dict[str, Any]]:
        """Pods of a run, sorted by their names, which begin with the index."""
        found = self.get(f"/api/v1/namespaces/{self.namespace}/pods?labelSelector=batch.kubernetes.io%2Fcontroller-uid%3D{run}")["items"]
        return sorted(found, key=lambda one: one["metadata"]["name"])

    @contextlib.contextmanager
    def run(
        self,
        number: int,
        gpus: int = 8,
        *,
        small: bool = False,
        env: dict[str, Any] | None = None,
        template: dict[str, Any] | None = None,
        **spec: Any,
    ) -> Iterator[str]:
        """The pods that an Indexed Job makes of our manifest; gives the uid of what controls them: here no Job, which would make more."""
        self.ask("create", "configmap", "controller")
        uid: str = self.get(f"/api/v1/namespaces/{self.namespace}/configmaps/controller")["metadata"]["uid"]
        owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "controller", "uid": uid, "controller": True}
        labels = {"batch.kubernetes.io/job-name": "gpu-acceptance", "batch.kubernetes.io/controller-uid": uid}
        for index in range(number):
            pod = copy.deepcopy(template or built("all-nodes")["Job"]["spec"]["template"])
            pod["metadata"]["labels"].update({**labels, "batch.kubernetes.io/job-completion-index": str(index)})
            pod["metadata"].update(generateName=f"gpu-acceptance-{index}-", ownerReferences=[owner])
            pod["metadata"]["annotations"] = {"batch.kubernetes.io/job-completion-index": str(index)}
            pod["spec"].update(hostname=f"gpu-acceptance-{index}", **spec)
            (container,) = pod["spec"]["containers"]
            container["env"] += [env] if env else []
            container["resources"]["limits"]["nvidia.com/gpu"] = gpus
            if small:  # for a kubelet, which has neither so much memory nor RDMA
                container["resources"] = {"limits": {"nvidia.com/gpu": gpus}}
            self.create({"apiVersion": "v1", "kind": "Pod", **pod})
        try:
            yield uid
        finally:
            self.ask("delete", "pods", "--all", "--force", "--grace-period=0")
            self.ask("delete", "configmap", "controller")

    def mount(self, account: str, folder: Path) -> Path:
        """Make the files that the kubelet mounts into a pod of this service account."""
        folder.mkdir(parents=True)
        path = f"/api/v1/namespaces/{self.namespace}/serviceaccounts/{account}/token"
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": [], "expirationSeconds": 3600}}
        (folder / "token").write_text(json.loads(self.ask("create", "--raw", path, "-f", "-", told=asked).stdout)["status"]["token"])
        (folder / "ca.crt").write_bytes(base64.b64decode(_entry("cluster")["certificate-authority-data"]))
        (folder / "namespace").write_text(self.namespace)
        return folder


def trimmed(answer: dict[str, Any], namespace: str) -> dict[str, Any]:
    """Keep what a reader of ours may look at, with names that are not of this namespace alone."""
    if "items" in answer:
        plain = {**answer, "items": [trimmed(one, namespace) for one in answer["items"]]}
    elif "spec" in answer:
        plain = {key: answer[key] for key in ("apiVersion", "kind") if key in answer}
        parts = (("metadata", _METADATA), ("spec", _SPEC), ("status", _STATUS))
        plain |= {part: {name: answer[part][name] for name in names if name in answer[part]} for part, names in parts}
        if "containers" in answer["spec"]:
            containers = [{key: one[key] for key in ("name", "image", "resources")} for one in answer["spec"]["containers"]]
            plain["spec"]["containers"] = containers
    else:
        plain = answer
    found: dict[str, Any] = json.loads(json.dumps(plain).replace(f"-{namespace}", "").replace(namespace, "default"))
    return found


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _entry(kind: str) -> dict[str, str]:
    """The only one of this kind in the kubeconfig, with its files in it."""
    command = ["kubectl", f"--kubeconfig={KUBECONFIG}", "config", "view", "--raw", "--flatten", "--minify"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    found: dict[str, str] = yaml.safe_load(told)[f"{kind}s"][0][kind]
    return found


@contextlib.contextmanager
def real_cluster() -> Iterator[RealCluster]:
    """A namespace for this process, in which nodes report until the end."""
    server = urlsplit(_entry("cluster")["server"])
    assert ipaddress.ip_address(server.hostname or "").is_loopback, f"{server.geturl()} is not on this machine"
    found = RealCluster(f"acceptance-{uuid.uuid4().hex[:8]}", server.hostname or "", str(server.port))
    found.ask("create", "namespace", found.namespace)
    over = threading.Event()

    def beat() -> None:
        while not over.wait(_BEAT_S):
            found.beat()

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()
        selected = (f"--selector=of={found.namespace}", "--wait=false")
        found.ask("delete", "pods,persistentvolumeclaims", "--all", "--force", "--grace-period=0", "--wait=false")
        found.ask("delete", "nodes,persistentvolumes,clusterroles,clusterrolebindings", *selected)
        found.ask("delete", "leases", "--namespace=kube-node-lease", *selected)
        found.ask("delete", "namespace", found.namespace, "--wait=false")
