"""Amounts of resources in Kubernetes' own grammar: of any resource of a node, and of the limits of a pod."""

import json
from fractions import Fraction

import pytest
from api_server import node, pod
from hypothesis import given
from hypothesis import strategies as st

from gpu_acceptance.inventory import kubernetes_health, kubernetes_own
from gpu_acceptance.inventory.answer import Missing, Why
from gpu_acceptance.inventory.kubernetes_node import quantity, read_node


@pytest.mark.parametrize(
    ("text", "number"),
    [  # legal ones of apimachinery's pkg/api/resource/quantity_test.go, and bare numbers as its schema allows
        ("0", 0),
        ("8", 8),
        (8, 8),
        (1.5, Fraction(3, 2)),
        ("1k", 1000),
        ("80Gi", 80 * 2**30),
        ("1500m", Fraction(3, 2)),
        ("1e3", 1000),
        ("1E3", 1000),
        ("1E+3", 1000),
        ("1e-3", Fraction(1, 1000)),
        ("12E", 12 * 10**18),
        ("12Ei", 12 * 2**60),
        ("-1", -1),
        ("-3.01M", -3_010_000),
        ("+1", 1),
        (".5Gi", 2**29),
        ("1.", 1),
        ("1.G", 10**9),
        ("0.1n", Fraction(1, 10**10)),
        ("100u", Fraction(1, 10**4)),
        ("1P", 10**15),
        ("2Ti", 2**41),
        ("01", 1),
        ("0.0001", Fraction(1, 10**4)),
        ("18446744073709551616", 2**64),
    ],
)
def test_a_legal_amount(text, number):
    assert quantity(text) == number


ILLEGAL = [
    "",
    " 1",
    "1 ",
    "+",
    ".",
    "-",
    "Gi",
    "e3",
    "1e",
    "1e+",
    "1.1.1",
    "1+1",
    "1i",
    ".5i",
    "1mi",
    "1K",
    "1g",
    "1kk",
    "0x8",
    "1_0",
    "٣",
    "1e3Mi",
    "1e1.5",
]


@pytest.mark.parametrize("text", [*ILLEGAL, "many", "8\n", "9" * 300, None, True, float("nan"), float("inf"), [], {}])
def test_an_illegal_amount(text):
    with pytest.raises(ValueError, match=r"^no quantity of Kubernetes: "):
        quantity(text)


@pytest.mark.parametrize(("text", "least"), [("1e999999999", 10**300), ("9e" + "9" * 200, 10**300), ("-1e999", -(10**500))])
def test_an_amount_that_would_fill_the_memory_is_only_large(text, least):
    assert quantity(text) > least


def found(change, pods=()):
    made = node()
    change(made["status"]["capacity"], made["status"]["allocatable"])
    told = kubernetes_own.Answers(read_node(json.loads(json.dumps(made))), pods, "uid")
    return {metric.removeprefix("kubernetes.devices."): (value, detail) for metric, value, _, detail in kubernetes_health.devices(told)}


def both(name, amount):
    return lambda *numbers: [one.update({name: amount}) for one in numbers]


@pytest.mark.parametrize(
    ("name", "amount"),
    [  # resources of real plugins and schedulers, whose amounts are no numbers of devices
        ("koordinator.sh/gpu-memory", "80Gi"),
        ("koordinator.sh/gpu-core", "800"),
        ("aliyun.com/gpu-mem", "640"),
        ("example.com/bandwidth", "1500m"),
        ("nvidia.com/gpumem", "1e3"),
        ("hugepages-2Mi", "12E"),
        ("kubernetes.io/batch-cpu", "many"),
        ("example.com/debt", "-1"),
    ],
)
def test_an_amount_of_another_resource_changes_nothing(name, amount):
    assert found(both(name, amount)) == found(lambda *_: None) == {"gpus": (8, ""), "withdrawn": (0, "")}


def test_an_illegal_amount_costs_its_resource_alone_and_is_told():
    value, _ = found(both("example.com/odd", "8 of them"))["withdrawn"]
    assert value.missing is Why.UNREADABLE
    assert value.detail.startswith("example.com/odd: no quantity of Kubernetes: '8 of them'; ")
    assert found(both("example.com/odd", "8 of them"))["gpus"] == (8, "")
    gpus, _ = found(both("nvidia.com/gpu", "eight"))["gpus"]
    assert gpus.detail.startswith("nvidia.com/gpu: no quantity of Kubernetes: 'eight'")


def test_a_device_that_is_withdrawn_counts_beside_an_amount_that_cannot_be_read():
    def change(capacity, allocatable):
        both("example.com/odd", "?")(capacity, allocatable)
        allocatable["nvidia.com/gpu"] = "7"

    number, detail = found(change)["withdrawn"]
    assert number == 1
    assert detail.startswith("nvidia.com/gpu 7 of 8, unreadable (example.com/odd: ")


@pytest.mark.parametrize(
    ("amount", "of", "number"),
    [("1500m", "2", 1), ("60Gi", "80Gi", 20 * 2**30), ("0", "1e3", 1000), ("-1", "8", 9), ("0", "1e99", 2**63 - 1)],
)
def test_what_is_withdrawn_is_counted_in_whole_devices(amount, of, number):
    assert found(lambda capacity, allocatable: (capacity.update(x_y="", **{"e.x/y": of}), allocatable.update({"e.x/y": amount})))[
        "withdrawn"
    ] == (
        number,
        f"e.x/y {amount} of {of}",
    )


@pytest.mark.parametrize("amount", ["-1", "500m", "1e30"])
def test_an_amount_that_is_no_number_of_gpus(amount):
    assert found(both("nvidia.com/gpu", amount))["gpus"][0] == Missing(Why.UNREADABLE, "nvidia.com/gpu is no number of devices from 0 on")


@pytest.mark.parametrize(
    ("amount", "gpus"), [("0", ()), ("0k", ()), ("1", ("nvidia.com/gpu",)), ("1e0", ("nvidia.com/gpu",)), ("?", ("nvidia.com/gpu",))]
)
def test_a_pod_whose_limit_is_not_none_has_gpus(amount, gpus):
    (one,) = kubernetes_own._pods({"metadata": {}, "items": [pod("a", "uid", "", amount)]})
    assert one.gpus == gpus


@given(st.one_of(st.text(), st.text("0123456789.+-eEinumkKMGTP"), st.floats(), st.integers(), st.none()))
def test_any_text_is_an_amount_or_costs_itself(text):
    assert found(both("example.com/odd", text))["gpus"] == (8, "")
    value, detail = found(lambda capacity, allocatable: allocatable.update({"nvidia.com/gpu": text}))["withdrawn"]
    assert detail.isprintable()
    assert isinstance(value, Missing | int)
    try:
        read = quantity(json.loads(json.dumps(text)))
    except ValueError:
        assert isinstance(value, Missing)
    else:
        assert (value > 0) == (read < 8)
