"""What of a node of Kubernetes is judged, and nodes that a run has no pod on."""

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from gpu_acceptance.inventory import kubernetes
from gpu_acceptance.inventory.answer import Answer, Missing, Why, join_fitting, join_names
from gpu_acceptance.inventory.kubernetes import GPU, Node, Pod, Taint, Told, labels_of, number_of, taints_of

Findings = Iterator[tuple[str, Answer[bool | int], str, str]]

# Of Kubernetes itself (its documentation, Node Status): True is bad. What others write into a node means what they like.
_PRESSURE = ("MemoryPressure", "DiskPressure", "PIDPressure")
_NETWORK = ("NetworkUnavailable",)  # of clusters whose network sets it
_BAD_TAINTS = "node.kubernetes.io/"  # Kubernetes taints so a node that has a fault, or that somebody cordoned
Facts = Iterator[tuple[str, Answer[int] | Answer[str], str]]

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
# Of what a node's features are called some hundred are flags of its CPU; what it is and where it stands comes first.
_FIRST_LABELS = ("nvidia.com/", "topology.kubernetes.io/", "node.kubernetes.io/", "kubernetes.io/")
_LAST_LABELS = ("feature.node.kubernetes.io/", "beta.kubernetes.io/")
_WHOLE = re.compile(r"-?[0-9]{1,18}")  # of a label that Gt and Lt compare


def node(told: Told) -> Findings:
    """Ready, under no pressure, and not marked as one that is none of it."""
    found = told.node
    if isinstance(found, Missing):
        yield from _unknown("node", found, ready="bool", pressure="count", taints="count")
        return
    status, reason = found.conditions.get("Ready", ("", ""))
    yield "kubernetes.node.ready", status == "True" if status else _no_condition(found, "Ready"), "bool", reason
    lacking = next((name for name in _PRESSURE if name not in found.conditions), None)
    bad = [f"{name} {found.conditions[name][0]}" for name in (*_PRESSURE, *_NETWORK) if _is_bad(found, name)]
    yield "kubernetes.node.pressure", _no_condition(found, lacking) if lacking else len(bad), "count", join_names(bad)
    taints = bad_taints(found.taints)
    yield "kubernetes.node.taints", len(taints), "count", join_names(taints)


def bad_taints(taints: Sequence[Taint]) -> list[str]:
    """Keys of those that Kubernetes itself puts on a node, each once: not-ready and unreachable come with two effects."""
    return list(dict.fromkeys(taint.key for taint in taints if taint.key.startswith(_BAD_TAINTS)))


def _is_bad(node: Node, condition: str) -> bool:
    return condition in node.conditions and node.conditions[condition][0] != "False"


def _no_condition(node: Node, condition: str) -> Missing:
    return Missing(Why.NOT_THERE, f"node {node.name} has no condition {condition}"[:200])


def _unknown(topic: str, why: Missing, **units: str) -> Findings:
    """All metrics of a topic of which nothing is known."""
    yield from ((f"kubernetes.{topic}.{name}", why, unit, "") for name, unit in units.items())


def devices(told: Told) -> Findings:
    """The device plugins give out all that they found."""
    found = told.node
    if isinstance(found, Missing):
        yield from _unknown("devices", found, gpus="count", withdrawn="count")
        return
    gpus = [one.allocatable for one in found.devices if one.resource == GPU]
    yield "kubernetes.devices.gpus", sum(gpus), "count", "" if gpus else f"no {GPU}: its device plugin does not run"
    lost = [one for one in found.devices if one.allocatable < one.capacity]
    number = sum(one.capacity - one.allocatable for one in lost)
    yield (
        "kubernetes.devices.withdrawn",
        number,
        "count",
        join_names([f"{one.resource} {one.allocatable} of {one.capacity}" for one in lost]),
    )


def pods(told: Told) -> Findings:
    """One pod of this run is on the node, and no other one with a GPU."""
    found = told.pods
    own = None if isinstance(found, Missing) else next((pod for pod in found if pod.uid == told.own), None)
    if isinstance(found, Missing) or own is None:
        lack = found if isinstance(found, Missing) else Missing(Why.NOT_THERE, f"no pod of uid {told.own} on this node"[:200])
        yield from _unknown("pods", lack, same_run="count", others="count")
        return
    same = [pod for pod in found if pod is own or (own.owner and pod.owner == own.owner)]
    yield "kubernetes.pods.same_run", len(same), "count", join_names([pod.name for pod in same])
    others = [pod.name + how for pod in found if pod not in same and (how := _how_it_has_devices(pod)) is not None]
    yield "kubernetes.pods.others", len(others), "count", join_names(others)


def _how_it_has_devices(pod: Pod) -> str | None:
    """None where it has none. What a claim is for another object says, which this run may not read: it may well be a GPU."""
    if pod.num_gpus:
        return ""
    return " (by a resource claim)" if pod.spec.get("resourceClaims") else None


class Candidate(NamedTuple):
    """A node that the scheduler may put a pod of the run on, by selector and affinity."""

    name: str
    taints: tuple[Taint, ...]


