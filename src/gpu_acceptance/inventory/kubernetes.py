"""What the API of Kubernetes tells a pod of its node and of itself."""

import json
import os
import re
import ssl
from collections.abc import Callable, Mapping
from http.client import HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlencode

from gpu_acceptance.inventory import parsing
from gpu_acceptance.inventory.answer import Answer, Missing, Why, read_text

T = TypeVar("T")

NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")  # a DNS subdomain, as the name of every node and every pod
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")  # where the kubelet puts it
_HOST, _PORT = "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"
_TOKEN = re.compile(r"[\w.~+/=-]+", re.ASCII)
_TIMEOUT_S = 10.0
_MOST_BYTES = 16 << 20  # a node has at most some hundred pods
_MOST_SAID = 400  # characters: a reason names an account, a namespace and an object
_PAGE = 100  # objects of one answer: a node is some 30 kB
_MOST_PAGES = 200
GPU = "nvidia.com/gpu"  # of NVIDIA's device plugin
_NODE, _POD = "NODE_NAME", "POD_UID"  # deploy/kubernetes/components/api sets them
_QUANTITY = re.compile(r"([0-9]{1,15})([kMG]?)")  # 1000 is written 1k
_FACTOR = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}
_WITH_GPU = (GPU, "nvidia.com/mig-")  # whole, shared (nvidia.com/gpu.shared), and a part of one
_OVER = {"Succeeded", "Failed"}


def is_in_pod(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the kubelet started this process: it names the API to every container."""
    return bool(environ.get(_HOST))


def get(path: str, environ: Mapping[str, str] = os.environ) -> Answer[dict[str, Any]]:
    """The object at this path, `/api/v1/nodes/node-01`, or why there is none."""
    token = read_text(ACCOUNT / "token")
    if isinstance(token, Missing):
        return token
    host, port = environ.get(_HOST, ""), environ.get(_PORT, "")
    if not (_TOKEN.fullmatch(token) and host and port.isdecimal()):
        return Missing(Why.UNREADABLE, f"{_HOST}={host!r}, {_PORT}={port!r}, or the token is none"[:200])
    try:
        return _answered(path, *_fetched(HTTPSConnection(host, int(port), timeout=_TIMEOUT_S, context=_trust()), path, token))
    except (OSError, HTTPException, ValueError, RecursionError) as error:
        return Missing(Why.UNREADABLE, f"GET {path}: {type(error).__name__}: {error}"[:200])


def items(path: str, environ: Mapping[str, str] = os.environ, **query: str) -> Answer[list[dict[str, Any]]]:
    """All that the list at this path holds, of at most 20,000 objects: `items("/api/v1/nodes")`."""
    found: list[dict[str, Any]] = []
    going_on = {"limit": str(_PAGE)}
    for _ in range(_MOST_PAGES):
        page = parsed(get(f"{path}?{urlencode({**query, **going_on})}", environ), _page)
        if isinstance(page, Missing):
            return page
        found += page[0]
        if not page[1]:
            return found
        going_on["continue"] = page[1]
    return Missing(Why.UNREADABLE, f"GET {path}: more than {_MOST_PAGES} pages"[:200])


def _page(told: dict[str, Any]) -> tuple[list[dict[str, Any]], str]:
    """Objects, and where the list goes on."""
    found, after = told["items"], told["metadata"].get("continue") or ""
    if not (isinstance(found, list) and isinstance(after, str)):
        raise ValueError("no list")
    return found, after


def parsed(told: Answer[dict[str, Any]], parse: Callable[[dict[str, Any]], T]) -> Answer[T]:
    """What `parse` makes of an answer that may be of any form."""
    if isinstance(told, Missing):
        return told
    try:
        return parse(told)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        return Missing(Why.UNREADABLE, f"{parse.__name__.strip('_')} of the API: {type(error).__name__}: {error}"[:200])


def _trust() -> ssl.SSLContext:
    """The cluster's own authority, and no other."""
    return ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))


def _fetched(connection: HTTPSConnection, path: str, token: str) -> tuple[int, bytes]:
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}", "Accept": "application/json"})
        response = connection.getresponse()
        return response.status, response.read(_MOST_BYTES + 1)
    finally:
        connection.close()


def _answered(path: str, status: int, body: bytes) -> Answer[dict[str, Any]]:
    if status != 200 or len(body) > _MOST_BYTES:
        why = Why.NOT_PERMITTED if status in {401, 403} else Why.UNREADABLE
        return Missing(why, f"GET {path.partition('?')[0]}: status {status}, {_said(body)}"[:_MOST_SAID])
    found = json.loads(body)
    return found if isinstance(found, dict) else Missing(Why.UNREADABLE, f"GET {path}: no object"[:200])


def _said(body: bytes) -> str:
    """The reason in the API's own words, where it gives one: who may not do what, and where."""
    try:
        told = json.loads(body)
    except (ValueError, RecursionError):
        told = None
    message = told.get("message") if isinstance(told, dict) else None
    return repr(message) if isinstance(message, str) and message else f"{len(body)} bytes"


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
    if not (NAME.fullmatch(name) and own):
        lack = Missing(Why.NOT_THERE, f"{_NODE}={name!r}, {_POD}={own!r}: deploy/kubernetes/components/api sets both"[:200])
        return Told(lack, lack, own)
    return Told(
        parsed(get(f"/api/v1/nodes/{name}", environ), _node),
        parsed(get(f"/api/v1/pods?fieldSelector=spec.nodeName%3D{name}", environ), _pods),
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
