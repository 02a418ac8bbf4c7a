"""An ACCEPTED run of 2 ranks, started from another folder: its caveats are in the verdict line. Curves, event files and `--data-dir`."""

import math
import re
from itertools import pairwise

import numpy as np
import pytest
from PIL import Image
from suite import EXAMPLES, extend_conftest, make_suite, plain_pytest, run, shipped_suite, torchrun_command
from tensorboard_runs import read_runs

from gpu_acceptance.cli.verbs import main
from gpu_acceptance.folder.manifest import read_manifest

pytestmark = pytest.mark.launcher


EXAMPLES_HERE = ["asks_telemetry", "declared_skip", "gathers", "loosened", "own_worker", "passes", "takes_turns", "unstable_once", "waived"]

PHASES = (
    "{first: [waived, unstable_once.value], second: [own_worker, passes], third: [asks_telemetry, takes_turns, declared_skip, loosened]}"
)
ONLY_RANK_0_HAS_TENSORBOARDX = """
import os

if os.environ.get("RANK") != "0":
    sys.modules["tensorboardX"] = None
"""


@pytest.fixture(scope="module")
def accepted(tmp_path_factory):
    """From another folder, below a parent with a pytest.ini of its own, into a folder with a blank in its name."""
    parent = tmp_path_factory.mktemp("parent")
    (parent / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
    suite, elsewhere = make_suite(parent / "suite", *EXAMPLES_HERE), parent / "elsewhere"
    elsewhere.mkdir()
    extend_conftest(suite, ONLY_RANK_0_HAS_TENSORBOARDX)
    (suite / "thresholds" / "base.yaml").write_text(f"deadline_s: 60\nphases: {PHASES}\n")
    (elsewhere / "agreed limits.yaml").write_text((EXAMPLES / "loosened.site.yaml").read_text())
    command = torchrun_command(
        str(suite / "acceptance"),
        "--limits=agreed limits.yaml",
        "--waive=waived.*=agreed with the vendor",
        "--report-dir=all my runs",
        "--run-id=first",
        "--tensorboard",
    )
    return run(command, suite, cwd=elsewhere, reports=elsewhere / "all my runs")


def test_what_weakens_it_is_in_the_line_and_the_best_run_says_that_no_gpu_was_tested(accepted):
    assert accepted.returncode == 0, accepted.output
    assert accepted.record.conclusion.exit_code == 0
    assert accepted.verdict_line == "ACCEPTED (cpu profile: no GPU was tested, 1 waived, 1 limit loosened by overlay agreed limits.yaml)"
    assert accepted.verdict_line in accepted.output
    assert accepted.verdict_line in accepted.terminal_of(1)


def test_it_ran_in_the_order_of_its_phases_and_the_page_says_how_long_each_took(accepted):
    ran = [row.subject for row in accepted.record.rows[1:]]
    subjects = list(dict.fromkeys(ran))
    assert [set(subjects[:2]), *subjects[2:4], set(subjects[4:8]), *subjects[8:]] == [
        {"waived", "unstable_once"},
        "passes",
        "own_worker",
        {"asks_telemetry", "takes_turns", "declared_skip", "loosened"},
        "gathers",
    ]
    rows = re.findall(r'<tr><th scope="row">([^<]+)</th><td data-of="Subjects">([^<]+)</td>', (accepted.folder / "report.html").read_text())
    assert [name for name, _ in rows] == ["first", "second", "third", "of the site&#39;s own"]
    assert [one for _, ones in rows for one in ones.split(", ")] == subjects


def test_it_lies_where_it_was_asked_for_and_its_last_line_is_the_digest_of_a_manifest_over_all_its_files(accepted, capsys):
    assert accepted.folder.name == accepted.record.plan.run_id == "first"
    assert accepted.folder.parent.name == "all my runs"
    assert not (accepted.suite / "reports").exists()
    (digest,) = re.findall(rf"^manifest: {re.escape(str(accepted.folder))}/SHA256SUMS, sha256 (\w+)$", accepted.output, re.MULTILINE)
    assert main(["report", "verify", f"--sha256={digest}", str(accepted.folder)]) == 0
    assert "\nVERIFIED by --sha256: " in capsys.readouterr().out
    named = read_manifest(accepted.folder).digests
    assert {"junit.xml", "report.html", "results.json", "journal/rank-00001.jsonl", "logs/rank-00001.pytest.txt"} < set(named)
    assert any(name.startswith("tensorboard/") for name in named)
    assert f"SHA-256 <code>{named['results.json']}</code>" in (accepted.folder / "report.html").read_text()
    assert accepted.alone("passes").line == "ACCEPTED (cpu profile: no GPU was tested)"


def test_a_declared_skip_is_not_applicable_and_says_why(accepted):
    row = accepted.row("test_link")
    assert row.outcome == "not applicable"
    assert row.message == "ranks 0-1: not applicable: this machine has no InfiniBand (Skipped: no InfiniBand device)"
    assert accepted.record.plan.profile.not_applicable == {"declared_skip.*": "this machine has no InfiniBand"}


def test_a_waived_miss_stays_visible(accepted):
    row = accepted.row("test_waived.py::test_value")
    assert row.outcome == "not applicable"
    assert row.message.startswith("waived (agreed with the vendor): waived.value = 0.5 GB/s, need >= 1 GB/s [cpu.yaml: ")
    assert accepted.record.plan.waivers == {"waived.*": "agreed with the vendor"}


def test_a_loosened_bound_is_listed_with_both_values_and_the_digest_of_its_file(accepted):
    (change,) = accepted.record.plan.profile.changes
    assert (change.kind, change.key, change.old, change.new) == ("loosened", "loosened.value at_least", "1", "0.25")
    assert change.file == "agreed limits.yaml"
    assert change.sha256 == accepted.record.plan.profile.digests["agreed limits.yaml"]


def test_a_curve_of_each_rank_is_in_the_record_and_in_its_event_files(accepted):
    (attempt,) = accepted.row("test_passes.py::test_value").attempts
    curves = {record.rank: curve for record in attempt.ranks for curve in record.curves}
    assert {(curve.name, curve.unit) for curve in curves.values()} == {("passes.loss", "nats")}
    assert [curves[rank].points for rank in (0, 1)] == [(0.0, None, 0.5), (1.0, None, 0.5)]
    folder = accepted.folder / "tensorboard"
    assert accepted.output.count(f"tensorboard: 2 curves; to look at them: tensorboard --logdir='{folder}'\n") == 1
    runs = read_runs(folder)
    for tags in runs.values():
        tags["passes/loss"] = [(step, None if math.isnan(value) else value) for step, value in tags["passes/loss"]]
    hosts = [identity.host for identity in accepted.record.ranks]
    assert runs == {f"{hosts[rank]}/rank-{rank:05d}": {"passes/loss": list(enumerate(curves[rank].points))} for rank in (0, 1)}
    assert not [path.name for path in accepted.folder.iterdir() if path.name.startswith(".")]


def test_unstable_once_is_repeated_and_passes_with_both_attempts_in_the_record(accepted):
    row = accepted.row("test_unstable_once.py::test_value")
    assert row.outcome == "passed"
    assert [record.figures[0].spread_percent for attempt in row.attempts for record in attempt.ranks if record.rank == 1] == [30.0, 1.0]


def test_a_worker_of_its_own_has_its_variable_and_the_next_has_not_and_every_rank_gathers_one_value_of_each(accepted):
    values = {
        record.rank: [figure.value for figure in record.figures]
        for name in ("test_fresh", "test_own_worker.py::test_next")
        for record in accepted.row(name).attempts[0].ranks
    }
    assert accepted.row("test_fresh").outcome == accepted.row("test_own_worker.py::test_next").outcome == "passed"
    assert values == {0: ["none"], 1: ["none"]}  # of the later one
    generations = [accepted.row(name).attempts[0].ranks[0].generation for name in ("test_passes.py::test_value", "test_fresh")]
    assert generations[0] < generations[1] < accepted.row("test_own_worker.py::test_next").attempts[0].ranks[0].generation
    row = accepted.row("test_gathers.py::test_value")
    assert row.outcome == "passed"
    assert {record.figures[0].value for record in row.attempts[0].ranks} == {5}


def test_ranks_of_a_host_that_take_turns_never_work_at_the_same_time(accepted):
    row = accepted.row("test_takes_turns.py::test_value")
    assert row.outcome == "passed"
    moments = [
        [figure.value for figure in record.figures if figure.metric.endswith(f"round_{number}")]
        for number in range(2)
        for record in row.attempts[0].ranks
    ]
    assert [len(pair) for pair in moments] == [2] * 4
    assert all(end_s - begin_s >= 0.2 for begin_s, end_s in moments)
    assert all(earlier[1] <= later[0] for earlier, later in pairwise(moments))  # rank 0, rank 1, and once more


def test_what_is_in_their_place_costs_the_event_files_and_nothing_else(tmp_path):
    ended = plain_pytest(
        make_suite(tmp_path / "suite", "passes", "spoils_files"),
        "--tensorboard",
        "--run-id=first",
        env={"SPOILS": "reports/first/tensorboard"},
    )
    assert ended.returncode == ended.record.conclusion.exit_code == 0, ended.output
    assert f"tensorboard: no event files in {ended.folder}: RecordError: {ended.folder}/tensorboard is there already" in ended.output
    assert (ended.folder / "report.html").is_file()
    assert not list((ended.folder / "tensorboard").iterdir())


def test_without_the_package_nothing_is_begun(tmp_path):
    suite = make_suite(tmp_path / "suite", "passes")
    extend_conftest(suite, 'sys.modules["tensorboardX"] = None')
    refused = plain_pytest(suite, "--tensorboard")
    assert refused.returncode == 4, refused.output
    assert "ERROR: --tensorboard writes with tensorboardX, which is not installed: " in refused.output
    assert "-m pip install tensorboardX, or leave it out" in refused.output
    assert refused.folder is None


@pytest.fixture
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    np.save(folder / "tokens.npy", np.tile(np.arange(16, dtype=np.uint16), 100))
    for name, colour in (("blue", (0, 0, 255)), ("red", (255, 0, 0))):
        (folder / "images" / name).mkdir(parents=True)
        for place in range(6):
            Image.new("RGB", (40, 30), colour).save(folder / "images" / name / f"{place}.jpg")
    return folder


def test_what_was_trained_is_in_the_record_of_a_run_that_may_be_accepted(tmp_path, data):
    suite = shipped_suite(tmp_path / "suite", "ddp")
    ended = plain_pytest(suite, f"--data-dir={data}", env={"OMP_NUM_THREADS": "1"})
    assert ended.verdict_line.startswith("ACCEPTED (cpu profile: no GPU was tested"), ended.output
    figures = {figure.metric: figure.value for row in ended.record.rows for figure in row.attempts[-1].ranks[0].figures}
    assert (figures["ddp.gpt2.data"], figures["ddp.resnet.data"]) == ("tokens.npy: 1,600 tokens", "images: 12 of 2 classes")
