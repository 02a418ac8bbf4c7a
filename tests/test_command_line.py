"""Options, folders and files as people give them, in a world of one: what is wrong is one readable error, and nothing started."""

import json

import numpy as np
import pytest
import yaml
from made_checkpoints import make_checkpoint
from suite import EXAMPLES, limits_of, make_suite, plain_pytest

from tools.made_dialogues import made

pytestmark = pytest.mark.launcher


PHASES = "phases: {sooner: [two_metrics.second], later: [two_metrics]}\n"


@pytest.fixture(scope="module")
def suite(tmp_path_factory):
    """For runs that must not start: one suite for all."""
    return make_suite(tmp_path_factory.mktemp("suite"), "two_metrics")


def assert_refused(finished, text):
    assert finished.returncode == 4, finished.output
    assert text in finished.output
    assert "Traceback" not in finished.output
    assert "usage: " not in finished.output
    assert "rootdir" not in finished.output
    assert not finished.has_results
    assert finished.folder is None


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--lvel=quick"], "ERROR: --lvel=quick: unknown option; did you mean '--level'?"),
        (["--maxfial=1", "--plan"], "ERROR: --maxfial=1: unknown option; did you mean '--maxfail'?"),
        (["--ranks=2"], "ERROR: --ranks=2: unknown option of pytest: it belongs to `gpu-acceptance run`; torchrun takes --nproc-per-node"),
        (["acceptance/test_two_metrisc.py"], "test_two_metrisc.py: no such file or folder; did you mean 'acceptance/test_two_metrics.py'?"),
        (["acceptanc/"], "ERROR: acceptanc/: no such file or folder; did you mean 'acceptance'?"),
        (["--level", "quick", "quik"], "ERROR: quik: no such file or folder"),
        (["--zzz"], "ERROR: --zzz: unknown option; --help lists all"),
        (["--gpus"], "ERROR: --gpus: no value; write --gpus=VALUE"),
        (["--localise=yes"], "ERROR: --localise takes no value"),
        (["--level=quick", "--level=full"], "ERROR: --level is given 2 times (quick, full); allowed: once"),
        (["--hardware=cqu"], "ERROR: --hardware=cqu: unknown profile; profiles: cpu; did you mean 'cpu'?"),
        (
            ["--waive=two_metrics.frist=slow"],
            "ERROR: --waive=two_metrics.frist=...: matches no limit of profile cpu; did you mean 'two_metrics.first'?",
        ),
        (["--waive=two_metrics.first"], "ERROR: --waive=two_metrics.first: allowed: METRIC-GLOB=reason"),
        (["--join-timeout=soon"], "ERROR: --join-timeout=soon: allowed: more than 0 seconds, as 90, 90s, 15m or 2h"),
        (["--gpus=all"], "ERROR: --gpus=all: allowed: 1 to 9999 (GPUs of each node under test)"),
        (["--run-id=../elsewhere"], "ERROR: --run-id=../elsewhere: allowed: 1 to 100 letters, digits"),
        (["--limits=no such.yaml"], "ERROR: no such.yaml: there is no such file: "),
        ([f"--limits={'x' * 300}"], f"ERROR: --limits={'x' * 300}: cannot be read: File name too long"),
        (
            ["--data-dir=no"],
            "/no: no folder that can be read; wanted on every node: tokens.npy (an array of token ids), images/CLASS/FILE, or both [",
        ),
        (["--setup-plan"], "ERROR: --setup-plan shows fixtures, and none runs in this process: leave it out"),
    ],
)
def test_an_option_that_cannot_be_right(suite, arguments, text):
    assert_refused(plain_pytest(suite, *arguments), text)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--report-dir=a file/reports"], "a file/reports: cannot be made: Not a directory; name a folder that can be written"),
        ([f"--report-dir={'x' * 300}"], f"{'x' * 300}: cannot be made: File name too long; name a folder that can be written"),
        (["--junitxml=a file/junit.xml"], "Exit: --junitxml=a file/junit.xml: "),
    ],
)
def test_what_could_not_be_written_at_the_end_is_said_at_the_start(suite, arguments, text):
    (suite / "a file").touch()
    ended = plain_pytest(suite, *arguments)
    assert ended.returncode == 3, ended.output
    assert text in ended.output
    assert "Traceback" not in ended.output
    assert ended.folder is None


