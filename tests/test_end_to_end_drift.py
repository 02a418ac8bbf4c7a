"""Nodes and ranks that are not alike, or not as `--site` declares them: each difference is named with both values."""

import platform
import re

import pytest
from suite import environment_suite, torchrun, two_nodes

from gpu_acceptance.folder.journal import read_journal

pytestmark = pytest.mark.launcher


ODD_VARIABLE = """
import os

os.environ["NCCL_ALGO"] = "Tree" if os.environ.get("RANK") == "1" else "Ring"
"""


def test_of_three_ranks_the_odd_one_is_named_with_both_values(tmp_path):
    run = torchrun(environment_suite(tmp_path, ODD_VARIABLE), ranks=3)
    assert run.returncode == 1, run.output
    (judgement,) = run.missed("test_node").values()
    assert (judgement.metric, judgement.ranks) == ("environment.node.variables", (1,))
    assert "NCCL_ALGO=Tree" in judgement.message.split(" where most have ")[0]
    assert "NCCL_ALGO=Ring" in judgement.message.split(" where most have ")[1]
    assert "on ranks 0,2" in judgement.message
    assert "on rank 1 (" in judgement.message
    first, *others = run.record.ranks
    assert first.inventory["kernel"] == platform.release()
    assert [identity.inventory for identity in others] == [{}, {}]
    assert read_journal(run.folder / "journal" / "rank-00000.jsonl").identity == first
    assert platform.release() in (run.folder / "report.html").read_text()


def test_of_two_nodes_that_differ_both_are_named_and_another_suite_and_other_limits_are_found_by_their_digests(tmp_path):
    """Without --site no node must be there, and that is declared."""
    suites = [environment_suite(tmp_path / name, ODD_VARIABLE) for name in ("first", "second")]
    changed = suites[1] / "acceptance" / "test_environment.py"
    changed.write_text(f"{changed.read_text()}# a later version\n")
    overlay = tmp_path / "agreed.yaml"
    overlay.write_text("reason: agreed\nparameters: {gemm.size: 512}\n")
    run, other = two_nodes((suites[0], (), {}), (suites[1], (f"--limits={overlay}",), {}))
    assert (run.returncode, other.returncode) == (1, 1), run.output + other.output
    (judgement,) = run.missed("test_node").values()
    assert (judgement.metric, judgement.ranks) == ("environment.node.variables", (0, 1))
    for said in ("without a majority", "NCCL_ALGO=Ring", "NCCL_ALGO=Tree"):
        assert said in judgement.message
    missed = run.missed("test_versions")
    assert sorted(missed) == ["environment.profile.digest", "environment.suite.digest"]
    profile = missed["environment.profile.digest"]
    assert profile.ranks == (0, 1)
    assert "without a majority" in profile.message
    assert profile.message.count("agreed.yaml ") == 1
    assert run.record.plan.profile.digest[:12] in profile.message
    assert "without a majority" in missed["environment.suite.digest"].message
    assert run.row("test_site").outcome == "not applicable"
    assert run.record.plan.profile.not_applicable["environment.site*"] == "no --site=FILE says which nodes there must be"


HOST_BY_NODE = """
import os
import socket

socket.gethostname = lambda: f"node-0{os.environ.get('GROUP_RANK')}"
"""
DECLARED = """
gpus_per_node: 0
nodes:
  node-00: {rack: "B2"}
  node-01: {rack: "B3"}
"""


def run_with(folder, *sites):
    """One node for each, with this text in its own copy; None: started without the option."""
    nodes = []
    for number, text in enumerate(sites):
        suite, path = environment_suite(folder / f"node-{number}", HOST_BY_NODE), folder / f"node-{number}" / "site.yaml"
        if text:
            path.write_text(text)
        nodes.append((suite, () if text is None else (f"--site={path}",), {}))
    return two_nodes(*nodes)


def test_the_declared_nodes_are_accepted_and_named_with_their_racks(tmp_path):
    run, other = run_with(tmp_path, DECLARED, DECLARED)
    assert (run.returncode, other.returncode) == (0, 0), run.output + other.output
    (judgement,) = run.row("test_site").judgements
    assert (judgement.status, judgement.value) == ("held", "none")
    plan = run.record.plan
    assert [identity.place for identity in run.record.ranks] == ["node-00, rack B2", "node-01, rack B3"]
    assert [(node.host, node.gpus, node.rack) for node in plan.declared_nodes] == [("node-00", 0, "B2"), ("node-01", 0, "B3")]
    assert list(plan.profile.digests) == ["base.yaml", "cpu.yaml", "site.yaml"]
    assert "environment.site*" not in run.record.plan.profile.not_applicable
    page = (run.folder / "report.html").read_text()
    assert "node-01, rack B3" in page
    assert "The nodes that there must be" in page


def test_what_is_not_as_declared_is_named_and_so_is_a_node_without_the_file(tmp_path):
    run, other = run_with(tmp_path, 'gpus_per_node: 0\nnodes: {node-00: {gpus: 8, rack: "B2"}, node-07: {rack: "B9"}}', None)
    assert (run.returncode, other.returncode) == (1, 1), run.output + other.output
    assert run.row("test_site").message.startswith(
        "environment.site.difference = node-07, rack B9 is declared and has no rank; node-00, rack B2 has 0 GPUs, not 8; "
        "node-01 is not declared, need == none [base.yaml: policy: "
    )
    digest = next(one for one in run.row("test_versions").judgements if one.metric == "environment.profile.digest")
    assert digest.status == "missed"
    assert re.search(r"site\.yaml \w{8} on rank 0, .* cpu\.yaml \w{8} on rank 1\)", digest.message), digest.message
    assert "on rank 0 (node-00, rack B2) and 1 more: rank 1" in digest.message
    assert "node-07, rack B9" in (run.folder / "report.html").read_text()
    assert "! NO RANK" in (run.folder / "report.html").read_text()


def test_a_copy_that_cannot_be_read_refuses_the_run_on_all_nodes_and_names_the_node(tmp_path):
    ended = run_with(tmp_path, DECLARED, "")
    path = tmp_path / "node-1" / "site.yaml"
    for run in ended:
        assert set(run.rank_exit_codes.values()) == {4}, run.output
        assert f"--site: site.yaml: there is no such file: '{path}' [node 1 (" in run.output
        assert run.folder is None
