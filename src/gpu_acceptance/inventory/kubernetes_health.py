"""Findings in a node of Kubernetes by topic: metric, answer, unit, detail; and the nodes without a pod of the run."""

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from gpu_acceptance.inventory import kubernetes
from gpu_acceptance.inventory.answer import Answer, Missing, Why, all_missing, join_fitting, join_names, known, parsed, then
from gpu_acceptance.inventory.kubernetes import GPU, Answers, Node, Pod, Taint, labels_of, number_of, taints_of

Findings = Iterator[tuple[str, Answer[bool | int], str, str]]

# Conditions of Kubernetes itself (its documentation, Node Status): True is bad. Conditions of others have any meaning.
_PRESSURE = ("MemoryPressure", "DiskPressure", "PIDPressure")
_NETWORK = ("NetworkUnavailable",)  # in clusters whose network sets it
_BAD_TAINTS = "node.kubernetes.io/"  # Kubernetes taints a faulty or cordoned node so
Facts = Iterator[tuple[str, Answer[int] | Answer[str], str]]

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
# Some hundred labels are flags of a CPU; what the node is and where it stands comes first.
_FIRST_LABELS = ("nvidia.com/", "topology.kubernetes.io/", "node.kubernetes.io/", "kubernetes.io/")
_LAST_LABELS = ("feature.node.kubernetes.io/", "beta.kubernetes.io/")
_WHOLE = re.compile(r"-?[0-9]{1,18}")  # a label that Gt and Lt compare


def node(answers: Answers) -> Findings:
    """Yield if the node is ready, its pressures, and taints for faults."""
    found = answers.node
    if isinstance(found, Missing):
        yield from all_missing("kubernetes.node", found, ready="bool", pressure="count", taints="count")
        return
    status, reason = found.conditions.get("Ready", ("", ""))
    yield "kubernetes.node.ready", status == "True" if status else _no_condition(found, "Ready"), "bool", reason
    lacking = next((name for name in _PRESSURE if name not in found.conditions), None)
    bad = [
        f"{name} {found.conditions[name][0]}" for name in (*_PRESSURE, *_NETWORK) if found.conditions.get(name, ("False", ""))[0] != "False"
    ]
    yield "kubernetes.node.pressure", _no_condition(found, lacking) if lacking else len(bad), "count", join_names(bad)
    taints = bad_taints(found.taints)
    yield "kubernetes.node.taints", len(taints), "count", join_names(taints)


def bad_taints(taints: Sequence[Taint]) -> list[str]:
    """Return the keys of Kubernetes' own taints, each once: not-ready and unreachable come with two effects."""
    return list(dict.fromkeys(taint.key for taint in taints if taint.key.startswith(_BAD_TAINTS)))


def _no_condition(node: Node, condition: str) -> Missing:
    return Missing(Why.NOT_THERE, f"node {node.name} has no condition {condition}"[:200])


def devices(answers: Answers) -> Findings:
    """Yield the GPUs that pods may get, and the devices that their plugins withdrew."""
    found = answers.node
    if isinstance(found, Missing):
        yield from all_missing("kubernetes.devices", found, gpus="count", withdrawn="count")
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


def pods(answers: Answers) -> Findings:
    """Yield the pods of this run on the node, and others with a GPU."""
    own = _own_pod(answers)
    if isinstance(own, Missing):
        yield from all_missing("kubernetes.pods", own, same_run="count", others="count")
        return
    found = known(answers.pods)
    same = [pod for pod in found if pod is own or (own.owner and pod.owner == own.owner)]
    yield "kubernetes.pods.same_run", len(same), "count", join_names([pod.name for pod in same])
    others = [pod.name + how for pod in found if pod not in same and (how := _how_it_has_devices(pod)) is not None]
    yield "kubernetes.pods.others", len(others), "count", join_names(others)


def _own_pod(answers: Answers) -> Answer[Pod]:
    none = Missing(Why.NOT_THERE, f"no pod of uid {answers.own} on this node"[:200])
    return then(answers.pods, lambda pods: next((pod for pod in pods if pod.uid == answers.own), none))


def _how_it_has_devices(pod: Pod) -> str | None:
    """Return None for a pod without devices. A resource claim counts: another object, unreadable here, says if it is for a GPU."""
    if pod.num_gpus:
        return ""
    return " (by a resource claim)" if pod.spec.get("resourceClaims") else None


