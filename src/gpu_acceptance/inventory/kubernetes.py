"""What Kubernetes says of the node that this pod is on, and of the pods there."""

import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from gpu_acceptance.inventory import kubernetes_api, parsing
from gpu_acceptance.inventory.answer import Answer, Missing, Why

GPU = "nvidia.com/gpu"  # of NVIDIA's device plugin
_NODE, _POD = "NODE_NAME", "POD_UID"  # deploy/kubernetes/components/api sets them
_QUANTITY = re.compile(r"([0-9]{1,15})([kMG]?)")  # 1000 is written 1k
_FACTOR = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}
_WITH_GPU = (GPU, "nvidia.com/mig-")  # whole, shared (nvidia.com/gpu.shared), and a part of one
_OVER = {"Succeeded", "Failed"}


class Devices(NamedTuple):
    """An extended resource of a node: what its plugin found, and what of that it gives out."""

    resource: str
    capacity: int
    allocatable: int


class Taint(NamedTuple):
    key: str
    value: str
    effect: str


class Node(NamedTuple):
    """Conditions, taints and labels as Kubernetes writes them; `conditions`: type -> status and reason."""

    name: str
    conditions: Mapping[str, tuple[str, str]]
    taints: tuple[Taint, ...]
    labels: Mapping[str, str]
    devices: tuple[Devices, ...]


class Pod(NamedTuple):
    """One that has not ended. `owner`: the uid of what controls it."""

    name: str
    uid: str
    owner: str
    num_gpus: int
    spec: Mapping[str, Any]  # as the API gave it


class Told(NamedTuple):
    """All that the API said to this pod, whose uid is `own`."""

    node: Answer[Node]
    pods: Answer[tuple[Pod, ...]]
    own: str


def read(environ: Mapping[str, str] = os.environ) -> Told:
    """Two requests to the API of this cluster, of at most 10 s each."""
    name, own = environ.get(_NODE, ""), environ.get(_POD, "")
    if not (kubernetes_api.NAME.fullmatch(name) and own):
        lack = Missing(Why.NOT_THERE, f"{_NODE}={name!r}, {_POD}={own!r}: deploy/kubernetes/components/api sets both"[:200])
        return Told(lack, lack, own)
    return Told(
        kubernetes_api.parsed(kubernetes_api.get(f"/api/v1/nodes/{name}", environ), _node),
        kubernetes_api.parsed(kubernetes_api.get(f"/api/v1/pods?fieldSelector=spec.nodeName%3D{name}", environ), _pods),
        own,
    )


def _node(told: dict[str, Any]) -> Node:
    status = told["status"]
    capacity, allocatable = status["capacity"], status["allocatable"]
    return Node(
        parsing.one_line(told["metadata"]["name"]),
        {
            parsing.one_line(one["type"]): (one["status"], parsing.one_line(one.get("reason") or "no reason"))
            for one in status["conditions"]
        },
        taints_of(told),
        labels_of(told),
        tuple(
            Devices(parsing.one_line(name), number_of(capacity[name]), number_of(allocatable.get(name, "0")))
            for name in sorted(capacity)
            if "/" in name  # an extended resource: what Kubernetes itself counts has no domain
        ),
    )


def taints_of(node: dict[str, Any]) -> tuple[Taint, ...]:
    """Of a node as the API gives it; raises ValueError over text that is none."""
    return tuple(
        Taint(parsing.one_line(one["key"]), _value(one.get("value") or ""), parsing.one_line(one["effect"]))
        for one in node["spec"].get("taints") or ()
    )


def labels_of(node: dict[str, Any]) -> dict[str, str]:
    return {parsing.one_line(key): _value(value) for key, value in (node["metadata"].get("labels") or {}).items()}


def _value(text: str) -> str:
    """Of a label or a taint, which may be empty."""
    return parsing.one_line(text) if text else ""


def _pods(told: dict[str, Any]) -> tuple[Pod, ...]:
    if told["metadata"].get("continue"):
        raise ValueError("the list goes on")
    return tuple(_pod(one) for one in told["items"] if one["status"].get("phase") not in _OVER)


def _pod(told: dict[str, Any]) -> Pod:
    meta = told["metadata"]
    owners = [owner["uid"] for owner in meta.get("ownerReferences") or () if owner.get("controller")]
    containers = [*told["spec"]["containers"], *(told["spec"].get("initContainers") or ())]
    limits = [(container.get("resources") or {}).get("limits") or {} for container in containers]
    num_gpus = sum(number_of(number) for limit in limits for name, number in limit.items() if name.startswith(_WITH_GPU))
    return Pod(parsing.one_line(f"{meta['namespace']}/{meta['name']}"), meta["uid"], next(iter(owners), ""), num_gpus, told["spec"])


def number_of(text: str) -> int:
    """Devices, as Kubernetes counts them: `8`, `1k`."""
    found = _QUANTITY.fullmatch(text)
    if not found:
        raise ValueError(f"no number of devices: {text!r:.40}")
    return int(found[1]) * _FACTOR[found[2]]
