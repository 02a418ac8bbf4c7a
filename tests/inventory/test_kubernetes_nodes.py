"""Nodes of a cluster that the selector and the affinity of a run's pod allow, and those of them without a pod of the run."""

import copy

import kubernetes_validate
import pytest
from api_server import NODE, node

from gpu_acceptance.inventory import kubernetes_health, kubernetes_own
from gpu_acceptance.inventory.answer import MOST_TEXT, Missing, Why

pytestmark = pytest.mark.needs("openssl")

PRESENT = {"nvidia.com/gpu.present": "true"}


def named(name, labels=PRESENT, gpus="8", **spec):
    made = node()
    made["metadata"].update(name=name, labels=labels)
    for numbers in (made["status"]["capacity"], made["status"]["allocatable"]):
        numbers["nvidia.com/gpu"] = gpus
    made["spec"] = spec
    return made


def elsewhere(api, used=(NODE,)):
    """Number and names."""
    told = kubernetes_own.read(api.environment)
    (_, number, _), (_, names, _) = kubernetes_health.elsewhere_facts(told, kubernetes_health.read_candidates(told, api.environment), used)
    return number, names


def affinity(*terms, **more):
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}}, **more}


def term(key, operator, *values, of="matchExpressions"):
    return {of: [{"key": key, "operator": operator, **({"values": list(values)} if values else {})}]}


def test_a_run_on_all_nodes_with_gpus_left_none_out(api):
    api.other_nodes = [named("node-02"), named("cpu-01", {}, "0")]
    assert elsewhere(api, (NODE, "node-02")) == (0, "none")
    assert api.asked[2:] == ["/api/v1/nodes?limit=100", "/apis", "/apis/resource.k8s.io/v1/resourceslices?limit=100"]


def test_a_node_without_a_pod_is_named_with_its_bad_taints(api):
    cordon = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    own = {"key": "nvidia.com/gpu", "effect": "NoSchedule"}
    api.other_nodes = [named("node-02", taints=[cordon, own], unschedulable=True), named("node-03"), named("cpu-01", {}, "0")]
    assert elsewhere(api) == (2, "node-02 (node.kubernetes.io/unschedulable); node-03")


H200 = {**PRESENT, "gpu": "h200", "rack": "7"}


@pytest.mark.parametrize(
    ("spec", "names"),
    [
        ({}, "h100; h200"),
        ({"nodeSelector": PRESENT}, "h100; h200; none-yet"),  # one whose device plugin does not run
        ({"nodeSelector": {**PRESENT, "gpu": "h200"}}, "h200"),
        (affinity(term("gpu", "In", "h200", "b200")), "h200"),
        (affinity(term("gpu", "NotIn", "h200")), "cpu; h100; node-01; none-yet"),
        (affinity(term("gpu", "Exists")), "h100; h200"),
        (affinity(term("nvidia.com/gpu.present", "DoesNotExist")), "cpu"),
        (affinity(term("rack", "Gt", "3")), "h200"),
        (affinity(term("rack", "Lt", "8")), "h200"),
        (affinity(term("gpu", "Gt", "3")), "none"),
        (affinity(term("metadata.name", "In", "cpu", of="matchFields")), "cpu"),
        (affinity(term("gpu", "In", "h200"), term("gpu", "In", "h100")), "h100; h200"),
        (affinity({**term("gpu", "Exists"), **term("metadata.name", "In", "h100", of="matchFields")}), "h100"),
        (affinity(term("gpu", "Exists"), nodeSelector={"gpu": "h100"}), "h100"),
        (affinity({}), "none"),
        ({"affinity": {"podAntiAffinity": {}}}, "h100; h200"),
    ],
)
def test_the_selected_nodes_are_those_of_the_scheduler(api, spec, names):
    api.other_nodes = [named("cpu", {}, "0"), named("h100", {**PRESENT, "gpu": "h100"}), named("h200", H200), named("none-yet", gpus="0")]
    api.pods[0]["spec"].update(spec)
    kubernetes_validate.validate({"apiVersion": "v1", "kind": "Pod", **api.pods[0]}, kubernetes_validate.latest_version(), strict=True)
    _, found = elsewhere(api, () if NODE in names else (NODE,))
    assert sorted(found.split("; ")) == names.split("; ")