class Candidate(NamedTuple):
    """A node on which the scheduler may put a pod of the run, by selector and affinity."""

    name: str
    taints: tuple[Taint, ...]


def read_candidates(answers: Answers, environ: Mapping[str, str] = os.environ) -> Answer[tuple[Candidate, ...]]:
    """Return the nodes that the pod of this process selects, or those with GPUs. One request for each hundred nodes of the cluster."""
    own = _own_pod(answers)
    if isinstance(own, Missing):
        return own
    return parsed(kubernetes.items("/api/v1/nodes", environ), "candidates of the API", partial(_candidates, own.spec))


def _candidates(spec: Mapping[str, Any], nodes: list[dict[str, Any]]) -> tuple[Candidate, ...]:
    return tuple(Candidate(_name(node), taints_of(node)) for node in nodes if _selects(spec, node))


def _name(node: dict[str, Any]) -> str:
    name: str = node["metadata"]["name"]
    if not kubernetes.NAME.fullmatch(name):
        raise ValueError(f"no name of a node: {name!r:.80}")
    return name


def _selects(spec: Mapping[str, Any], node: dict[str, Any]) -> bool:
    """Decide as the scheduler (Kubernetes, Assigning Pods to Nodes): every label of nodeSelector, and one term of the affinity."""
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
    return bool(needs) and all(_holds(one, values) for one, values in needs)  # an empty term fits no node


def _holds(need: dict[str, Any], values: Mapping[str, str]) -> bool:
    found: str | None = values.get(need["key"])
    operator: str = need["operator"]
    wanted = need.get("values") or []
    if not isinstance(wanted, list):
        raise ValueError(f"no values of a selector: {wanted!r:.40}")
    if operator in {"In", "NotIn"}:
        return (found in wanted) == (operator == "In")  # NotIn also holds without the label
    if operator in {"Exists", "DoesNotExist"}:
        return (found is not None) == (operator == "Exists")
    if operator not in {"Gt", "Lt"}:
        raise ValueError(f"no operator of a selector: {operator!r:.40}")
    if found is None or not _WHOLE.fullmatch(found):
        return False
    return int(found) > int(wanted[0]) if operator == "Gt" else int(found) < int(wanted[0])


def elsewhere_facts(answers: Answers, candidates: Answer[Sequence[Candidate]], used: Collection[str]) -> Facts:
    """Yield number and names of nodes without a pod of the run, which is on the nodes `used`: the verdict says they are not tested.

    There is no number where the pod cannot read its own node: that is judged where a site asks for it.
    """
    if isinstance(candidates, Missing):
        if not isinstance(answers.pods, Missing):
            yield "kubernetes.nodes.untested", candidates, "count"
        yield "kubernetes.nodes.untested_names", candidates, "text"
        return
    others = [one for one in candidates if one.name not in used]
    bad = [bad_taints(one.taints) for one in others]  # shown as `node-07 (node.kubernetes.io/unschedulable)`
    names = [f"{one.name} ({', '.join(keys)})" if keys else one.name for one, keys in zip(others, bad, strict=True)]
    yield "kubernetes.nodes.untested", len(others), "count"
    yield "kubernetes.nodes.untested_names", join_fitting(names) or "none", "text"


def own_facts(answers: Answers) -> Facts:
    """Yield the node of this pod, its taints and labels."""
    node = answers.node
    if isinstance(node, Missing):
        yield from ((f"kubernetes.node.{name}", node, "text") for name in ("name", "all_taints", "labels"))
        return
    yield "kubernetes.node.name", node.name, "text"
    taints = [f"{one.key}={one.value}:{one.effect}" if one.value else f"{one.key}:{one.effect}" for one in node.taints]
    yield "kubernetes.node.all_taints", join_fitting(taints) or "none", "text"
    labels = [f"{key}={node.labels[key]}" for key in sorted(node.labels, key=_order)]
    yield "kubernetes.node.labels", join_fitting(labels) or "none", "text"


def _order(label: str) -> tuple[int, str]:
    if label.startswith(_LAST_LABELS):
        return len(_FIRST_LABELS) + 1, label
    return next((place for place, domain in enumerate(_FIRST_LABELS) if label.startswith(domain)), len(_FIRST_LABELS)), label
