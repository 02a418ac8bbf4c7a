"""Ranks of one job train one model, which the number of ranks decides, and are judged by the limits of this one."""

import pytest
from suite import make_suite, plain_pytest, torchrun

pytestmark = pytest.mark.launcher

VALIDATION = """
def test_shape(parameter, check):
    check("sized.layers.num", parameter("train.llama.num_layers"), "count")
    check("sized.parts.num", parameter("lora.num_parts"), "count")
"""
COMMON = 'unit: count, scope: rank, source: "policy: an example of a limit, for the tests of the suite itself"'
PROFILE = f"""
extends: base
requires: [sized]
parameters:
  train.llama.model: {{from_gpus: {{1: small, 2: large}}}}
  lora.num_parts: {{from_gpus: {{1: 2, 2: 4}}}}
limits:
  sized.parts.num: {{at_least: 1, {COMMON}}}
"""
MODEL = f"parameters: {{train.llama.num_layers: %d}}\nlimits:\n  sized.layers.num: {{equals: %d, {COMMON}}}\n"


@pytest.fixture
def suite(tmp_path):
    suite = make_suite(tmp_path / "suite")
    (suite / "acceptance" / "test_sized.py").write_text(VALIDATION)
    (suite / "thresholds" / "cpu.yaml").write_text(PROFILE)
    for name, num_layers in (("small", 2), ("large", 3)):
        (suite / "thresholds" / f"model-{name}.yaml").write_text(MODEL % (num_layers, num_layers))
    return suite


def test_one_rank_and_two_ranks_train_their_own_shapes(suite):
    alone, both = plain_pytest(suite), torchrun(suite)
    for found, num_ranks, layers, parts in ((alone, 1, 2, 2), (both, 2, 3, 4)):
        assert found.verdict_line.startswith("ACCEPTED"), found.output
        for rank in range(num_ranks):
            assert found.values("shape", rank) == {"layers.num": layers, "parts.num": parts}
        assert found.record.plan.profile.num_gpus == num_ranks
    assert "parameters of a job of 1 GPU; larger jobs have others" in (alone.folder / "report.html").read_text()
    assert "train.llama.model = small (from 1: small; from 2: large)" in (alone.folder / "report.html").read_text()
    assert "larger jobs have others" not in (both.folder / "report.html").read_text()


def test_the_plan_says_which_was_chosen(suite):
    alone = plain_pytest(suite, "--plan", "--gpus=1")
    assert "for 1 GPU: train.llama.model = small (from 1: small; from 2: large)\n" in alone.output
    assert "for 2 GPUs: lora.num_parts = 4 (from 1: 2; from 2: 4)\n" in torchrun(suite, "--plan").output


def test_a_model_without_a_file_is_a_usage_error_before_anything_runs(suite):
    (suite / "thresholds" / "model-large.yaml").unlink()
    found = torchrun(suite)
    assert "cpu: parameters.train.llama.model: no model 'large'; models: own, small" in found.output
    assert not found.has_results
    assert plain_pytest(suite).returncode == 0
