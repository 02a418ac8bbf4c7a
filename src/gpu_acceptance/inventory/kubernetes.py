"""The API of Kubernetes, asked from inside a pod, and the pods of its job."""

import json
import os
import re
import ssl
from collections.abc import Iterator, Mapping
from contextlib import closing
from http.client import HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

from gpu_acceptance.inventory.answer import Answer, Missing, Why, parsed, read_text

NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")  # a DNS subdomain: name of a node or a pod
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")  # the kubelet mounts it there
_HOST, _PORT = "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"
_TOKEN = re.compile(r"[\w.~+/=-]+", re.ASCII)
_TIMEOUT_S = 10.0
_MOST_BYTES = 16 << 20  # a node has at most some hundred pods
_MOST_SAID = 400  # characters: a reason names an account, a namespace and an object
_PAGE = 100  # objects of one answer: a node is some 30 kB
_MOST_PAGES = 200
LABELS = re.compile(r"[A-Za-z0-9]([A-Za-z0-9./_-]{0,315}[A-Za-z0-9])?=[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
RUNNING, PENDING, TERMINATING, NOT_READY, DONE = "Running", "Pending", "Terminating", "NotReady", ("Succeeded", "Failed")
_PHASES = {RUNNING, PENDING, *DONE, "Unknown"}
_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_MOST_TEXT = 2_000  # characters; the scheduler counts nodes by their reasons, some hundred characters


def is_in_pod(environ: Mapping[str, str] = os.environ) -> bool:
    """Return True in a container that a kubelet started: it names the API to each."""
    return bool(environ.get(_HOST))


def get(path: str, environ: Mapping[str, str] = os.environ) -> Answer[dict[str, Any]]:
    """Return the object at this path, `/api/v1/nodes/node-01`."""
    token = read_text(ACCOUNT / "token")
    if isinstance(token, Missing):
        return token
    host, port = environ.get(_HOST, ""), environ.get(_PORT, "")
    if not (_TOKEN.fullmatch(token) and host and port.isdecimal()):
        return Missing(Why.UNREADABLE, f"{_HOST}={host!r}, {_PORT}={port!r}, or the token is malformed"[:200])
    try:
        trust = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))  # the cluster's own authority, and no other
        with closing(HTTPSConnection(host, int(port), timeout=_TIMEOUT_S, context=trust)) as connection:
            connection.request("GET", path, headers={"Authorization": f"Bearer {token}", "Accept": "application/json"})
            response = connection.getresponse()
            body = response.read(_MOST_BYTES + 1)
        if response.status != 200 or len(body) > _MOST_BYTES:
            why = Why.NOT_PERMITTED if response.status in {401, 403} else Why.UNREADABLE
            return Missing(why, f"GET {path.partition('?')[0]}: status {response.status}, {_said(body)}"[:_MOST_SAID])
        found = json.loads(body)
    except (OSError, HTTPException, ValueError, RecursionError) as error:
        return Missing(Why.UNREADABLE, f"GET {path}: {type(error).__name__}: {error}"[:200])
    return found if isinstance(found, dict) else Missing(Why.UNREADABLE, f"GET {path}: no object"[:200])


def items(path: str, environ: Mapping[str, str] = os.environ, **query: str) -> Answer[list[dict[str, Any]]]:
    """Return the objects of the list at this path, at most 20,000: `items("/api/v1/nodes")`."""
    found: list[dict[str, Any]] = []
    going_on = {"limit": str(_PAGE)}
    for _ in range(_MOST_PAGES):
        page = parsed(get(f"{path}?{urlencode({**query, **going_on})}", environ), "page of the API", _page)
        if isinstance(page, Missing):
            return page
        found += page[0]
        if not page[1]:
            return found
        going_on["continue"] = page[1]
    return Missing(Why.UNREADABLE, f"GET {path}: more than {_MOST_PAGES} pages"[:200])


def _page(answer: dict[str, Any]) -> tuple[list[dict[str, Any]], str]:
    """Return objects, and the token with which the list goes on."""
    found, after = answer["items"], answer["metadata"].get("continue") or ""
    if not (isinstance(found, list) and isinstance(after, str)):
        raise ValueError("no list")
    return found, after


def _said(body: bytes) -> str:
    """Return the API's own reason, which names account, verb and object, or the size of an answer without one."""
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        answer = None
    message = answer.get("message") if isinstance(answer, dict) else None
    return repr(message) if isinstance(message, str) and message else f"{len(body)} bytes"


