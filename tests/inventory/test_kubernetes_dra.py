"""GPUs that a node gives by resource claim: slices of NVIDIA's DRA driver, and claims of other pods."""

import copy

import pytest
from api_server import JOB_UID, NODE, POD_UID, node, pod
from hypothesis import given
from hypothesis import strategies as st

from gpu_acceptance.inventory import kubernetes_health, kubernetes_own
from gpu_acceptance.inventory.answer import Missing, Why, parsed

pytestmark = pytest.mark.needs("openssl")


def gpu(number, kind="gpu", **more):
    """A device as dra-driver-nvidia-gpu 25.x writes it."""
    uuid = (
        {"uuid": {"string": f"GPU-{number}"}} if kind == "gpu" else {"uuid": {"string": "MIG-1"}, "parentUUID": {"string": f"GPU-{number}"}}
    )
    attributes = {"type": {"string": kind}, **uuid, "productName": {"string": "NVIDIA H200"}, "driverVersion": {"version": "580.82.7"}}
    capacity = {"memory": {"value": "143771Mi"}}
    return {"name": f"{kind}-{number}" + more.pop("name", ""), "attributes": attributes, "capacity": capacity, **more}


def slice_of(devices, driver="gpu.nvidia.com", name=NODE, generation=1, of=1):
    pool = {"name": name, "generation": generation, "resourceSliceCount": of}
    return {"metadata": {"name": f"{name}-{driver}-x"}, "spec": {"driver": driver, "nodeName": name, "pool": pool, "devices": devices}}


TAINT = {"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoExecute", "timeAdded": "2026-11-23T12:00:00Z"}
EIGHT = [gpu(number) for number in range(8)]


def without_plugin(made):
    for numbers in (made["status"]["capacity"], made["status"]["allocatable"]):
        numbers.pop("nvidia.com/gpu")
    return made


@pytest.fixture
def dra(api):
    """A cluster whose nodes give GPUs by claim and by no device plugin."""
    without_plugin(api.node)
    api.slices = [slice_of(EIGHT)]
    return api


def found(api):
    told = kubernetes_own.read(api.environment)
    return {
        metric.removeprefix("kubernetes."): (value, detail)
        for topic in (kubernetes_health.devices, kubernetes_health.pods)
        for metric, value, _, detail in topic(told)
    }


BY_CLAIM = "by resource claim, gpu.nvidia.com"


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1beta1", "v1alpha3"])
def test_gpus_by_claim_are_counted(dra, version):
    dra.groups = (version,)
    if version in {"v1beta1", "v1alpha3"}:
        dra.slices = [slice_of([{"name": one["name"], "basic": {key: one[key] for key in ("attributes", "capacity")}} for one in EIGHT])]
    now = found(dra)
    assert (now["devices.gpus"], now["devices.withdrawn"]) == ((8, BY_CLAIM), (0, ""))
    assert dra.asked[2:] == ["/apis", f"/apis/resource.k8s.io/{version}/resourceslices?fieldSelector=spec.nodeName%3D{NODE}&limit=100"]


def tainted(*numbers, effect="NoExecute"):
    return [one if number not in numbers else {**one, "taints": [{**TAINT, "effect": effect}]} for number, one in enumerate(EIGHT)]


@pytest.mark.parametrize(
    ("slices", "gpus", "withdrawn"),
    [
        ([slice_of(tainted(3))], 7, (1, "gpu.nvidia.com 7 of 8")),
        ([slice_of(tainted(3, 4, effect="NoSchedule"))], 6, (2, "gpu.nvidia.com 6 of 8")),
        ([slice_of(tainted(3, effect="None"))], 8, (0, "")),  # told to people, and keeps no pod away
        ([slice_of(EIGHT[:4], of=2), slice_of(EIGHT[4:], of=2)], 8, (0, "")),
        ([slice_of(EIGHT[:1], generation=1), slice_of(EIGHT, generation=2)], 8, (0, "")),  # the driver has replaced its pool
        ([slice_of([*EIGHT, *(gpu(number, "vfio") for number in range(8))])], 8, (0, "")),  # the same boards, for virtual machines
        ([slice_of([*EIGHT[:7], gpu(7, "mig", name="a"), gpu(7, "mig", name="b")])], 8, (0, "")),
        ([slice_of([])], 0, (0, "")),
        ([slice_of(EIGHT), slice_of([{"name": "mlx5-0", "taints": [TAINT]}], driver="dra.net")], 8, (1, "dra.net 0 of 1")),
        ([slice_of(EIGHT), slice_of([{"name": "channel-0"}], driver="compute-domain.nvidia.com")], 8, (0, "")),
        ([slice_of(EIGHT), slice_of(EIGHT, name="node-02")], 8, (0, "")),
    ],
)
def test_devices_of_slices(dra, slices, gpus, withdrawn):
    dra.slices = slices
    now = found(dra)
    assert (now["devices.gpus"][0], now["devices.withdrawn"]) == (gpus, withdrawn)


