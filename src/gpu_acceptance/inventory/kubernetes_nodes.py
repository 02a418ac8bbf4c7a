"""The nodes of a cluster that a run could have been on, by the word of its own pod: which of them did it not see? Facts, none is judged."""

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from gpu_acceptance.inventory import kubernetes_api
from gpu_acceptance.inventory.answer import Answer, Missing, Why, as_much_as_fits
from gpu_acceptance.inventory.kubernetes import GPU, Taint, Told, labels_of, number_of, taints_of
from gpu_acceptance.inventory.kubernetes_health import bad_taints

Facts = Iterator[tuple[str, Answer[int] | Answer[str], str]]

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
# Of what a node's features are called some hundred are flags of its CPU; what it is and where it stands comes first.
_FIRST_LABELS = ("nvidia.com/", "topology.kubernetes.io/", "node.kubernetes.io/", "kubernetes.io/")
_LAST_LABELS = ("feature.node.kubernetes.io/", "beta.kubernetes.io/")
_WHOLE = re.compile(r"-?[0-9]{1,18}")  # of a label that Gt and Lt compare


class Candidate(NamedTuple):
    """A node that the scheduler may put a pod of the run on, by selector and affinity."""

    name: str
    taints: tuple[Taint, ...]


def read(told: Told, environ: Mapping[str, str] = os.environ) -> Answer[tuple[Candidate, ...]]:
    """All nodes that the pod of this process selects; those with GPUs where it selects none. One request for each hundred nodes."""
    if isinstance(told.pods, Missing):
        return told.pods
    own = next((pod for pod in told.pods if pod.uid == told.own), None)
    if own is None:
        return Missing(Why.NOT_THERE, f"no pod of uid {told.own} on this node"[:200])
    found = kubernetes_api.items("/api/v1/nodes", environ)
    if isinstance(found, Missing):
        return found
    return kubernetes_api.parsed({"nodes": found, "spec": own.spec}, _candidates)


def _candidates(told: dict[str, Any]) -> tuple[Candidate, ...]:
    return tuple(Candidate(_name(node), taints_of(node)) for node in told["nodes"] if _selects(told["spec"], node))


def _name(node: dict[str, Any]) -> str:
    name: str = node["metadata"]["name"]
    if not kubernetes_api.NAME.fullmatch(name):
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
    yield "kubernetes.nodes.untested_names", as_much_as_fits([_said(one) for one in others]) or "none", "text"


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
    yield "kubernetes.node.all_taints", as_much_as_fits([_of_taint(one) for one in node.taints]) or "none", "text"
    labels = [f"{key}={node.labels[key]}" for key in sorted(node.labels, key=_order)]
    yield "kubernetes.node.labels", as_much_as_fits(labels) or "none", "text"


def _of_taint(taint: Taint) -> str:
    return f"{taint.key}={taint.value}:{taint.effect}" if taint.value else f"{taint.key}:{taint.effect}"


def _order(label: str) -> tuple[int, str]:
    if label.startswith(_LAST_LABELS):
        return len(_FIRST_LABELS) + 1, label
    return next((place for place, domain in enumerate(_FIRST_LABELS) if label.startswith(domain)), len(_FIRST_LABELS)), label