def test_many_are_counted_and_as_many_named_as_fit(api):
    api.other_nodes = [named(f"node-{number:04}") for number in range(2, 252)]
    number, names = elsewhere(api)
    assert number == 250
    assert len(names) <= MOST_TEXT + len("; and 250 more")
    assert names.endswith(f"; and {250 - names.count('node-')} more")
    assert [path.partition("continue")[2] for path in api.asked if path.startswith("/api/v1/nodes?")] == ["", "=at+100", "=at+200"]


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (affinity(term("gpu", "Like", "h")), "candidates of the API: no operator of a selector: 'Like'"),
        (affinity(term("gpu", "Gt")), None),
        (
            affinity({"matchExpressions": [{"key": "gpu", "operator": "In", "values": "h200"}]}),
            "candidates of the API: no values",
        ),
        (affinity("x"), "candidates of the API: AttributeError: 'str' object has no attribute 'get'"),
        ({"nodeSelector": ["x"]}, "candidates of the API: AttributeError: 'list' object has no attribute 'items'"),
    ],
)
def test_a_selector_of_another_form_leaves_the_nodes_unknown(api, spec, said):
    api.other_nodes = [named("h200", {**H200, "gpu": "7"})]
    api.pods[0]["spec"].update(spec)
    number, names = elsewhere(api)
    assert number == names
    assert number.missing is Why.UNREADABLE
    assert number.detail.startswith(said or "candidates of the API: IndexError: list index out of range")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda other: other["metadata"].update(labels={"a": "b\nc"}),
        lambda other: other["metadata"].update(labels=7),
        lambda other: other["status"]["capacity"].update({"nvidia.com/gpu": "many"}),
        lambda other: other["spec"].update(taints=[{"key": "x"}]),
        lambda other: other.update(status=7),
    ],
)
def test_a_node_of_another_form_costs_itself_alone_and_is_not_left_out(api, spoil):
    other = copy.deepcopy(named("node-02"))
    spoil(other)
    api.other_nodes = [other, named("node-03")]
    assert elsewhere(api) == (2, "node-02 (in no known form); node-03")


@pytest.mark.parametrize("status", [{}, None])
def test_a_node_that_has_not_told_its_capacity_has_no_gpus_yet(api, status):
    api.other_nodes = [{**named("node-02"), "status": status}, named("node-03")]
    assert elsewhere(api) == (1, "node-03")


def test_a_node_without_a_name_leaves_the_number_unknown(api):
    api.other_nodes = [named("\x1b[2J")]
    assert elsewhere(api)[0] == Missing(Why.UNREADABLE, "candidates of the API: no name of a node: '\\x1b[2J'")


def test_a_pod_that_may_not_list_nodes_does_not_know(api):
    told = kubernetes_own.read(api.environment)
    api.answer = (403, "{}")
    assert elsewhere_of(told, api) == dict.fromkeys(("untested", "untested_names"), DENIED)


def test_without_an_answer_about_its_own_node_the_number_is_not_unknown_but_absent(api):
    """In a pod that may ask nothing, which is no fault unless a site asks for the subject."""
    api.environment["NODE_NAME"] = ""
    told = kubernetes_own.read(api.environment)
    assert isinstance(told.pods, Missing)
    assert elsewhere_of(told, api) == {"untested_names": told.pods}
    assert api.asked == []


DENIED = Missing(Why.NOT_PERMITTED, "GET /api/v1/nodes: status 403, 2 bytes")


def elsewhere_of(told, api):
    found = kubernetes_health.elsewhere_facts(told, kubernetes_health.read_candidates(told, api.environment), [])
    return {metric.removeprefix("kubernetes.nodes."): value for metric, value, _ in found}


def test_a_pod_that_is_not_listed_on_its_node_does_not_know(api):
    api.environment["POD_UID"] = "another"
    told = kubernetes_health.read_candidates(kubernetes_own.read(api.environment), api.environment)
    assert told == Missing(Why.NOT_THERE, "no pod of uid another on this node")


def facts(api):
    told = kubernetes_own.read(api.environment)
    return {metric.removeprefix("kubernetes.node."): value for metric, value, _ in kubernetes_health.own_facts(told)}


def test_taints_and_labels_are_listed_with_the_kind_and_place_of_the_node_first(api):
    api.node["status"]["conditions"].append({"type": "NetworkReady", "status": "True", "reason": "CiliumIsUp"})
    api.node["metadata"]["labels"] = {
        "feature.node.kubernetes.io/cpu-cpuid.AVX": "true",
        "site.example/owner": "",
        "kubernetes.io/hostname": NODE,
        "topology.kubernetes.io/zone": "a",
        "nvidia.com/gpu.product": "NVIDIA-H200",
    }
    api.node["spec"]["taints"].append({"key": "reserved", "effect": "NoExecute"})
    assert facts(api) == {
        "name": NODE,
        "all_taints": "nvidia.com/gpu=present:NoSchedule; reserved:NoExecute",
        "labels": f"nvidia.com/gpu.product=NVIDIA-H200; topology.kubernetes.io/zone=a; kubernetes.io/hostname={NODE}; site.example/owner=; "
        "feature.node.kubernetes.io/cpu-cpuid.AVX=true",
        "conditions": "NetworkReady True (CiliumIsUp)",
    }


def test_a_node_without_taints_and_labels(api):
    api.node["spec"], api.node["metadata"] = {}, {"name": NODE}
    assert facts(api) == {"name": NODE, "all_taints": "none", "labels": "none", "conditions": "none"}


def test_a_node_that_may_not_be_read_is_unknown(api):
    api.answer = (403, "{}")
    assert {name: value.missing for name, value in facts(api).items()} == dict.fromkeys(
        ("name", "all_taints", "labels", "conditions"), Why.NOT_PERMITTED
    )
