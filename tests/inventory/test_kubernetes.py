"""A pod's node, from a server that speaks like the API of Kubernetes, over TLS."""

import copy
import dataclasses

import kubernetes_validate
import pytest
from api_server import NODE, TOKEN, cluster, pod

from gpu_acceptance.inventory import kubernetes, kubernetes_health, kubernetes_own
from gpu_acceptance.inventory.answer import Missing, Why

pytestmark = pytest.mark.needs("openssl")

WELL = {
    "kubernetes.node.ready": (True, "KubeletReady"),
    "kubernetes.node.pressure": (0, ""),
    "kubernetes.node.faults": (0, ""),
    "kubernetes.node.taints": (0, ""),
    "kubernetes.devices.gpus": (8, ""),
    "kubernetes.devices.withdrawn": (0, ""),
    "kubernetes.pods.same_run": (1, "default/gpu-acceptance-0-x7f2q"),
    "kubernetes.pods.others": (0, ""),
}


def found(api):
    told = kubernetes_own.read(api.environment)
    topics = (kubernetes_health.node, kubernetes_health.devices, kubernetes_health.pods)
    return {metric: (value, detail) for topic in topics for metric, value, _, detail in topic(told)}


def differing(api):
    now = found(api)
    assert now.keys() == WELL.keys()
    return {metric.removeprefix("kubernetes."): answer for metric, answer in now.items() if answer != WELL[metric]}


def test_the_server_answers_in_the_form_of_kubernetes(api):
    kubernetes_validate.validate(api.node, kubernetes_validate.latest_version(), strict=True)
    for one in api.pods:
        kubernetes_validate.validate({"apiVersion": "v1", "kind": "Pod", **one}, kubernetes_validate.latest_version(), strict=True)


def test_a_node_that_is_well(api):
    assert found(api) == WELL
    assert api.asked == [f"/api/v1/nodes/{NODE}", f"/api/v1/pods?fieldSelector=spec.nodeName%3D{NODE}"]


def condition(api, name):
    return next(one for one in api.node["status"]["conditions"] if one["type"] == name)


def set_condition(name, **values):
    return lambda api: condition(api, name).update(values)


def add_pod(name, uid, owner, gpus, **more):
    return lambda api: api.pods.append(pod(name, uid, owner, gpus, **more))


def withdraw(api):
    api.node["status"]["allocatable"].update({"nvidia.com/gpu": "7", "rdma/rdma_shared_device_a": "0"})


def stop_plugin(api):
    for numbers in (api.node["status"]["capacity"], api.node["status"]["allocatable"]):
        del numbers["nvidia.com/gpu"]


def cordon(*taints):
    return lambda api: api.node.update(spec={"unschedulable": True, "taints": list(taints)})


def hide_pod(api):
    api.environment["POD_UID"] = "another"


NO_DRIVER = "no nvidia.com/gpu and no gpu.nvidia.com: neither a device plugin nor a DRA driver runs"
NOT_LISTED = (Missing(Why.NOT_THERE, "no pod of uid another on this node"), "")


