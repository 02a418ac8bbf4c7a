"""The pods of one run, and what Kubernetes says of those that do not run."""

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from gpu_acceptance.inventory import kubernetes
from gpu_acceptance.inventory.answer import Answer, Missing, Why, read_text

LABELS = re.compile(r"[A-Za-z0-9]([A-Za-z0-9./_-]{0,315}[A-Za-z0-9])?=[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
RUNNING, PENDING, TERMINATING, NOT_READY, DONE = "Running", "Pending", "Terminating", "NotReady", ("Succeeded", "Failed")
_PHASES = {RUNNING, PENDING, *DONE, "Unknown"}
_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_MOST_TEXT = 2_000  # characters; the scheduler counts nodes by their reasons, some hundred characters


class Reason(NamedTuple):
    """In Kubernetes' own words, which may be any text: `0/4 nodes are available: ...`, and `PodScheduled: Unschedulable`."""

    message: str
    word: str


class RunPod(NamedTuple):
    """`node`: empty until the scheduler has found one.

    `phase`: Kubernetes' own word; Terminating, as kubectl calls one that is being deleted; NotReady: Running, and its node does not report.
    """

    name: str
    node: str
    phase: str
    reasons: tuple[Reason, ...]


def read(labels: str, environ: Mapping[str, str] = os.environ) -> Answer[tuple[RunPod, ...]]:
    """The pods with these labels, `KEY=VALUE`, in the namespace of this one; of at most 10 s for each hundred of them."""
    namespace = read_text(kubernetes.ACCOUNT / "namespace")
    if isinstance(namespace, Missing):
        return namespace
    if not _NAMESPACE.fullmatch(namespace):
        return Missing(Why.UNREADABLE, f"no namespace: {namespace!r:.80}")
    found = kubernetes.items(f"/api/v1/namespaces/{namespace}/pods", environ, labelSelector=labels)
    return found if isinstance(found, Missing) else kubernetes.parsed({"items": found}, _pods)


def _pods(told: dict[str, Any]) -> tuple[RunPod, ...]:
    return tuple(_pod(one["metadata"], one["spec"].get("nodeName") or "", one["status"]) for one in told["items"])


def _pod(meta: dict[str, Any], node: str, status: dict[str, Any]) -> RunPod:
    name, phase = meta["name"], _phase(meta, status)
    if not kubernetes.NAME.fullmatch(name):
        raise ValueError(f"no name of a pod: {name!r:.80}")
    if node and not kubernetes.NAME.fullmatch(node):
        raise ValueError(f"no name of a node: {node!r:.80}")
    return RunPod(name, node, phase, (*_reasons(status), *_of_node(node, phase, status)))


def _phase(meta: dict[str, Any], status: dict[str, Any]) -> str:
    phase: str = status.get("phase") or "Unknown"
    if phase not in _PHASES:
        raise ValueError(f"no phase of a pod: {phase!r:.80}")
    if meta.get("deletionTimestamp"):
        return TERMINATING
    return NOT_READY if phase == RUNNING and _is_unheard(status) else phase


def _is_unheard(status: dict[str, Any]) -> bool:
    """Whether its node does not report: Kubernetes then sets Ready to False and leaves what the kubelet wrote last (seen of 1.20.2)."""
    told = {one["type"]: one for one in status.get("conditions") or () if one["type"] in {"Ready", "ContainersReady"}}
    return (
        len(told) == 2
        and (told["Ready"]["status"], told["ContainersReady"]["status"]) == ("False", "True")
        and told["Ready"].get("reason") != "ReadinessGatesNotReady"  # the kubelet's own word for a pod that waits for somebody else's
    )


def _of_node(node: str, phase: str, status: dict[str, Any]) -> Iterator[Reason]:
    """What no field says in words."""
    if phase == NOT_READY:
        yield Reason("", "its containers are Ready and it is not: its node does not report")
    if phase == PENDING and node and not status.get("startTime"):
        yield Reason("", "its kubelet has not taken it up")


def _reasons(status: dict[str, Any]) -> Iterator[Reason]:
    """Of the pod as a whole (evicted), of the scheduler, and of each container that waits or has failed."""
    if status.get("reason"):
        yield Reason(_text(status.get("message")), _text(status["reason"]))
    for one in status.get("conditions") or ():
        if one["type"] == "PodScheduled" and one["status"] != "True":
            yield Reason(_text(one.get("message")), f"PodScheduled: {_text(one.get('reason')) or 'no reason'}")
    for one in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        yield from _of_container(_text(one["name"]), one.get("state") or {})


def _of_container(name: str, state: dict[str, Any]) -> Iterator[Reason]:
    if waiting := state.get("waiting"):
        yield Reason(_text(waiting.get("message")), f"{name}: {_text(waiting.get('reason')) or 'waiting'}")
    if (ended := state.get("terminated")) and ended["exitCode"] != 0:
        word = f"{name}: {_text(ended.get('reason')) or 'ended'}, exit code {int(ended['exitCode'])}"
        yield Reason(_last_line(ended.get("message")), word)


def _text(told: object) -> str:
    return _whole_text(told)[:_MOST_TEXT]


def _last_line(told: object) -> str:
    """Of the end of what a container printed, of which the kubelet keeps 2048 bytes: the verdict is its last line."""
    return "".join(_whole_text(told).strip().splitlines()[-1:])[:_MOST_TEXT]


def _whole_text(told: object) -> str:
    if told is not None and not isinstance(told, str):
        raise ValueError(f"no text: {told!r:.80}")
    return told or ""
