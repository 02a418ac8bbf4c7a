"""Which nodes of a cluster a run could have been on, by the selector and the affinity of its own pod, and which of them it was not."""

import copy

import kubernetes_validate
import pytest
from api_server import NODE, cluster, node

from gpu_acceptance.inventory import kubernetes, kubernetes_health
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


@pytest.fixture
def api(tmp_path, monkeypatch):
    with cluster(tmp_path / "account") as found:
        monkeypatch.setattr(kubernetes, "ACCOUNT", found.account)
        yield found


def elsewhere(api, used=(NODE,)):
    """Number and names."""
    told = kubernetes.read(api.environment)
    (_, number, _), (_, names, _) = kubernetes_health.elsewhere_facts(told, kubernetes_health.read_candidates(told, api.environment), used)
    return number, names


def affinity(*terms, **more):
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}}, **more}


def term(key, operator, *values, of="matchExpressions"):
    return {of: [{"key": key, "operator": operator, **({"values": list(values)} if values else {})}]}


def test_a_run_on_all_nodes_with_gpus_left_none_out(api):
    api.other_nodes = [named("node-02"), named("cpu-01", {}, "0")]
    assert elsewhere(api, (NODE, "node-02")) == (0, "none")
    assert api.asked[-1] == "/api/v1/nodes?limit=100"


def test_one_without_a_pod_is_named_with_what_kubernetes_holds_against_it(api):
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
def test_what_the_pod_selects_is_what_the_scheduler_would(api, spec, names):
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
    assert [path.partition("continue")[2] for path in api.asked[-3:]] == ["", "=at+100", "=at+200"]


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
def test_a_selector_of_another_form_selects_nobody_knows_what(api, spec, said):
    api.other_nodes = [named("h200", {**H200, "gpu": "7"})]
    api.pods[0]["spec"].update(spec)
    number, names = elsewhere(api)
    assert number == names
    assert number.missing is Why.UNREADABLE
    assert number.detail.startswith(said or "candidates of the API: IndexError: list index out of range")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda other: other["metadata"].update(name="\x1b[2J"), "no name of a node: '\\x1b[2J'"),
        (lambda other: other["metadata"].update(labels={"a": "b\nc"}), "no name: 'b\\nc'"),
        (lambda other: other["metadata"].update(labels=7), "AttributeError: 'int' object has no attribute 'items'"),
        (lambda other: other["status"]["capacity"].update({"nvidia.com/gpu": "many"}), "no number of devices: 'many'"),
        (lambda other: other["spec"].update(taints=[{"key": "x"}]), "KeyError: 'effect'"),
    ],
)
def test_a_node_of_another_form_is_unreadable_and_not_left_out(api, spoil, said):
    other = copy.deepcopy(named("node-02"))
    spoil(other)
    api.other_nodes = [other]
    assert elsewhere(api)[0] == Missing(Why.UNREADABLE, f"candidates of the API: {said}")


def test_a_pod_that_may_not_list_nodes_does_not_know(api):
    told = kubernetes.read(api.environment)
    api.answer = (403, "{}")
    lack = Missing(Why.NOT_PERMITTED, "GET /api/v1/nodes: status 403, 2 bytes")
    assert list(kubernetes_health.elsewhere_facts(told, kubernetes_health.read_candidates(told, api.environment), [])) == [
        ("kubernetes.nodes.untested", lack, "count"),
        ("kubernetes.nodes.untested_names", lack, "text"),
    ]


def test_where_nobody_asks_the_verdict_has_no_unknown_number_of_nodes(api):
    """In a pod that may ask nothing, which is no fault unless a site asks for the subject."""
    api.environment["NODE_NAME"] = ""
    told = kubernetes.read(api.environment)
    assert isinstance(told.pods, Missing)
    assert list(kubernetes_health.elsewhere_facts(told, kubernetes_health.read_candidates(told, api.environment), [])) == [
        ("kubernetes.nodes.untested_names", told.pods, "text")
    ]
    assert api.asked == []


def test_a_pod_that_is_not_on_the_list_of_its_node_does_not_know(api):
    api.environment["POD_UID"] = "another"
    told = kubernetes_health.read_candidates(kubernetes.read(api.environment), api.environment)
    assert told == Missing(Why.NOT_THERE, "no pod of uid another on this node")


# --- what is written on a node -------------------------------------------------------------------------------------------------


def facts(api):
    return {
        metric.removeprefix("kubernetes.node."): value for metric, value, _ in kubernetes_health.own_facts(kubernetes.read(api.environment))
    }


def test_taints_and_labels_are_told_what_it_is_and_where_it_stands_first(api):
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
    }


def test_a_node_with_nothing_written_on_it(api):
    api.node["spec"], api.node["metadata"] = {}, {"name": NODE}
    assert facts(api) == {"name": NODE, "all_taints": "none", "labels": "none"}


def test_of_a_node_that_the_api_does_not_tell_nothing_is_known(api):
    api.answer = (403, "{}")
    assert {name: value.missing for name, value in facts(api).items()} == dict.fromkeys(("name", "all_taints", "labels"), Why.NOT_PERMITTED)