@pytest.mark.parametrize(
    ("changes", "found_now"),
    [
        *(
            ([set_condition("Ready", status=status, reason="NodeStatusUnknown")], {"node.ready": (False, "NodeStatusUnknown")})
            for status in ("False", "Unknown")
        ),
        *(([set_condition("Ready", reason=reason)], {"node.ready": (True, "no reason")}) for reason in ({}, None, "")),
        (
            [set_condition("DiskPressure", status="True"), set_condition("NetworkUnavailable", status="Unknown")],
            {"node.pressure": (2, "DiskPressure True (kubelet: of the kubelet), NetworkUnavailable Unknown (kubelet: of the kubelet)")},
        ),
        ([lambda api: api.node["status"]["conditions"].remove(condition(api, "NetworkUnavailable"))], {}),  # of some networks only
        (
            [cordon({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"})],
            {"node.taints": (1, "node.kubernetes.io/unschedulable")},
        ),
        ([cordon({"key": "site.example/own", "effect": "NoSchedule"})], {}),  # a site's own taint is no fault
        ([cordon()], {}),
        (
            [withdraw],
            {"devices.gpus": (7, ""), "devices.withdrawn": (1001, "nvidia.com/gpu 7 of 8, rdma/rdma_shared_device_a 0 of 1k")},
        ),
        ([stop_plugin], {"devices.gpus": (0, NO_DRIVER)}),
        (
            [add_pod("gpu-acceptance-1-k2m9d", "pod-uid-9", "job-uid-1", "8")],
            {"pods.same_run": (2, "default/gpu-acceptance-0-x7f2q, default/gpu-acceptance-1-k2m9d")},
        ),
        *(
            ([add_pod("training-7", "pod-uid-9", "job-uid-9", "1", resource=resource)], {"pods.others": (1, "default/training-7")})
            for resource in ("nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb")
        ),
        ([hide_pod], {"pods.same_run": NOT_LISTED, "pods.others": NOT_LISTED}),
    ],
)
def test_one_difference_is_found_and_no_other(api, changes, found_now):
    for change in changes:
        change(api)
    assert differing(api) == found_now


@pytest.mark.parametrize(("name", "metric"), [("Ready", "node.ready"), ("PIDPressure", "node.pressure")])
def test_a_condition_that_is_not_there_is_not_measured(api, name, metric):
    api.node["status"]["conditions"].remove(condition(api, name))
    assert differing(api)[metric][0] == Missing(Why.NOT_THERE, f"node {NODE} has no condition {name}")


def test_a_pod_of_another_form_costs_itself_alone(api):
    api.pods.append(pod("odd", "uid-odd", "", "1"))
    api.pods[-1]["spec"]["containers"] = None
    lack = Missing(Why.UNREADABLE, "pod default/odd of the API: TypeError: Value after * must be an iterable, not NoneType")
    assert differing(api) == {"pods.others": (lack, "")}
    api.pods.append(pod("training-7", "pod-uid-9", "job-uid-9", "1"))
    assert differing(api) == {"pods.others": (1, "default/training-7")}


def test_a_pod_whose_claims_have_another_form_costs_itself_alone(api):
    api.pods.append(pod("odd", "uid-odd"))
    api.pods[-1]["spec"]["resourceClaims"] = [{"name": "gpus", "resourceClaimName": "no name"}]
    lack = Missing(Why.UNREADABLE, "pod default/odd of the API: no name of a claim: 'no name'")
    assert differing(api) == {"pods.others": (lack, "")}


def test_many_others_are_counted_and_not_all_named(api):
    api.pods += [pod(f"job-{number}", f"uid-{number}", "", "1") for number in range(10)]
    number, detail = found(api)["kubernetes.pods.others"]
    assert (number, detail) == (10, f"{', '.join(f'default/job-{one}' for one in range(8))}, 2 more")


def lacks(api):
    """The reasons why node and pods are unknown."""
    now = found(api)
    assert all(isinstance(value, Missing) for value, _ in now.values())
    return now["kubernetes.node.ready"][0], now["kubernetes.pods.others"][0]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        *(((status, "{}"), f"status {status}, 2 bytes") for status in (401, 403)),
        ((404, "{}"), "status 404, 2 bytes"),
        ((500, "no"), "status 500, 2 bytes"),
        ((200, "<html>"), "JSONDecodeError: Expecting value: line 1 column 1 (char 0)"),
        ((200, "[]"), "no object"),
        ((200, "[" * 100_000), "RecursionError: maximum recursion depth exceeded while decoding a JSON array from a unicode string"),
    ],
)
def test_an_answer_without_an_object(api, answer, said):
    api.answer = answer
    why = Why.NOT_PERMITTED if answer[0] in {401, 403} else Why.UNREADABLE
    node, pods = lacks(api)
    assert (node, pods.missing) == (Missing(why, f"GET /api/v1/nodes/{NODE}: {said}"), why)


def test_a_redirect_does_not_get_the_token(api, tmp_path):
    with cluster(tmp_path / "elsewhere") as other:
        api.answer = (302, f"https://127.0.0.1:{other.environment['KUBERNETES_SERVICE_PORT']}/api/v1/nodes/{NODE}")
        assert lacks(api)[0].detail.startswith(f"GET /api/v1/nodes/{NODE}: status 302, ")
    assert other.asked == []


def test_a_server_of_another_authority_does_not_get_the_token(api, tmp_path):
    with cluster(tmp_path / "elsewhere") as other:
        port = other.environment["KUBERNETES_SERVICE_PORT"]
        node, _ = lacks(dataclasses.replace(api, environment={**api.environment, "KUBERNETES_SERVICE_PORT": port}))
    assert node.missing is Why.UNREADABLE
    assert "certificate verify failed" in node.detail
    assert other.asked == []


def test_a_server_that_is_down(api):
    environment = {**api.environment, "KUBERNETES_SERVICE_PORT": "1"}
    node, _ = lacks(dataclasses.replace(api, environment=environment))
    assert node == Missing(Why.UNREADABLE, f"GET /api/v1/nodes/{NODE}: ConnectionRefusedError: [Errno 111] Connection refused")


def test_a_pod_without_a_token(api):
    (api.account / "token").unlink()
    assert lacks(api)[0] == Missing(Why.NOT_THERE, str(api.account / "token"))


@pytest.mark.parametrize("token", ["", "a\nb", "a b"])
def test_a_text_that_is_no_token_is_not_sent_and_not_repeated(api, token):
    (api.account / "token").write_text(token)
    node, _ = lacks(api)
    assert node.missing is Why.UNREADABLE
    assert node.detail.startswith("KUBERNETES_SERVICE_HOST='127.0.0.1', KUBERNETES_SERVICE_PORT='")
    assert node.detail.endswith("', or the token is malformed")
    assert api.asked == []


@pytest.mark.parametrize(("name", "value"), [("NODE_NAME", ""), ("NODE_NAME", "../pods"), ("POD_UID", "")])
def test_a_pod_without_the_name_of_its_node(api, name, value):
    api.environment[name] = value
    told = {"NODE_NAME": NODE, "POD_UID": "pod-uid-1", name: value}
    said = f"NODE_NAME={told['NODE_NAME']!r}, POD_UID={told['POD_UID']!r}: deploy/kubernetes/components/api sets both"
    assert lacks(api) == (Missing(Why.NOT_THERE, said), Missing(Why.NOT_THERE, said))
    assert api.asked == []


def cut(plain, *path):
    """Return a copy without the value at this path."""
    changed = copy.deepcopy(plain)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]
    return changed


