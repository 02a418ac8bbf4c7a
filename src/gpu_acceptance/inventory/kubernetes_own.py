"""The node of this pod and the pods on it, from the API of Kubernetes; and devices that a driver gives by resource claim.

Kubernetes, Dynamic Resource Allocation, https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/. Its API is
resource.k8s.io, v1 since 1.34. Before v1beta2 the fields of a device stand in `basic`.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from gpu_acceptance.inventory import kubernetes
from gpu_acceptance.inventory.answer import Answer, Missing, Why, all_of, known, one_line, parsed, then
from gpu_acceptance.inventory.kubernetes import get, items
from gpu_acceptance.inventory.kubernetes_node import GPU, Devices, Node, amount, read_node
from gpu_acceptance.inventory.node_conditions import speaks_of_hardware

_NODE, _POD = "NODE_NAME", "POD_UID"  # deploy/kubernetes/components/api sets them
_WITH_GPU = (GPU, "nvidia.com/mig-")  # whole, shared (nvidia.com/gpu.shared), and a part of one
GPU_DRIVER = "gpu.nvidia.com"  # NVIDIA's DRA driver, its whole GPUs and their MIG parts; compute-domain.nvidia.com gives channels
_NETWORK_DRIVERS = ("dra.net",)  # DRANET, https://github.com/kubernetes-sigs/dranet: its name does not say that it gives RDMA devices
_SLICES = "resource slices of the API"
_GROUP = "resource.k8s.io"
_VERSIONS = ("v1", "v1beta2", "v1beta1", "v1alpha3")
_PARTS_OF_GPU = ("gpu", "mig")  # and not vfio: the same GPU again, for a virtual machine
_KEEPS_PODS_AWAY = ("NoSchedule", "NoExecute")  # effects of a taint of a device
_MOST_CLAIMS = 100  # of the pods of one node


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
    slices: Answer[tuple[Devices, ...]] = () if has_plugin else then(read_pools(name, environ), by_driver)
    claims = {pod.name: known(pod.claims) for pod in known(pods) if known(pod.claims) and pod.uid != own}
    return Answers(node, pods, own, slices, drivers_of(claims, environ))


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


# --- devices by claim ----------------------------------------------------------------------------------------------------


class Device(NamedTuple):
    """A device in a slice. `board`: equal for all parts of one GPU. `taints`: keys that keep pods away."""

    node: str
    driver: str
    board: str
    taints: tuple[str, ...]


class Pool(NamedTuple):
    """A pool of devices of one driver. `devices`: missing while the driver replaces its slices."""

    driver: str
    devices: Answer[tuple[Device, ...]]


def read_pools(node: str, environ: Mapping[str, str] = os.environ) -> Answer[tuple[Pool, ...]]:
    """Return the pools of a node, or of all nodes for an empty name; not there where this Kubernetes has no resource claims."""
    query = {"fieldSelector": f"spec.nodeName={node}"} if node else {}
    found = then(_root(environ), lambda root: items(f"{root}/resourceslices", environ, **query))
    return parsed(found, _SLICES, _pools)


def nodes_with(driver: str, pools: Iterable[Pool]) -> Answer[frozenset[str]]:
    """Return the nodes with a device of this driver."""
    found = all_of(pool.devices for pool in pools if pool.driver == driver)
    return then(found, lambda found: frozenset(one.node for devices in found for one in devices))


def _root(environ: Mapping[str, str]) -> Answer[str]:
    groups = parsed(get("/apis", environ), "groups of the API", lambda answer: [one for one in answer["groups"] if one["name"] == _GROUP])
    return parsed(groups, "versions of the API", lambda groups: _newest(groups)) if groups else _no_claims(groups)


def _no_claims(groups: object) -> Missing:
    return groups if isinstance(groups, Missing) else Missing(Why.NOT_THERE, f"this Kubernetes has no {_GROUP}: no devices by claim")


def _newest(groups: list[dict[str, Any]]) -> str:
    offered = {one["version"] for group in groups for one in group["versions"]}
    version = next((version for version in _VERSIONS if version in offered), None)
    if version is None:
        raise ValueError(f"{_GROUP} has {sorted(offered)!r:.60}; this program reads {', '.join(_VERSIONS)}")
    return f"/apis/{_GROUP}/{version}"


def _pools(slices: list[dict[str, Any]]) -> tuple[Pool, ...]:
    specs: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for spec in (one["spec"] for one in slices):
        specs.setdefault((one_line(spec["driver"]), one_line(spec["pool"]["name"])), []).append(spec)
    return tuple(Pool(driver, parsed(of_pool, _SLICES, partial(_devices, driver, pool))) for (driver, pool), of_pool in specs.items())


def _devices(driver: str, pool: str, specs: list[dict[str, Any]]) -> tuple[Device, ...]:
    """Return the devices of the newest generation of a pool, which must be complete: a driver replaces its slices one by one."""
    newest = max(int(spec["pool"]["generation"]) for spec in specs)
    now = [spec for spec in specs if int(spec["pool"]["generation"]) == newest]
    if len(now) != max(int(spec["pool"]["resourceSliceCount"]) for spec in now):
        raise ValueError(f"pool {pool!r:.60} of {driver!r:.60} is being replaced: {len(now)} slices of generation {newest}")
    return tuple(device for spec in now if spec.get("nodeName") for device in _devices_of(driver, spec))


def _devices_of(driver: str, spec: dict[str, Any]) -> Iterable[Device]:
    for one in spec.get("devices") or ():
        fields: dict[str, Any] = {**one, **(one.get("basic") or {})}
        attributes = fields.get("attributes") or {}
        kind, uuid, parent = (_text_of(attributes, driver, name) for name in ("type", "uuid", "parentUUID"))
        if driver == GPU_DRIVER and kind and kind not in _PARTS_OF_GPU:
            continue
        taints = [one_line(taint["key"]) for taint in fields.get("taints") or () if taint["effect"] in _KEEPS_PODS_AWAY]
        board = parent or uuid if driver == GPU_DRIVER else ""
        yield Device(one_line(spec["nodeName"]), driver, board or f"{spec['pool']['name']}/{one['name']}", tuple(taints))


def _text_of(attributes: Mapping[str, Any], driver: str, name: str) -> str:
    """Return an attribute, whose name may carry the domain of its driver."""
    value = attributes.get(name) or attributes.get(f"{driver}/{name}") or {}
    return one_line(value["string"]) if value.get("string") else ""


def by_driver(pools: Iterable[Pool]) -> tuple[Devices, ...]:
    """Return the devices of one node as amounts: a driver is a resource, and what is tainted is not allocatable.

    Drivers of other things than GPUs and what connects them are left out: they taint for reasons of their own.
    """
    found: dict[str, list[Answer[tuple[Device, ...]]]] = {}
    for pool in pools:
        if pool.driver in _NETWORK_DRIVERS or speaks_of_hardware(pool.driver):
            found.setdefault(pool.driver, []).append(pool.devices)
    return tuple(_amount(driver, all_of(answers)) for driver, answers in sorted(found.items()))


def _amount(driver: str, pools: Answer[tuple[tuple[Device, ...], ...]]) -> Devices:
    if isinstance(pools, Missing):
        return Devices(driver, pools, pools, "")
    boards: dict[str, bool] = {}
    for one in (one for devices in pools for one in devices):
        boards[one.board] = boards.get(one.board, False) or bool(one.taints)
    of, left = len(boards), len(boards) - sum(boards.values())
    return Devices(driver, Fraction(of), Fraction(left), f"{left} of {of}")


def drivers_of(claims: Mapping[str, Iterable[str]], environ: Mapping[str, str] = os.environ) -> dict[str, Answer[frozenset[str]]]:
    """Return by pod the drivers of the devices that its claims hold. `claims`: the names by pod, `namespace/name`. One request a claim."""
    wanted = {pod: [(pod.partition("/")[0], name) for name in names] for pod, names in claims.items()}
    number = sum(map(len, wanted.values()))
    if number > _MOST_CLAIMS:
        lack = Missing(Why.UNREADABLE, f"the pods of this node have {number} resource claims; at most {_MOST_CLAIMS} are read")
        return dict.fromkeys(wanted, lack)
    root = _root(environ) if number else ""
    return {pod: _all_drivers(root, keys, environ) for pod, keys in wanted.items()}


def _all_drivers(root: Answer[str], keys: Iterable[tuple[str, str]], environ: Mapping[str, str]) -> Answer[frozenset[str]]:
    found = all_of(_drivers(root, namespace, name, environ) for namespace, name in keys)
    return then(found, lambda found: frozenset().union(*found))


def _drivers(root: Answer[str], namespace: str, name: str, environ: Mapping[str, str]) -> Answer[frozenset[str]]:
    claim = then(root, lambda root: get(f"{root}/namespaces/{namespace}/resourceclaims/{name}", environ))
    return parsed(claim, "resource claim of the API", _drivers_in)


def _drivers_in(claim: dict[str, Any]) -> frozenset[str]:
    """Return the drivers of what a claim holds; adminAccess looks at a device that somebody else may hold (Kubernetes, Admin access)."""
    results = (((claim.get("status") or {}).get("allocation") or {}).get("devices") or {}).get("results") or ()
    return frozenset(one_line(one["driver"]) for one in results if not one.get("adminAccess"))