def test_a_run_inside_a_validation_is_refused(suite):
    assert_refused(
        plain_pytest(suite, env={"GPU_ACCEPTANCE_SUPERVISOR": "17"}),
        "ERROR: this pytest was started by a validation (GPU_ACCEPTANCE_SUPERVISOR is set)",
    )


def test_a_path_after_a_blank_that_moves_the_root_is_refused(tmp_path):
    """pytest takes the folder of both paths for its root when there is a configuration file in it."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "mine.yaml").write_text("reason: a test\n")
    suite = make_suite(tmp_path / "suite", "two_metrics")
    refused = plain_pytest(suite, "--limits", str(tmp_path / "mine.yaml"))
    assert_refused(refused, f"for the suite's root, not {suite}: write --limits={tmp_path}/mine.yaml, without the blank")


def test_the_plan_names_validations_limits_and_seconds_and_runs_nothing(suite):
    sides = "lora_model.held_out: 0.3, lora_model.num_held_out: 4, lora_model.num_prompts: 4"
    asked = f"parameters: {{lora_model.asked: false, lora_model.expected_s: 5, {sides}}}\n"
    limit = 'limits: {lora_model.held_out.loss: {at_most: 1, unit: nats, scope: job, source: "policy: what this test asks for"}}\n'
    (suite / "thresholds" / "base.yaml").write_text(f"deadline_s: 60\nlevels: {{full: {{two_metrics: 7}}}}\n{PHASES}{asked}{limit}")
    np.save(suite / "tokens.npy", np.zeros(9, np.uint16))
    make_checkpoint(suite / "model")
    (suite / "calls.jsonl").write_text("\n".join(map(json.dumps, made(12, seed=0))))
    plan = plain_pytest(suite, "--plan", f"--data-dir={suite}", "--lora-model=model", f"--lora-data={suite}/calls.jsonl")
    assert plan.returncode == 5, plan.output
    assert (
        "profile cpu (no GPU), level full, 2 ranks on each of 1 node, as `gpu-acceptance run` starts where there is no GPU" in plan.output
    )
    synthetic = "resnet: synthetic; parity, checkpoint, lora_convergence and lora_modes: always synthetic"
    assert f"training data: gpt2 and llama: {suite}/tokens.npy (9 tokens); {synthetic}" in plan.output
    assert f"fine-tuning: {suite}/model: Qwen2ForCausalLM (44 parameters, " in plan.output
    assert f"; {suite}/calls.jsonl: 12 dialogues with " in plan.output
    lines = plan.output.splitlines()
    second = lines.index("phase later: 1 validation, 7 s expected")
    assert lines[second - 2 : second + 2] == [
        "phase sooner: 1 validation, 7 s expected",
        "  acceptance/test_two_metrics.py::test_second: 7 s expected, deadline 60 s",
        "phase later: 1 validation, 7 s expected",
        "  acceptance/test_two_metrics.py::test_first: 7 s expected, deadline 60 s",
    ]
    assert (
        "  two_metrics.second: >= 1 GB/s (rank) [cpu.yaml: policy: an example of a limit, for the tests of the suite itself]" in plan.output
    )
    assert "expected: 14 s of validations, end about " in plan.output
    assert plan.folder is None


def test_one_phase_alone_runs_and_is_incomplete_and_an_unknown_one_is_refused(tmp_path):
    suite = make_suite(tmp_path / "suite", "two_metrics")
    (suite / "thresholds" / "base.yaml").write_text(f"deadline_s: 60\n{PHASES}")
    refused = plain_pytest(suite, "--phase=later", "--phase=soner")
    assert_refused(refused, "--phase=soner: unknown phase; phases of profile cpu: sooner, later; did you mean 'sooner'?")
    ended = plain_pytest(suite, "--phase=sooner")
    assert [row.nodeid.rpartition("::")[2] for row in ended.record.rows] == ["world_formation", "test_second"]
    assert (ended.returncode, ended.record.plan.num_deselected) == (6, 1)
    assert "only phase sooner asked for" in ended.verdict_line
    assert [one.metric for one in ended.record.conclusion.limits if one.status == "not measured"] == ["two_metrics.first"]


def test_collecting_only_accepts_nothing(suite):
    collected = plain_pytest(suite, "--collect-only", "-q")
    assert collected.returncode == 5, collected.output
    assert "acceptance/test_two_metrics.py::test_first" in collected.output
    assert "ACCEPTED" not in collected.output
    assert collected.folder is None


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Two runs in one suite: judged, with an overlay after a blank that moves nothing; and measured only."""
    suite = make_suite(tmp_path_factory.mktemp("alone"), "needs_four", "passes")
    (suite / "my limits.yaml").write_text((EXAMPLES / "loosened.site.yaml").read_text().replace("loosened.value", "passes.value"))
    return plain_pytest(suite, "--limits", "my limits.yaml"), plain_pytest(suite, "--measure-only")