@pytest.mark.parametrize(
    ("change", "said"),
    [
        *(
            (lambda api, path=path: setattr(api, "node", cut(api.node, *path)), f"KeyError: '{path[-1]}'")
            for path in (("status",), ("status", "capacity"), ("status", "allocatable"), ("status", "conditions"), ("metadata",))
        ),
        (lambda api: api.node["status"].update(conditions={"Ready": "True"}), "no list of conditions: {'Ready': 'True'}"),
    ],
)
def test_a_node_of_another_form_is_unreadable(api, change, said):
    change(api)
    node = found(api)["kubernetes.node.ready"][0]
    assert node.missing is Why.UNREADABLE
    assert node.detail.startswith(f"node of the API: {said}")


def test_a_list_that_goes_on_is_not_all(api):
    api.list_metadata["continue"] = "more"
    assert found(api)["kubernetes.pods.others"][0] == Missing(Why.UNREADABLE, "pods of the API: the list goes on")


def test_a_token_is_in_no_answer(api):
    api.answer = (200, f'"{TOKEN}')
    assert TOKEN not in repr(kubernetes_own.read(api.environment))


def test_a_process_in_a_pod():
    assert kubernetes.is_in_pod({"KUBERNETES_SERVICE_HOST": "192.0.2.1"})
    assert not kubernetes.is_in_pod({})
