"""Findings in a node of Kubernetes by topic: metric, answer, unit, detail; and the nodes without a pod of the run."""

import math
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple

from gpu_acceptance.inventory import kubernetes
from gpu_acceptance.inventory.answer import (
    Answer,
    Missing,
    Why,
    all_missing,
    combine,
    is_absent,
    join_fitting,
    join_names,
    known,
    parsed,
    then,
)
from gpu_acceptance.inventory.kubernetes_node import GPU, Devices, Node, Taint, labels_of, quantity, taints_of, whole
from gpu_acceptance.inventory.kubernetes_own import GPU_DRIVER, Answers, Pod, nodes_with, read_pools
from gpu_acceptance.inventory.node_conditions import (
    KUBELET,
    Judged,
    Mark,
    Meaning,
    judge,
    judge_labels,
    judge_taints,
    of_meaning,
)

Findings = Iterator[tuple[str, Answer[bool] | Answer[int], str, str]]

_PRESSURE = ("MemoryPressure", "DiskPressure", "PIDPressure")  # the kubelet always sets them; NetworkUnavailable is of some networks only
Facts = Iterator[tuple[str, Answer[int] | Answer[str], str]]

_CANDIDATES = "candidates of the API"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
# Some hundred labels are flags of a CPU; what the node is and where it stands comes first.
_FIRST_LABELS = ("nvidia.com/", "topology.kubernetes.io/", "node.kubernetes.io/", "kubernetes.io/")
_LAST_LABELS = ("feature.node.kubernetes.io/", "beta.kubernetes.io/")
_TOLD_IN_ORDER = (Meaning.FAULT, Meaning.BLIND, Meaning.PLAN, Meaning.FOREIGN, Meaning.SOUND)
_MOST_NUMBER = (1 << 63) - 1
_WHOLE = re.compile(r"-?[0-9]{1,18}")  # a label that Gt and Lt compare


def node(answers: Answers) -> Findings:
    """Yield if the node is ready, its pressures, what its agents say of it, and taints for faults."""
    found = answers.node
    if isinstance(found, Missing):
        yield from all_missing("kubernetes.node", found, ready="bool", pressure="count", faults="count", taints="count")
        return
    ready, reason = _ready(found)
    yield "kubernetes.node.ready", ready, "bool", reason
    judged = judge(found.conditions)
    pressures = [one for one in judged if one.agent == KUBELET and one.condition.type != "Ready"]
    lacking = [name for name in _PRESSURE if name not in {one.condition.type for one in pressures}]
    number, said = _faults(pressures, _no_condition(found, lacking[0]) if lacking else None)
    yield "kubernetes.node.pressure", number, "count", said
    number, said = _faults([*(one for one in judged if one.agent != KUBELET), *judge_labels(found.labels)])
    yield "kubernetes.node.faults", number, "count", said
    number, said = _faults(judge_taints(_marks(found.taints)))
    yield "kubernetes.node.taints", number, "count", said


def _ready(node: Node) -> tuple[Answer[bool], str]:
    said = [one for one in node.conditions if one.type == "Ready"]
    bad = [one for one in said if one.status in {"False", "Unknown"}]
    lack = next((one.status for one in said if isinstance(one.status, Missing)), None if said else _no_condition(node, "Ready"))
    value: Answer[bool] = not bad if bad or lack is None else lack
    return value, (bad or said)[0].reason or "no reason" if said else ""


def _faults(judged: Sequence[Judged | Mark], lack: Missing | None = None) -> tuple[Answer[int], str]:
    """Count faults, each name once: a taint may come with two effects. Without a fault, what proves nothing leaves the number unknown."""
    bad, blind = ({one.name: str(one) for one in judged if one.meaning is kind} for kind in (Meaning.FAULT, Meaning.BLIND))
    if blind and lack is None:
        lack = Missing(Why.UNREADABLE, f"no proof in either direction: {join_names(list(blind.values()))}"[:200])
    return len(bad) if bad or lack is None else lack, join_names(list(bad.values()))


def bad_taints(taints: Sequence[Taint]) -> list[str]:
    """Return the keys of taints for faults, each once."""
    return list(dict.fromkeys(one.name for one in judge_taints(_marks(taints)) if one.meaning is Meaning.FAULT))


def _marks(taints: Sequence[Taint]) -> Iterator[tuple[str, str]]:
    return ((one.key, one.value) for one in taints)