def test_a_world_of_one_is_too_small_for_some(alone):
    judged, _ = alone
    assert judged.returncode == 0, judged.output
    assert "1 limit loosened by overlay my limits.yaml" in judged.verdict_line
    assert judged.row("test_needs_four.py::test_value").outcome == "not applicable"
    assert judged.row("test_needs_four.py::test_value").message == "needs at least 4 ranks, this job has 1"
    assert judged.verdict_line.startswith("ACCEPTED (cpu profile: no GPU was tested")


def test_measured_only_is_incomplete_and_keeps_the_figures(alone):
    judged, measured = alone
    assert judged.folder != measured.folder
    assert measured.returncode == 6, measured.output
    assert measured.verdict_line.startswith("INCOMPLETE: measured only, not judged")
    row = measured.row("test_passes.py::test_value")
    assert row.attempts[0].ranks[0].figures[0].value == 2.0
    assert row.judgements == ()
    assert measured.record.plan.measure_only


RECORDS = """
def test_value(check, record):
    check("records.value", 2.0, "GB/s")
    record("records.best", 3.0, "GB/s")
"""
ON_BOTH = """
figures: {records.best: GB/s}
limits:
  records.best: {at_least: 4, unit: GB/s, scope: rank, source: "policy: what our contract says of the best"}
  records.value: {at_least: 0.001, unit: GB/s, scope: rank, source: "policy: a slip of the unit, from GB/s to TB/s"}
"""


def test_an_overlay_has_a_recorded_figure_judged_and_a_bound_that_is_far_is_named(tmp_path):
    suite = make_suite(tmp_path / "suite", "passes")
    (suite / "acceptance" / "test_records.py").write_text(RECORDS)
    (suite / "thresholds" / "base.yaml").write_text(yaml.safe_dump({"deadline_s": 60, **limits_of("records")}))
    (suite / "mine.yaml").write_text(ON_BOTH)
    judged = plain_pytest(suite, "--limits=mine.yaml")
    assert judged.returncode == 1, judged.output
    far = "records.value loosened to 0.1 % of its bound: a slip of the unit?"
    assert judged.verdict_line.endswith(f"2 limits changed by overlay mine.yaml, 1 of them loosened, {far})")
    (missed,) = [one for one in judged.row("test_records.py::test_value").judgements if one.metric == "records.best"]
    assert missed.message.startswith("records.best = 3 GB/s, need >= 4 GB/s [mine.yaml: policy: what our contract says")


def test_a_metric_without_a_validation_is_refused_before_anything_starts(suite):
    (suite / "mine.yaml").write_text(ON_BOTH.replace("figures: {records.best: GB/s}", "").replace("records.", "two_metrics."))
    assert_refused(plain_pytest(suite, "--limits=mine.yaml"), "ERROR: mine.yaml: limits.two_metrics.best: no validation has this metric")


def test_without_tensorboard_curves_are_in_the_record_alone(alone):
    judged, _ = alone
    assert judged.row("test_passes.py::test_value").attempts[0].ranks[0].curves
    assert not (judged.folder / "tensorboard").exists()