def read_candidates(told: Told, environ: Mapping[str, str] = os.environ) -> Answer[tuple[Candidate, ...]]:
    """All nodes that the pod of this process selects; those with GPUs where it selects none. One request for each hundred nodes."""
    if isinstance(told.pods, Missing):
        return told.pods
    own = next((pod for pod in told.pods if pod.uid == told.own), None)
    if own is None:
        return Missing(Why.NOT_THERE, f"no pod of uid {told.own} on this node"[:200])
    found = kubernetes.items("/api/v1/nodes", environ)
    if isinstance(found, Missing):
        return found
    return kubernetes.parsed({"nodes": found, "spec": own.spec}, "candidates", _candidates)


def _candidates(told: dict[str, Any]) -> tuple[Candidate, ...]:
    return tuple(Candidate(_name(node), taints_of(node)) for node in told["nodes"] if _selects(told["spec"], node))


def _name(node: dict[str, Any]) -> str:
    name: str = node["metadata"]["name"]
    if not kubernetes.NAME.fullmatch(name):
        raise ValueError(f"no name of a node: {name!r:.80}")
    return name


def _selects(spec: Mapping[str, Any], node: dict[str, Any]) -> bool:
    """As the scheduler does (Kubernetes, Assigning Pods to Nodes): every label of nodeSelector, and one term of the affinity."""
    labels, wanted = labels_of(node), spec.get("nodeSelector") or {}
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(_REQUIRED) or {}
    terms = required.get("nodeSelectorTerms") or ()
    if not (wanted or terms):
        return number_of(node["status"]["capacity"].get(GPU, "0")) > 0
    if any(labels.get(key) != value for key, value in wanted.items()):
        return False
    return not terms or any(_fits(term, node, labels) for term in terms)


def _fits(term: dict[str, Any], node: dict[str, Any], labels: Mapping[str, str]) -> bool:
    fields = {"metadata.name": _name(node)}
    needs = [(one, labels) for one in term.get("matchExpressions") or ()] + [(one, fields) for one in term.get("matchFields") or ()]
    return bool(needs) and all(_holds(one, values) for one, values in needs)  # a term without any fits no node


def _holds(need: dict[str, Any], values: Mapping[str, str]) -> bool:
    found: str | None = values.get(need["key"])
    operator: str = need["operator"]
    wanted = need.get("values") or []
    if not isinstance(wanted, list):
        raise ValueError(f"no values of a selector: {wanted!r:.40}")
    if operator in {"In", "NotIn"}:
        return (found in wanted) == (operator == "In")  # NotIn holds without the label too
    if operator in {"Exists", "DoesNotExist"}:
        return (found is not None) == (operator == "Exists")
    if operator not in {"Gt", "Lt"}:
        raise ValueError(f"no operator of a selector: {operator!r:.40}")
    if found is None or not _WHOLE.fullmatch(found):
        return False
    return int(found) > int(wanted[0]) if operator == "Gt" else int(found) < int(wanted[0])


def elsewhere_facts(told: Told, candidates: Answer[Sequence[Candidate]], used: Collection[str]) -> Facts:
    """How many and which have no pod of the run, which is on the nodes `used`: the verdict says that they are not tested.

    No number, not even an unknown one, where the pod knows nothing of its own node: that is judged where a site asks for it.
    """
    if isinstance(candidates, Missing):
        if not isinstance(told.pods, Missing):
            yield "kubernetes.nodes.untested", candidates, "count"
        yield "kubernetes.nodes.untested_names", candidates, "text"
        return
    others = [one for one in candidates if one.name not in used]
    yield "kubernetes.nodes.untested", len(others), "count"
    yield "kubernetes.nodes.untested_names", join_fitting([_said(one) for one in others]) or "none", "text"


def _said(node: Candidate) -> str:
    """`node-07 (node.kubernetes.io/unschedulable)`."""
    bad = bad_taints(node.taints)
    return f"{node.name} ({', '.join(bad)})" if bad else node.name


def own_facts(told: Told) -> Facts:
    """Which node this pod is on, and what is written on that."""
    node = told.node
    if isinstance(node, Missing):
        yield from ((f"kubernetes.node.{name}", node, "text") for name in ("name", "all_taints", "labels"))
        return
    yield "kubernetes.node.name", node.name, "text"
    yield "kubernetes.node.all_taints", join_fitting([_of_taint(one) for one in node.taints]) or "none", "text"
    labels = [f"{key}={node.labels[key]}" for key in sorted(node.labels, key=_order)]
    yield "kubernetes.node.labels", join_fitting(labels) or "none", "text"


def _of_taint(taint: Taint) -> str:
    return f"{taint.key}={taint.value}:{taint.effect}" if taint.value else f"{taint.key}:{taint.effect}"


def _order(label: str) -> tuple[int, str]:
    if label.startswith(_LAST_LABELS):
        return len(_FIRST_LABELS) + 1, label
    return next((place for place, domain in enumerate(_FIRST_LABELS) if label.startswith(domain)), len(_FIRST_LABELS)), label