def test_a_pool_that_is_being_replaced_is_not_counted(dra):
    dra.slices = [slice_of(EIGHT[:4], of=2)]
    said = f"resource slices of the API: pool '{NODE}' of 'gpu.nvidia.com' is being replaced: 1 slices of generation 1"
    assert found(dra)["devices.gpus"][0] == Missing(Why.UNREADABLE, said)


ONE_CPU = {"name": "cpu-0", "taints": [TAINT]}


@pytest.mark.parametrize(
    "other",
    [
        slice_of([ONE_CPU], driver="dra.cpu"),  # https://github.com/kubernetes-sigs/dra-driver-cpu, which may taint for its own reasons
        slice_of([ONE_CPU], driver="dra.cpu", of=2),
        slice_of([{"name": "cpu-0", "taints": "x"}], driver="dra.cpu"),
    ],
)
def test_a_driver_of_other_devices_changes_nothing(dra, other):
    before = found(dra)
    dra.slices.append(other)
    assert found(dra) == before
    assert elsewhere(dra)["kubernetes.nodes.untested"] == 0


def test_a_pool_of_network_devices_that_is_being_replaced_leaves_the_gpus_known(dra):
    dra.slices.append(slice_of([{"name": "mlx5-0"}], driver="dra.net", of=2))
    now = found(dra)
    assert now["devices.gpus"] == (8, BY_CLAIM)
    assert now["devices.withdrawn"][0].missing is Why.UNREADABLE
    dra.slices[0] = slice_of(tainted(3))
    assert found(dra)["devices.withdrawn"][0] == 1


def test_slices_that_may_not_be_read_are_no_proof_of_no_gpu(dra):
    dra.forbidden = "resourceslices"
    value, _ = found(dra)["devices.gpus"]
    assert value == Missing(Why.NOT_PERMITTED, "GET /apis/resource.k8s.io/v1/resourceslices: status 403, 2 bytes")


def test_a_kubernetes_without_claims_has_no_gpu_by_claim(dra):
    dra.groups = ()
    assert found(dra)["devices.gpus"][0] == 0


def test_a_version_that_this_program_does_not_read(dra):
    dra.groups = ("v9",)
    said = "versions of the API: resource.k8s.io has ['v9']; this program reads v1, v1beta2, v1beta1, v1alpha3"
    assert found(dra)["devices.gpus"][0] == Missing(Why.UNREADABLE, said)


def with_old_plugin(made):
    """A node whose device plugin was removed: the kubelet leaves its resource at 0 (pkg/kubelet/nodestatus/setters.go)."""
    for numbers in (made["status"]["capacity"], made["status"]["allocatable"]):
        numbers["nvidia.com/gpu"] = "0"
    return made


def test_a_node_that_moved_from_the_device_plugin_to_claims(api):
    with_old_plugin(api.node)
    api.slices = [slice_of(tainted(3))]
    now = found(api)
    assert (now["devices.gpus"], now["devices.withdrawn"]) == ((7, BY_CLAIM), (1, "gpu.nvidia.com 7 of 8"))


@pytest.mark.parametrize("groups", [(), ("v1",)])
def test_a_node_with_neither_a_plugin_nor_a_driver_has_no_gpu(api, groups):
    with_old_plugin(api.node)
    api.groups = groups
    assert found(api)["devices.gpus"] == (0, "")


def test_a_plugin_that_was_removed_is_no_proof_of_no_gpu_where_slices_may_not_be_read(api):
    with_old_plugin(api.node)
    api.forbidden = "resourceslices"
    assert found(api)["devices.gpus"][0].missing is Why.NOT_PERMITTED


def test_a_node_with_a_device_plugin_is_not_asked_for_slices(api):
    assert found(api)["devices.gpus"] == (8, "")
    assert len(api.asked) == 2


def claim(*drivers, **more):
    results = [{"request": "r", "driver": driver, "pool": NODE, "device": "gpu-0", **more} for driver in drivers]
    return {"kind": "ResourceClaim", "metadata": {"name": "c"}, "status": {"allocation": {"devices": {"results": results}}}}


def with_claim(name="training-7", uid="pod-uid-9", made="training-7-gpus-x"):
    one = pod(name, uid, "job-uid-9")
    one["spec"]["resourceClaims"] = [{"name": "gpus", "resourceClaimTemplateName": "eight-gpus"}]
    one["status"]["resourceClaimStatuses"] = [{"name": "gpus", "resourceClaimName": made}]
    return one


@pytest.mark.parametrize(
    ("held", "others"),
    [
        (claim("gpu.nvidia.com"), (1, "default/training-7 (by a resource claim)")),
        (claim("dra.net", "gpu.nvidia.com"), (1, "default/training-7 (by a resource claim)")),
        (claim("dra.net"), (0, "")),
        (claim("compute-domain.nvidia.com"), (0, "")),  # channels of IMEX
        (claim("gpu.nvidia.com", adminAccess=True), (0, "")),  # a monitor
        ({"metadata": {"name": "c"}, "status": {}}, (0, "")),  # not allocated: its pod does not run
    ],
)
def test_another_pod_has_the_devices_that_its_claim_holds(api, held, others):
    api.pods.append(with_claim())
    api.claims = {"training-7-gpus-x": held}
    assert found(api)["pods.others"] == others


