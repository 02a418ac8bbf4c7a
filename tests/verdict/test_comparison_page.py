"""`report compare`: the verb and its page."""

from pathlib import Path

import pytest

from gpu_acceptance.folder.files import read_results, write_results
from gpu_acceptance.folder.manifest import write_manifest
from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.report.build import build_compare_page
from gpu_acceptance.verdict.comparison import compare
from tests.cli.test_verbs import run
from tests.report import samples
from tests.report.pages import parse
from tests.report.test_hostile import PIECES, construct, tainted
from tests.verdict.comparisons import GEMM, later, not_run, scaled, with_row

REPORTS = Path(__file__).parents[2] / "reports"


def test_a_real_run_that_was_accepted_and_one_that_measured_little(tmp_path, capsys):
    runs = REPORTS / "evidence"
    page = tmp_path / "page.html"
    little = read_results(runs / "h200-training/x2-sound")  # it ran before the other one
    before = {row.nodeid for row in read_results(runs / "h200x2-accept/full").rows if row.outcome is Outcome.PASSED}
    num_left = len(before - {row.nodeid for row in little.rows})
    after = samples.leave(tmp_path / "after", later(little, started_at="2026-12-01T07:00:00+00:00", ended_at="2026-12-01T08:00:00+00:00"))
    code, out, err = run(capsys, "report", "compare", runs / "h200x2-accept/full", after, f"--html={page}")
    assert (code, err) == (6, "")
    assert out.splitlines()[-1] == f"NOT COMPARABLE: {num_left} right before and not tested again; 1 validation and 0 figures compared"
    assert "NOT TESTED AGAIN acceptance/test_binding.py::test_gpu: passed, and the later run does not have it" in out
    assert parse(page.read_text()).all("h1")[0].text.split()[:3] == ["○", "NOT", "COMPARABLE:"]
    assert len([one for one in parse(page.read_text()).all("td") if one.text.strip() == "○ NOT TESTED AGAIN"]) == num_left > 60


def test_two_real_runs_with_and_without_another_job_on_the_gpus(tmp_path, capsys):
    runs = REPORTS / "evidence" / "h200-compute"
    code, out, err = run(capsys, "report", "compare", runs / "x4-full", runs / "x4-competitor", f"--html={tmp_path / 'page.html'}")
    lines = out.splitlines()
    assert (code, err) == (1, "")
    assert lines[0].startswith("BEFORE 20261122-122924-b433: ACCEPTED")
    assert lines[1].startswith("AFTER 20261122-123832-bd5d: REJECTED: 7 limits missed")
    assert lines[2].startswith("DIFFERS waiver gpu_health.processes.*: none -> ")
    assert [
        line for line in lines if line.startswith("NEW acceptance/test_hbm.py::test_bandwidth[copy]: hbm.copy.bandwidth = 3990.88 GB/s")
    ]
    assert [line for line in lines if "hbm.read.bandwidth = 4471.47 -> 4198.23 GB/s (-6.1 %, noise 2.0 %) | node-00, GPU 1" in line]
    assert (
        lines[-1]
        == "SOMETHING WORSE: 14 failures new, 32 right before and not tested again, 7 figures worse; 11 validations and 32 figures compared"
    )
    page = parse((tmp_path / "page.html").read_text())
    assert page.all("h1")[0].text.split() == ["✗", *lines[-1].split()]
    cells = [one.text.strip() for one in page.all("td")]
    assert {"4471.47 GB/s", "4198.23 GB/s", "-6.1 %", "2.0 %", "node-00, GPU 1"} <= set(cells)


@pytest.mark.parametrize(
    ("before", "after", "num_figures"),
    [("h200-compute/x4-full", "h200-compute/x4-quick", 44), ("h200x8-accept/gpus8", "h200x8-accept/raised", 64)],
)
def test_no_figure_of_one_machine_moves_by_more_than_noise(before, after, num_figures):
    found = compare(*(read_results(REPORTS / "evidence" / name) for name in (before, after)))
    assert (found.num_figures, found.figures) == (num_figures, ())


def test_one_run_is_not_compared_with_itself(tmp_path, capsys):
    folder = samples.leave(tmp_path / "run", samples.accepted())
    line = f"gpu-acceptance: {folder} and {folder}: both are of run {samples.RUN_ID}\n"
    assert run(capsys, "report", "compare", folder, folder) == (4, "", line)


def test_an_earlier_run_is_not_taken_for_the_one_after_a_repair(tmp_path, capsys):
    failed = samples.leave(tmp_path / "failed", samples.rejected())
    old = samples.leave(tmp_path / "old", later(samples.accepted(), started_at="2026-11-19T07:00:00+00:00"))
    said = f"{old} began at 2026-11-19T07:00:00+00:00, and {failed} at 2026-11-20T07:00:00+00:00: name the earlier run first"
    line = f"gpu-acceptance: {said}\n"
    assert run(capsys, "report", "compare", failed, old) == (4, "", line)
    assert run(capsys, "report", "compare", old, failed)[0] == 1


@pytest.mark.parametrize(
    "name",
    [
        *("after/logs/page.html", "before/results.json"),
        *("killed/journal/rank-00000.jsonl", "killed/logs/rank-00000.log", "killed/report.html"),
    ],
)
def test_a_page_never_goes_into_the_folder_of_a_run(tmp_path, capsys, good, name):
    before, after = samples.leave(tmp_path / "before", samples.accepted()), samples.leave(tmp_path / "after", good)
    write_manifest(after)
    (samples.leave(tmp_path / "killed", samples.rejected()) / "results.json").unlink()
    page = tmp_path / name
    page.parent.mkdir(exist_ok=True)
    content = page.read_bytes() if page.exists() else None
    code, _, err = run(capsys, "report", "compare", before, after, f"--html={page}")
    assert (code, err) == (4, f"gpu-acceptance: {page}: in the folder of a run, which a new file would change; name another place\n")
    assert (page.read_bytes() if page.exists() else None) == content


def test_edited_results_are_not_compared(tmp_path, capsys, good):
    before, after = samples.leave(tmp_path / "before", samples.accepted()), samples.leave(tmp_path / "after", good)
    write_manifest(after)
    write_results(after, later(good, ended_at="2026-11-22T00:00:00+00:00"))
    code, out, err = run(capsys, "report", "compare", before, after)
    assert (code, out) == (3, "")
    assert "after/results.json: not the file that SHA256SUMS beside it names" in err


@pytest.mark.parametrize("taint", PIECES)
def test_hostile_text_changes_nothing_but_its_own_cell(bad, taint):
    worse = with_row(bad, GEMM, scaled("gemm.bf16.tflops", 0.5, 0))
    after = later(with_row(worse, "acceptance/test_nccl.py::test_nccl_large[all_reduce]", not_run), gpu_acceptance_version="9")
    assert compare(bad, after).lost

    def page(taint):
        before_and_after = (construct(type(record), tainted(record.model_dump(), taint)) for record in (bad, after))
        return parse(build_compare_page(compare(*before_and_after)))

    assert page(f"x{taint}").shape == page("x").shape
