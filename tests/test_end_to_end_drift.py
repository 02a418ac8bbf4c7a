"""A rank that is not like the others, in a real run of the shipped environment row: named with both values, and a tie named as one."""

import platform

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


def test_between_two_ranks_neither_is_the_odd_one_and_both_are_named(tmp_path):
    run = torchrun(environment_suite(tmp_path, ODD_VARIABLE))
    assert run.returncode == 1, run.output
    (judgement,) = run.missed("test_node").values()
    assert (judgement.metric, judgement.ranks) == ("environment.node.variables", (0, 1))
    assert "without a majority" in judgement.message
    assert "NCCL_ALGO=Ring" in judgement.message
    assert "NCCL_ALGO=Tree" in judgement.message


def test_a_node_with_another_suite_and_other_limits_is_found_by_their_digests(tmp_path):
    suites = [environment_suite(tmp_path / name) for name in ("first", "second")]
    changed = suites[1] / "acceptance" / "test_environment.py"
    changed.write_text(f"{changed.read_text()}# a later version\n")
    overlay = tmp_path / "agreed.yaml"
    overlay.write_text("reason: agreed\nparameters: {gemm.size: 512}\n")
    run, other = two_nodes((suites[0], (), {}), (suites[1], (f"--limits={overlay}",), {}))
    assert (run.returncode, other.returncode) == (1, 1), run.output + other.output
    missed = run.missed("test_versions")
    assert sorted(missed) == ["environment.profile.digest", "environment.suite.digest"]
    profile = missed["environment.profile.digest"]
    assert profile.ranks == (0, 1)
    assert "without a majority" in profile.message
    assert profile.message.count("agreed.yaml ") == 1
    assert run.record.plan.profile.digest[:12] in profile.message
    assert "without a majority" in missed["environment.suite.digest"].message
