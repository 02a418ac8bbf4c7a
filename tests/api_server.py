"""The API of a cluster with one node, over TLS, on 127.0.0.1: what it answers is as Kubernetes 1.37 writes it, and can be spoiled."""

import json
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

TOKEN = "a.token-of.this_account"
NODE, POD_UID, JOB_UID = "node-01", "pod-uid-1", "job-uid-1"
JOB_LABEL = "batch.kubernetes.io/controller-uid"
AT = "2026-11-23T12:00:00Z"


def node() -> dict[str, Any]:
    """Eight GPUs, RDMA devices that eight pods may share a thousand times, and what another plugin writes."""
    numbers = {"cpu": "192", "memory": "2113407768Ki", "pods": "110", "nvidia.com/gpu": "8", "rdma/rdma_shared_device_a": "1k"}
    bad = ("MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable")
    at = {"lastHeartbeatTime": "2026-11-23T12:00:00Z", "lastTransitionTime": "2026-11-20T12:00:00Z", "message": "of the kubelet"}
    conditions = [{"type": name, "status": "False", "reason": f"No{name}", **at} for name in bad]
    conditions += [{"type": "Ready", "status": "True", "reason": "KubeletReady", **at}]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": NODE, "labels": {"nvidia.com/gpu.present": "true"}, "uid": "node-uid"},
        "spec": {"taints": [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}]},
        "status": {"capacity": numbers, "allocatable": {**numbers, "cpu": "191"}, "conditions": conditions},
    }


def pod(name: str, uid: str, owner: str = "", gpus: str = "", phase: str = "Running", resource: str = "nvidia.com/gpu") -> dict[str, Any]:
    meta: dict[str, Any] = {"name": name, "namespace": "default", "uid": uid}
    if owner:
        meta["labels"] = {JOB_LABEL: owner}
        meta["ownerReferences"] = [{"apiVersion": "batch/v1", "kind": "Job", "name": "x", "uid": owner, "controller": True}]
    container: dict[str, Any] = {"name": "one", "image": "an-image", "resources": {"limits": {resource: gpus}} if gpus else {}}
    return {"metadata": meta, "spec": {"nodeName": NODE, "containers": [container]}, "status": {"phase": phase}}


def unscheduled(name: str, message: str, reason: str = "Unschedulable") -> dict[str, Any]:
    """One of our Job that the scheduler found no node for."""
    made = pod(name, f"uid-of-{name}", JOB_UID, "8", "Pending")
    del made["spec"]["nodeName"]
    made["status"]["conditions"] = [
        {"type": "PodScheduled", "status": "False", "reason": reason, "message": message, "lastProbeTime": None, "lastTransitionTime": AT}
    ]
    return made


def in_container(name: str, phase: str, init: bool = False, **state: dict[str, Any]) -> dict[str, Any]:
    """One of our Job on a node, whose container is in this state: `waiting={"reason": ...}`."""
    made = pod(name, f"uid-of-{name}", JOB_UID, "8", phase)
    made["status"]["startTime"] = AT
    made["status"]["conditions"] = [{"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": AT}]
    container = {"name": "one", "image": "an-image", "imageID": "", "ready": False, "restartCount": 0, "state": state}
    made["status"]["initContainerStatuses" if init else "containerStatuses"] = [container]
    return made


def pods() -> list[dict[str, Any]]:
    """Ours, one of the system, and one of another job that has ended."""
    return [
        pod("gpu-acceptance-0-x7f2q", POD_UID, JOB_UID, "8"),
        pod("kube-proxy-b5kwz", "pod-uid-2", "daemonset-uid"),
        pod("another-job", "pod-uid-3", "job-uid-2", "8", "Succeeded"),
    ]