def _no_condition(node: Node, condition: str) -> Missing:
    return Missing(Why.NOT_THERE, f"node {node.name} has no condition {condition}"[:200])


def devices(answers: Answers) -> Findings:
    """Yield the GPUs that pods may get, and the devices that their drivers withdrew."""
    found, slices = answers.node, answers.slices
    if isinstance(found, Missing):
        yield from all_missing("kubernetes.devices", found, gpus="count", withdrawn="count")
        return
    rows = [*found.devices, *known(slices)]
    of_gpus = [one for one in rows if one.resource in {GPU, GPU_DRIVER}]
    gpus = next((one for one in of_gpus if one.capacity != 0), None)  # a plugin's 0 outlives its plugin
    none: Answer[int] = slices if isinstance(slices, Missing) and not is_absent(slices) else 0
    absent = f"no {GPU} and no {GPU_DRIVER}: neither a device plugin nor a DRA driver runs"
    detail = absent if not of_gpus else "" if gpus is None or gpus.resource == GPU else f"by resource claim, {GPU_DRIVER}"
    yield "kubernetes.devices.gpus", whole(gpus.resource, gpus.allocatable) if gpus else none, "count", detail
    number, said = _withdrawn(rows)
    yield "kubernetes.devices.withdrawn", number, "count", said


def _withdrawn(rows: Sequence[Devices]) -> tuple[Answer[int], str]:
    """Count what is lost of each resource. Without a loss, an amount that cannot be read leaves the number unknown."""
    lacking = [one for row in rows for one in (row.capacity, row.allocatable) if isinstance(one, Missing)]
    lost = {f"{row.resource} {row.said}": less for row in rows if (less := _less(row)) > 0}
    number = min(math.ceil(sum(lost.values(), Fraction())), _MOST_NUMBER)
    said = [*lost, *(map(str, lacking) if lost else ())]
    return number if lost or not lacking else lacking[0], join_names(said)


def _less(row: Devices) -> Fraction:
    """Return the amount that was withdrawn, 0 where it cannot be read."""
    less: Answer[Fraction] = combine(lambda capacity, allocatable: capacity - allocatable, row.capacity, row.allocatable)
    return Fraction() if isinstance(less, Missing) else less


def pods(answers: Answers) -> Findings:
    """Yield the pods of this run on the node, and others with a GPU."""
    own = _own_pod(answers)
    if isinstance(own, Missing):
        yield from all_missing("kubernetes.pods", own, same_run="count", others="count")
        return
    found = known(answers.pods)
    same = [pod for pod in found if pod is own or (own.owner and pod.owner == own.owner)]
    yield "kubernetes.pods.same_run", len(same), "count", join_names([pod.name for pod in same])
    others = [pod for pod in found if pod not in same]
    by_claim = {pod.name: answers.drivers.get(pod.name, frozenset()) for pod in others}
    with_gpu = [pod.name for pod in others if known(pod.gpus)]
    holding = [name for name, drivers in by_claim.items() if not isinstance(drivers, Missing) and GPU_DRIVER in drivers]
    with_gpu += [f"{name} (by a resource claim)" for name in holding if name not in with_gpu]
    of_others = [*by_claim.values(), *(one for pod in others for one in (pod.gpus, pod.claims))]
    lack = next((one for one in of_others if isinstance(one, Missing)), None)
    yield "kubernetes.pods.others", len(with_gpu) if with_gpu or lack is None else lack, "count", join_names(with_gpu)


def _own_pod(answers: Answers) -> Answer[Pod]:
    none = Missing(Why.NOT_THERE, f"no pod of uid {answers.own} on this node"[:200])
    return then(answers.pods, lambda pods: next((pod for pod in pods if pod.uid == answers.own), none))


class Candidate(NamedTuple):
    """A node on which the scheduler may put a pod of the run, by selector and affinity; perhaps one, where its taints are missing."""

    name: str
    taints: Answer[tuple[Taint, ...]]


def read_candidates(answers: Answers, environ: Mapping[str, str] = os.environ) -> Answer[tuple[Candidate, ...]]:
    """Return the nodes that the pod of this process selects, or those with GPUs. One request for each hundred nodes of the cluster."""
    own = _own_pod(answers)
    if isinstance(own, Missing):
        return own
    nodes = kubernetes.items("/api/v1/nodes", environ)
    return parsed(nodes, _CANDIDATES, partial(_candidates, own.spec, partial(_with_gpus_by_claim, environ)))


