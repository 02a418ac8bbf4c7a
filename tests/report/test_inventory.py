"""The nodes on the page: what all have in common once, and by name whoever is not like the others."""

import re

import pytest

from gpu_acceptance.report.build import build_page
from gpu_acceptance.report.cluster import inventory
from tests.report import samples
from tests.report.pages import parse


def record_of(*changes):
    """A run on as many nodes of one GPU, each with these changes of its facts; None: it told nothing."""
    ranks = []
    for node, changed in enumerate(changes):
        identity = samples.identity(node, gpus_per_node=1, nodes=len(changes))
        facts = {} if changed is None else samples.inventory(node, **changed)
        bounds = None if node == 0 else (0.0001, 0.0003)
        ranks.append(identity.model_copy(update={"inventory": facts, "clock_ahead_s": bounds}))
    record = samples.accepted()
    return record.model_copy(update={"ranks": tuple(ranks)})


def inventory_of(*changes):
    return inventory(record_of(*changes))


def text_of(*changes):
    """The section, blanks folded."""
    found = next(one for one in parse(build_page(record_of(*changes))).all("section") if one.attributes["id"] == "machines")
    return re.sub(r"\s+", " ", found.text.split("Inventory", 1)[1])


OTHER = {"kernel": "6.8.0-99-generic"}


def test_nodes_that_are_alike_are_one_line_and_one_table():
    found = inventory_of({}, {}, {})
    assert [fact.name for fact in found.facts] == ["cpu", "kernel", "mounts"]
    assert all(fact.usual and not fact.others for fact in found.facts)
    assert found.odd_nodes == []
    text = text_of({}, {}, {})
    assert "All nodes are alike in all that is compared below." in text
    assert text.count("6.8.0-45-generic") == 1


def test_what_is_a_nodes_own_is_no_difference():
    first, second = inventory_of({}, {}).nodes
    assert dict(first.own) == {
        "product_serial": "PR-EXAMPLE-001",
        "chassis_serial": "CH-EXAMPLE-001",
        "clock": "that of node 0, which the others are held against",
    }
    assert dict(second.own)["clock"] == "+0.200 ms, give or take 0.100 ms"


def test_the_odd_node_is_named_with_both_values():
    found = inventory_of({}, OTHER, {})
    kernel = next(fact for fact in found.facts if fact.name == "kernel")
    assert (kernel.usual, kernel.others) == ("6.8.0-45-generic", ("node 1 (node-02.example): 6.8.0-99-generic",))
    assert found.odd_nodes == ["node 1 (node-02.example): kernel"]
    text = text_of({}, OTHER, {})
    assert "! DIFFERS: node 1 (node-02.example): kernel." in text
    assert "kernel 6.8.0-45-generic! DIFFERS: node 1 (node-02.example): 6.8.0-99-generic" in text
    assert "node 1 (node-02.example): ! DIFFERS in 1 fact" in text


def test_between_two_nodes_there_is_no_majority_and_both_are_named():
    found = inventory_of({}, OTHER)
    kernel = next(fact for fact in found.facts if fact.name == "kernel")
    assert kernel.usual == ""
    assert kernel.others == ("node 0 (node-01.example): 6.8.0-45-generic", "node 1 (node-02.example): 6.8.0-99-generic")
    assert "kernel no majority! DIFFERS: node 0" in text_of({}, OTHER)


def test_a_fact_that_one_node_does_not_tell_is_a_difference():
    record = record_of({}, {"governor": "powersave"}, {})
    governor = next(fact for fact in inventory(record).facts if fact.name == "governor")
    assert (governor.usual, governor.others) == ("not told", ("node 1 (node-02.example): powersave",))


def test_one_node_has_nothing_to_be_compared_with():
    assert "One node: there is nothing to compare it with." in text_of({})


@pytest.mark.parametrize("changes", [(None,), (None, None)])
def test_a_run_of_before_says_that_nothing_was_recorded(changes):
    assert "None recorded." in text_of(*changes)


def test_a_node_that_told_nothing_is_left_out_of_the_comparison():
    found = inventory_of({}, None, {})
    assert found.odd_nodes == []
    assert [node.name for node in found.nodes] == ["node 0 (node-01.example)", "node 2 (node-03.example)"]


def test_markup_in_a_fact_is_text():
    hostile = "<script>alert(1)</script>\x1b[31m"
    page = parse(build_page(record_of({}, {"kernel": hostile, hostile: hostile}, {})))
    assert len(page.all("script")) == 1  # that of the page
    assert page.unclosed == []
    assert "<script>alert(1)</script>\\x1b[31m" in page.all("body")[0].text