class Reason(NamedTuple):
    """A reason in Kubernetes' own words, any text: `0/4 nodes are available: ...` and `PodScheduled: Unschedulable`."""

    message: str
    word: str


class RunPod(NamedTuple):
    """A pod of the job. `node`: empty until the scheduler has found one.

    `phase`: Kubernetes' own word; Terminating: it is being deleted, as kubectl says; NotReady: Running, and its node does not report.
    """

    name: str
    node: str
    phase: str
    reasons: tuple[Reason, ...]


def read_pods(labels: str, environ: Mapping[str, str] = os.environ) -> Answer[tuple[RunPod, ...]]:
    """Return the pods with these labels, `KEY=VALUE`, in the namespace of this one; at most 10 s for each hundred of them."""
    namespace = read_text(ACCOUNT / "namespace")
    if isinstance(namespace, Missing):
        return namespace
    if not _NAMESPACE.fullmatch(namespace):
        return Missing(Why.UNREADABLE, f"no namespace: {namespace!r:.80}")
    found = items(f"/api/v1/namespaces/{namespace}/pods", environ, labelSelector=labels)
    return parsed(found, "pods of the API", _pods_of_job)


def _pods_of_job(found: list[dict[str, Any]]) -> tuple[RunPod, ...]:
    pods = []
    for one in found:
        meta, node, status = one["metadata"], one["spec"].get("nodeName") or "", one["status"]
        if not NAME.fullmatch(meta["name"]):
            raise ValueError(f"no name of a pod: {meta['name']!r:.80}")
        if node and not NAME.fullmatch(node):
            raise ValueError(f"no name of a node: {node!r:.80}")
        phase: str = status.get("phase") or "Unknown"
        if phase not in _PHASES:
            raise ValueError(f"no phase of a pod: {phase!r:.80}")
        if meta.get("deletionTimestamp"):
            phase = TERMINATING
        elif phase == RUNNING and _is_unheard(status):
            phase = NOT_READY
        pods.append(RunPod(meta["name"], node, phase, tuple(_reasons(node, phase, status))))
    return tuple(pods)


def _is_unheard(status: dict[str, Any]) -> bool:
    """Return True where the node does not report: Kubernetes sets Ready to False and leaves the kubelet's last word (seen of 1.20.2)."""
    conditions = {one["type"]: one for one in status.get("conditions") or () if one["type"] in {"Ready", "ContainersReady"}}
    return (
        len(conditions) == 2
        and (conditions["Ready"]["status"], conditions["ContainersReady"]["status"]) == ("False", "True")
        and conditions["Ready"].get("reason") != "ReadinessGatesNotReady"  # the kubelet's word for a pod that waits for a readiness gate
    )


def _reasons(node: str, phase: str, status: dict[str, Any]) -> Iterator[Reason]:
    """Yield reasons of the whole pod (evicted), of the scheduler, of each container that waits or failed, and of its node."""
    if status.get("reason"):
        yield Reason(_text(status.get("message")), _text(status["reason"]))
    for one in status.get("conditions") or ():
        if one["type"] == "PodScheduled" and one["status"] != "True":
            yield Reason(_text(one.get("message")), f"PodScheduled: {_text(one.get('reason')) or 'no reason'}")
    for one in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        name, state = _text(one["name"]), one.get("state") or {}
        if waiting := state.get("waiting"):
            yield Reason(_text(waiting.get("message")), f"{name}: {_text(waiting.get('reason')) or 'waiting'}")
        if (ended := state.get("terminated")) and ended["exitCode"] != 0:
            word = f"{name}: {_text(ended.get('reason')) or 'ended'}, exit code {int(ended['exitCode'])}"
            said = _whole_text(ended.get("message")).strip().splitlines()[-1:]  # of 2048 bytes: the verdict is in the last line
            yield Reason("".join(said)[:_MOST_TEXT], word)
    if phase == NOT_READY:
        yield Reason("", "its containers are Ready and it is not: its node does not report")
    if phase == PENDING and node and not status.get("startTime"):
        yield Reason("", "its kubelet has not taken it up")


def _text(field: object) -> str:
    return _whole_text(field)[:_MOST_TEXT]


def _whole_text(field: object) -> str:
    if field is not None and not isinstance(field, str):
        raise ValueError(f"no text: {field!r:.80}")
    return field or ""
