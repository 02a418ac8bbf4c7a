"""The node of this pod, and the pods on it, from the API of Kubernetes."""

import os
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from gpu_acceptance.inventory import kubernetes, kubernetes_dra
from gpu_acceptance.inventory.answer import Answer, Missing, Why, known, one_line, parsed, then
from gpu_acceptance.inventory.kubernetes_node import GPU, Devices, Node, amount, read_node

_NODE, _POD = "NODE_NAME", "POD_UID"  # deploy/kubernetes/components/api sets them
_WITH_GPU = (GPU, "nvidia.com/mig-")  # whole, shared (nvidia.com/gpu.shared), and a part of one


class Pod(NamedTuple):
    """A pod that has not ended. `owner`: the uid of its controller. `claims`: names of its resource claims, in its namespace.

    One of another form is a pod all the same, without that.
    """

    name: str
    uid: str
    owner: str
    gpus: Answer[tuple[str, ...]]  # resources of GPUs of which it has more than none
    claims: Answer[tuple[str, ...]]
    spec: Mapping[str, Any]  # as the API gives it


class Answers(NamedTuple):
    """Answers of the API to this pod, whose uid is `own`."""

    node: Answer[Node]
    pods: Answer[tuple[Pod, ...]]
    own: str
    slices: Answer[tuple[Devices, ...]] = ()  # devices by claim: asked for where the node has no GPUs of a device plugin
    drivers: Mapping[str, Answer[frozenset[str]]] = MappingProxyType({})  # of the devices by claim that each other pod has


def read(environ: Mapping[str, str] = os.environ) -> Answers:
    """Make two requests to the API of this cluster, of at most 10 s each; more where devices are given by resource claim."""
    name, own = environ.get(_NODE, ""), environ.get(_POD, "")
    if not (kubernetes.NAME.fullmatch(name) and own):
        lack = Missing(Why.NOT_THERE, f"{_NODE}={name!r}, {_POD}={own!r}: deploy/kubernetes/components/api sets both"[:200])
        return Answers(lack, lack, own)
    node = parsed(kubernetes.get(f"/api/v1/nodes/{name}", environ), "node of the API", read_node)
    pods = parsed(kubernetes.get(f"/api/v1/pods?fieldSelector=spec.nodeName%3D{name}", environ), "pods of the API", _pods)
    # The kubelet leaves the resource of a plugin that was removed at 0 (pkg/kubelet/nodestatus/setters.go).
    has_plugin = isinstance(node, Missing) or any(one.resource == GPU and one.capacity != 0 for one in node.devices)
    slices: Answer[tuple[Devices, ...]] = () if has_plugin else then(kubernetes_dra.read_pools(name, environ), kubernetes_dra.by_driver)
    claims = {pod.name: known(pod.claims) for pod in known(pods) if known(pod.claims) and pod.uid != own}
    return Answers(node, pods, own, slices, kubernetes_dra.drivers_of(claims, environ))


def _pods(answer: dict[str, Any]) -> tuple[Pod, ...]:
    if answer["metadata"].get("continue"):
        raise ValueError("the list goes on")
    return tuple(_pod(one["metadata"], one["spec"], one["status"]) for one in answer["items"] if not _has_ended(one["status"]))


def _has_ended(status: dict[str, Any]) -> bool:
    return status.get("phase") in kubernetes.DONE


def _pod(meta: dict[str, Any], spec: dict[str, Any], status: dict[str, Any]) -> Pod:
    owner = next((owner["uid"] for owner in meta.get("ownerReferences") or () if owner.get("controller")), "")
    name = one_line(f"{meta['namespace']}/{meta['name']}")
    claims = parsed(spec, f"pod {name} of the API", lambda spec: tuple(_claims(spec, status)))
    return Pod(name, meta["uid"], owner, parsed(spec, f"pod {name} of the API", _gpus_of), claims, spec)


def _gpus_of(spec: Mapping[str, Any]) -> tuple[str, ...]:
    containers = [*spec["containers"], *(spec.get("initContainers") or ())]
    limits = [item for container in containers for item in ((container.get("resources") or {}).get("limits") or {}).items()]
    # An amount that cannot be read is not none.
    return tuple(dict.fromkeys(one_line(name) for name, number in limits if name.startswith(_WITH_GPU) and amount(name, number) != 0))


def _claims(spec: dict[str, Any], status: dict[str, Any]) -> Iterator[str]:
    """Yield the names of the claims of a pod. One from a template is named in its status; until then its containers do not start."""
    made = {one["name"]: one.get("resourceClaimName") for one in status.get("resourceClaimStatuses") or ()}
    for one in spec.get("resourceClaims") or ():
        name = one.get("resourceClaimName") or made.get(one["name"])
        if name and not kubernetes.NAME.fullmatch(name):
            raise ValueError(f"no name of a claim: {name!r:.80}")
        if name:
            yield name
