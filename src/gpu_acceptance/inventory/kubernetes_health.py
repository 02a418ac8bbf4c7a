"""What of a Kubernetes node is judged, by topic: metric, answer, unit, and what it is of. docs/limits.md explains each. Pure."""

from collections.abc import Iterator, Sequence

from gpu_acceptance.inventory.answer import Answer, Missing, Why, named
from gpu_acceptance.inventory.kubernetes import GPU, Node, Pod, Taint, Told

Findings = Iterator[tuple[str, Answer[bool | int], str, str]]

# Of Kubernetes itself (its documentation, Node Status): True is bad. What others write into a node means what they like.
_PRESSURE = ("MemoryPressure", "DiskPressure", "PIDPressure")
_NETWORK = ("NetworkUnavailable",)  # of clusters whose network sets it
_BAD_TAINTS = "node.kubernetes.io/"  # Kubernetes taints so a node that has a fault, or that somebody cordoned


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
    yield "kubernetes.node.pressure", _no_condition(found, lacking) if lacking else len(bad), "count", named(bad)
    taints = bad_taints(found.taints)
    yield "kubernetes.node.taints", len(taints), "count", named(taints)


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
    yield "kubernetes.devices.withdrawn", number, "count", named([f"{one.resource} {one.allocatable} of {one.capacity}" for one in lost])


def pods(told: Told) -> Findings:
    """One pod of this run is on the node, and no other one with a GPU."""
    found = told.pods
    own = None if isinstance(found, Missing) else next((pod for pod in found if pod.uid == told.own), None)
    if isinstance(found, Missing) or own is None:
        lack = found if isinstance(found, Missing) else Missing(Why.NOT_THERE, f"no pod of uid {told.own} on this node"[:200])
        yield from _unknown("pods", lack, same_run="count", others="count")
        return
    same = [pod for pod in found if pod is own or (own.owner and pod.owner == own.owner)]
    yield "kubernetes.pods.same_run", len(same), "count", named([pod.name for pod in same])
    others = [pod.name + how for pod in found if pod not in same and (how := _how_it_has_devices(pod)) is not None]
    yield "kubernetes.pods.others", len(others), "count", named(others)


def _how_it_has_devices(pod: Pod) -> str | None:
    """None where it has none. What a claim is for another object says, which this run may not read: it may well be a GPU."""
    if pod.num_gpus:
        return ""
    return " (by a resource claim)" if pod.spec.get("resourceClaims") else None