def test_a_claim_that_is_named_by_the_pod_itself(api):
    api.pods.append(with_claim())
    api.pods[-1]["spec"]["resourceClaims"] = [{"name": "gpus", "resourceClaimName": "shared"}]
    api.claims = {"shared": claim("gpu.nvidia.com")}
    assert found(api)["pods.others"][0] == 1


def test_a_claim_that_may_not_be_read_proves_nothing_and_a_pod_with_gpus_still_counts(api):
    api.pods.append(with_claim())
    api.forbidden = "resourceclaims"
    value, _ = found(api)["pods.others"]
    assert value.missing is Why.NOT_PERMITTED
    assert "/resourceclaims/training-7-gpus-x: status 403" in value.detail
    api.pods.append(pod("other-1", "pod-uid-10", "job-uid-10", "1"))
    assert found(api)["pods.others"] == (1, "default/other-1")


def test_own_claims_are_not_asked_for(dra):
    dra.pods[0] = {**with_claim("gpu-acceptance-0-x7f2q", POD_UID), "metadata": dra.pods[0]["metadata"]}
    assert found(dra)["pods.same_run"][0] == 1
    assert not any("resourceclaims" in path for path in dra.asked)


def test_many_claims_are_not_asked_for(api):
    api.pods += [with_claim(f"training-{number}", f"uid-{number}") for number in range(101)]
    said = "the pods of this node have 101 resource claims; at most 100 are read"
    assert found(api)["pods.others"][0] == Missing(Why.UNREADABLE, said)


def elsewhere(api):
    told = kubernetes_own.read(api.environment)
    candidates = kubernetes_health.read_candidates(told, api.environment)
    return {metric: value for metric, value, _ in kubernetes_health.elsewhere_facts(told, candidates, [NODE])}


def test_nodes_with_gpus_by_claim_are_told_as_not_tested(dra):
    for name in ("node-02", "cpu-01"):
        other = without_plugin(node())
        other["metadata"].update(name=name, labels={})
        dra.other_nodes.append(other)
    dra.slices += [slice_of(EIGHT, name="node-02"), slice_of([{"name": "mlx5-0"}], driver="dra.net", name="cpu-01")]
    assert elsewhere(dra) == {"kubernetes.nodes.untested": 1, "kubernetes.nodes.untested_names": "node-02"}


@pytest.mark.parametrize("own", [lambda made: made, with_old_plugin, without_plugin])
def test_nodes_with_gpus_by_claim_are_told_whatever_gives_the_own_node_its_gpus(api, own):
    own(api.node)
    for name, change in (("node-02", with_old_plugin), ("node-03", lambda made: made), ("cpu-01", without_plugin)):
        api.other_nodes.append(change(node()))
        api.other_nodes[-1]["metadata"].update(name=name, labels={})
    api.slices = [slice_of(EIGHT, name="node-02")]
    assert elsewhere(api) == {"kubernetes.nodes.untested": 2, "kubernetes.nodes.untested_names": "node-02; node-03"}
    api.groups = ()
    assert elsewhere(api) == {"kubernetes.nodes.untested": 1, "kubernetes.nodes.untested_names": "node-03"}


def test_without_a_right_to_slices_a_node_without_a_plugin_leaves_the_number_unknown(api):
    api.forbidden = "resourceslices"
    assert elsewhere(api)["kubernetes.nodes.untested"] == 0
    api.other_nodes = [with_old_plugin(node())]
    assert elsewhere(api)["kubernetes.nodes.untested"].missing is Why.NOT_PERMITTED


ODD = st.one_of(st.none(), st.text(), st.integers(), st.floats(), st.lists(st.text()), st.dictionaries(st.text(), st.text()))
WHOLE = [slice_of(tainted(3)), slice_of([*EIGHT, gpu(7, "mig")], name="node-02"), claim("gpu.nvidia.com"), with_claim()]


def spoil(data, plain):
    """Put an odd value in some place."""
    inner, key = {"it": plain}, "it"
    outer = inner
    while isinstance(inner[key], dict | list) and inner[key] and data.draw(st.booleans()):
        inner = inner[key]
        key = data.draw(st.sampled_from(sorted(inner) if isinstance(inner, dict) else range(len(inner))))
    inner[key] = data.draw(ODD)
    return outer["it"]


@given(st.data())
def test_objects_of_any_form_are_read_or_unreadable(data):
    one = spoil(data, copy.deepcopy(data.draw(st.sampled_from(WHOLE))))
    readers = (
        lambda one: kubernetes_own.by_driver(kubernetes_own._pools([one])),
        lambda one: kubernetes_own.nodes_with("gpu.nvidia.com", kubernetes_own._pools([one])),
        kubernetes_own._drivers_in,
        lambda one: kubernetes_own._pods({"metadata": {}, "items": [one, pod("mine", "uid", JOB_UID, "8")]}),
    )
    for read in readers:
        value = parsed(one, "x", read)
        assert not isinstance(value, Missing) or value.missing is Why.UNREADABLE