def _with_gpus_by_claim(environ: Mapping[str, str]) -> Answer[Collection[str]]:
    pools = read_pools("", environ)
    return () if is_absent(pools) else then(pools, partial(nodes_with, GPU_DRIVER))


def _candidates(
    spec: Mapping[str, Any], read_with_gpus: Callable[[], Answer[Collection[str]]], nodes: list[dict[str, Any]]
) -> Answer[tuple[Candidate, ...]]:
    """Return the nodes that a pod of this spec selects. `read_with_gpus`: the nodes with GPUs by claim, for a pod that may be on any.

    A node of another form costs itself alone. Where that is every node, it is the pod's spec that has another form.
    """
    with_gpus = () if any(_selectors(spec)) else read_with_gpus()
    found = [(_name(node), parsed(node, _CANDIDATES, partial(_taints_if_selected, spec, with_gpus))) for node in nodes]
    lacks = [one for _, one in found if isinstance(one, Missing)]
    if with_gpus in lacks or (lacks and len(lacks) == len(found)):
        return lacks[0]
    return tuple(Candidate(name, taints) for name, taints in found if taints is not None)


def _taints_if_selected(
    spec: Mapping[str, Any], with_gpus: Answer[Collection[str]], node: dict[str, Any]
) -> Answer[tuple[Taint, ...] | None]:
    return then(_selects(spec, with_gpus, node), lambda is_selected: taints_of(node) if is_selected else None)


def _name(node: dict[str, Any]) -> str:
    name: str = node["metadata"]["name"]
    if not kubernetes.NAME.fullmatch(name):
        raise ValueError(f"no name of a node: {name!r:.80}")
    return name


def _selectors(spec: Mapping[str, Any]) -> tuple[Mapping[str, str], Sequence[dict[str, Any]]]:
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(_REQUIRED) or {}
    return spec.get("nodeSelector") or {}, required.get("nodeSelectorTerms") or ()


def _selects(spec: Mapping[str, Any], with_gpus: Answer[Collection[str]], node: dict[str, Any]) -> Answer[bool]:
    """Decide as the scheduler (Kubernetes, Assigning Pods to Nodes): every label of nodeSelector, and one term of the affinity.

    `with_gpus`: nodes with GPUs by resource claim, which decide for a node without a device plugin.
    """
    labels, (wanted, terms) = labels_of(node), _selectors(spec)
    if not (wanted or terms):
        by_plugin = quantity(((node.get("status") or {}).get("capacity") or {}).get(GPU, "0")) > 0
        return by_plugin or then(with_gpus, lambda with_gpus: _name(node) in with_gpus)
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
    bound = int(wanted[0])  # of another form it is so for every node, also for one without the label
    if found is None or not _WHOLE.fullmatch(found):
        return False
    return int(found) > bound if operator == "Gt" else int(found) < bound


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
    names = list(map(_shown, others))
    yield "kubernetes.nodes.untested", len(others), "count"
    yield "kubernetes.nodes.untested_names", join_fitting(names) or "none", "text"


def _shown(one: Candidate) -> str:
    """Return `node-07 (node.kubernetes.io/unschedulable)`."""
    said = "in no known form" if isinstance(one.taints, Missing) else ", ".join(bad_taints(one.taints))
    return f"{one.name} ({said})" if said else one.name


def own_facts(answers: Answers) -> Facts:
    """Yield the node of this pod, its taints and labels, and the conditions that others than the kubelet set."""
    node = answers.node
    if isinstance(node, Missing):
        yield from ((f"kubernetes.node.{name}", node, "text") for name in ("name", "all_taints", "labels", "conditions"))
        return
    yield "kubernetes.node.name", node.name, "text"
    taints = [f"{one.key}={one.value}:{one.effect}" if one.value else f"{one.key}:{one.effect}" for one in node.taints]
    yield "kubernetes.node.all_taints", join_fitting(taints) or "none", "text"
    labels = [f"{key}={node.labels[key]}" for key in sorted(node.labels, key=_order)]
    yield "kubernetes.node.labels", join_fitting(labels) or "none", "text"
    told = of_meaning(judge(node.conditions), *_TOLD_IN_ORDER)
    yield "kubernetes.node.conditions", join_fitting(list(map(str, told))) or "none", "text"


def _order(label: str) -> tuple[int, str]:
    if label.startswith(_LAST_LABELS):
        return len(_FIRST_LABELS) + 1, label
    return next((place for place, domain in enumerate(_FIRST_LABELS) if label.startswith(domain)), len(_FIRST_LABELS)), label