@dataclass
class Cluster:
    """`environment` and `account`: what a pod on its node would get. `answer`: a status and a body in place of all others.

    `later`: what takes the place of `pods` after each list of pods that was asked for by a label.
    """

    account: Path
    environment: dict[str, str]
    node: dict[str, Any] = field(default_factory=node)
    pods: list[dict[str, Any]] = field(default_factory=pods)
    list_metadata: dict[str, str] = field(default_factory=lambda: {"resourceVersion": "1"})
    answer: tuple[int, str] | None = None
    other_nodes: list[dict[str, Any]] = field(default_factory=list)
    later: list[list[dict[str, Any]]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    groups: tuple[str, ...] = ("v1",)  # versions of resource.k8s.io
    slices: list[dict[str, Any]] = field(default_factory=list)
    claims: dict[str, dict[str, Any]] = field(default_factory=dict)  # by name, in the namespace `default`
    forbidden: str = "no such path"  # answered with 403

    def told(self, path: str, authorization: str | None) -> tuple[int, str]:
        self.asked.append(path)
        if self.answer or authorization != f"Bearer {TOKEN}":
            return self.answer or (401, '{"kind": "Status", "message": "Unauthorized"}')
        parts = urlsplit(path)
        if self.forbidden in path:
            return 403, "{}"
        query = {name: value for name, (value,) in parse_qs(parts.query).items()}
        if path == f"/api/v1/nodes/{NODE}":
            return 200, json.dumps(self.node)
        if path == f"/api/v1/pods?fieldSelector=spec.nodeName%3D{NODE}":
            return 200, self._list("Pod", [one for one in self.pods if one["spec"].get("nodeName") == NODE], {})
        if path == "/apis":
            versions = [{"groupVersion": f"resource.k8s.io/{version}", "version": version} for version in self.groups]
            return 200, json.dumps(
                {"kind": "APIGroupList", "groups": [{"name": "resource.k8s.io", "versions": versions}] if versions else []}
            )
        if self.groups and parts.path == f"/apis/resource.k8s.io/{self.groups[0]}/resourceslices":
            of_node = query.get("fieldSelector", "").removeprefix("spec.nodeName=")
            return 200, self._list("ResourceSlice", [one for one in self.slices if of_node in {"", one["spec"].get("nodeName")}], query)
        if self.groups and parts.path.startswith(of_claims := f"/apis/resource.k8s.io/{self.groups[0]}/namespaces/default/resourceclaims/"):
            claim = self.claims.get(parts.path.removeprefix(of_claims))
            return (200, json.dumps(claim)) if claim else (404, "{}")
        if parts.path == "/api/v1/nodes":
            return 200, self._list("Node", [self.node, *self.other_nodes], query)
        if parts.path == "/api/v1/namespaces/default/pods" and "labelSelector" in query:
            label, _, value = query["labelSelector"].partition("=")
            found = [one for one in self.pods if one["metadata"].get("labels", {}).get(label) == value]
            self.pods = self.later.pop(0) if self.later else self.pods
            return 200, self._list("Pod", found, query)
        return 404, "{}"

    def _list(self, kind: str, items: list[dict[str, Any]], query: dict[str, str]) -> str:
        """In pages, as `limit` asks for."""
        begin = int(query.get("continue", "at 0").removeprefix("at "))
        end = begin + int(query.get("limit", len(items)))
        going_on = {"continue": f"at {end}"} if end < len(items) else {}
        metadata = {**self.list_metadata, **going_on}
        return json.dumps({"apiVersion": "v1", "kind": f"{kind}List", "metadata": metadata, "items": items[begin:end]})


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    _certificate(folder)
    (folder / "token").write_text(TOKEN)
    (folder / "namespace").write_text("default")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "ca.crt", folder / "key")
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        pod_of = {"NODE_NAME": NODE, "POD_UID": POD_UID}
        port = str(server.server_address[1])
        found = Cluster(folder, {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": port, **pod_of})
        server.cluster = found  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield found
        finally:
            server.shutdown()
            thread.join()


def _certificate(folder: Path) -> None:
    """A self-signed certificate of 127.0.0.1."""
    folder.mkdir(parents=True, exist_ok=True)
    files = ("-keyout", str(folder / "key"), "-out", str(folder / "ca.crt"))
    kind = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    names = ("-subj", "/CN=kubernetes", "-addext", "subjectAltName=IP:127.0.0.1")
    subprocess.run(["openssl", "req", "-x509", *kind, *files, *names], check=True, capture_output=True, timeout=60)


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        status, body = self.server.cluster.told(self.path, self.headers["Authorization"])  # type: ignore[attr-defined]
        self.send_response(status)
        if status == 302:
            self.send_header("Location", body)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""
