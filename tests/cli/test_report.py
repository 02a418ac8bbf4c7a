"""`report build` and `report merge`: the report from results or journals; the files of a reporter are never replaced."""

import os
import sys
from dataclasses import replace

import pytest
from tensorboard_runs import read_runs, with_curve, with_curves

from gpu_acceptance.cli import report
from gpu_acceptance.folder.files import read_results, write_results
from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.record.run_record import RunEnd
from gpu_acceptance.verdict.run_record import make_run_record
from tests.cli.test_verbs import NOW, leave_run, run, without_age
from tests.journals import RUN_ID, TRIAD, make_plan, told


def test_report_build_needs_results_alone(tmp_path, capsys):
    run_dir = leave_run(tmp_path)
    code, out, _ = run(capsys, "report", "build", run_dir)
    assert (code, out) == (0, f"{run_dir}/report.html\n")
    assert "ACCEPTED" in (run_dir / "report.html").read_text()


def test_report_build_tells_of_a_file_for_other_tools_that_it_cannot_write(tmp_path, capsys):
    run_dir = leave_run(tmp_path)
    (run_dir / "SHA256SUMS").unlink()
    (run_dir / "summary.txt").mkdir()
    code, out, err = run(capsys, "report", "build", run_dir)
    assert (code, out) == (3, f"{run_dir}/report.html\n")
    assert err.startswith(f"gpu-acceptance: {run_dir}/summary.txt could not be written: IsADirectoryError: ")


def test_report_build_refuses_what_the_verdict_refuses(tmp_path, capsys):
    run_dir = leave_run(tmp_path, exit_code=6)
    code, _, err = run(capsys, "report", "build", run_dir)
    assert code == 3
    assert "contradicts itself: conclusion.exit_code is 6, and what the record holds gives 0" in err
    assert not (run_dir / "report.html").exists()


def test_a_report_that_cannot_be_written_is_no_success(tmp_path, capsys, monkeypatch):
    def refuse(run_dir):
        raise PermissionError(13, "Permission denied", str(run_dir / "report.html"))

    monkeypatch.setattr(report, "write_page", refuse)
    run_dir = leave_run(tmp_path)
    assert run(capsys, "report", "build", run_dir) == (3, "", f"gpu-acceptance: {run_dir}/report.html: Permission denied\n")


def test_report_build_writes_event_files_where_they_are_asked_for(tmp_path, capsys):
    run_dir = leave_run(tmp_path)
    (run_dir / "SHA256SUMS").unlink()
    write_results(run_dir, with_curves(read_results(run_dir)))
    page = f"{run_dir}/report.html\n"
    assert run(capsys, "report", "build", run_dir) == (0, page, "")
    assert not (run_dir / "tensorboard").exists()
    line = f"tensorboard: 1 curve; to look at them: tensorboard --logdir={run_dir}/tensorboard\n"
    assert run(capsys, "report", "build", "--tensorboard", run_dir) == (0, page + line, "")
    assert read_runs(run_dir / "tensorboard") == {"node-01.example/rank-00000": {"a/loss": [(0, 2.5)]}}
    there = (
        f"gpu-acceptance: no event files in {run_dir}: RecordError: {run_dir}/tensorboard is there already; move it away to write it anew\n"
    )
    assert run(capsys, "report", "build", "--tensorboard", run_dir) == (3, page, there)


def test_so_it_does_of_a_run_that_it_rebuilds_whose_verdict_stands_without_them(tmp_path, capsys):
    journals = told()
    journals = replace(journals, attempts={**journals.attempts, TRIAD: [with_curve(journals.attempts[TRIAD][0])]})
    run_dir = journals.leave(tmp_path / RUN_ID, 3)
    code, out, err = run(capsys, "report", "build", "--tensorboard", run_dir)
    assert (code, err) == (6, "")
    assert out.endswith(f"results.json\ntensorboard: 1 curve; to look at them: tensorboard --logdir={run_dir}/tensorboard\n")
    assert list(read_runs(run_dir / "tensorboard").values()) == [{"a/loss": [(0, 2.5)]}]
    code, out, err = run(capsys, "report", "build", "--tensorboard", "--from-journals", run_dir)
    assert code == 6
    assert out.startswith("INCOMPLETE")
    assert err.endswith(f"{run_dir}/tensorboard is there already; move it away to write it anew\n")


def test_without_the_package_nothing_is_built(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    run_dir = leave_run(tmp_path)
    code, out, err = run(capsys, "report", "build", "--tensorboard", run_dir)
    assert (code, out) == (4, "")
    assert err == (
        "gpu-acceptance: --tensorboard writes with tensorboardX, which is not installed: "
        f"{sys.executable} -m pip install tensorboardX, or leave it out\n"
    )
    assert not (run_dir / "report.html").exists()


@pytest.mark.parametrize(
    ("journals", "code", "verdict"), [(told(), 6, "INCOMPLETE"), (told(triad=(120.0, 120.0, 50.0, 120.0)), 1, "REJECTED: 1 limit missed")]
)
def test_report_build_rebuilds_a_run_without_results(tmp_path, capsys, journals, code, verdict):
    run_dir = journals.leave(tmp_path / RUN_ID, 3)
    returned, out, err = run(capsys, "report", "build", tmp_path)
    assert (returned, err, out.count("\n")) == (code, "", 1)
    assert out.startswith(verdict)
    assert "no reporter saw this run whole: rebuilt from 3 of 4 journals (it left no results.json)" in out
    assert out.endswith(f"{run_dir}/results.json\n")
    assert "rebuilt from 3 of 4 journals" in (run_dir / "report.html").read_text()
    returned, again, err = run(capsys, "verdict", tmp_path)
    assert (returned, without_age(again), err) == (code, without_age(out), "")


def test_every_problem_of_a_journal_is_reported(tmp_path, capsys):
    run_dir = told().leave(tmp_path / RUN_ID)
    path = run_dir / "journal" / "rank-00002.jsonl"
    path.write_text(path.read_text() + '\x1b[2J\n{"kind":"rank","no')
    code, _, err = run(capsys, "report", "build", run_dir)
    assert code == 6
    assert err.splitlines() == [
        f"gpu-acceptance: {path}: line 7: not JSON: expected value at line 1 column 1",
        f"gpu-acceptance: {path}: line 8: cut off: the writer ended in the middle of it",
    ]


def test_what_was_rebuilt_may_be_rebuilt_again(tmp_path, capsys):
    run_dir = told().leave(tmp_path / RUN_ID, 3)
    run(capsys, "report", "build", run_dir)
    told().leave(tmp_path / "other")
    (tmp_path / "other" / "journal" / "rank-00003.jsonl").rename(run_dir / "journal" / "rank-00003.jsonl")
    assert run(capsys, "report", "build", run_dir) == (0, f"{run_dir}/report.html\n", "")
    code, out, _ = run(capsys, "report", "build", "--from-journals", run_dir)
    assert code == 6
    assert "rebuilt from 4 of 4 journals" in out


def test_what_the_reporter_wrote_is_never_replaced(tmp_path, capsys):
    run_dir = leave_run(tmp_path)
    before = (run_dir / "results.json").read_bytes()
    code, out, err = run(capsys, "report", "build", "--from-journals", run_dir)
    assert (code, out) == (4, "")
    assert err == (
        f"gpu-acceptance: {run_dir}/results.json: the run's own reporter wrote it; it is not replaced: "
        "move it away to rebuild the run from its journals\n"
    )
    assert (run_dir / "results.json").read_bytes() == before


@pytest.mark.parametrize("arguments", [(), ("--from-journals",)])
def test_results_that_cannot_be_read_are_never_replaced(tmp_path, capsys, arguments):
    run_dir = told().leave(tmp_path / RUN_ID)
    (run_dir / "results.json").write_text("{")
    code, _, err = run(capsys, "report", "build", *arguments, run_dir)
    assert code == 3
    assert "results.json: not JSON" in err
    assert ("it is not replaced: move it away" in err) == bool(arguments)
    assert (run_dir / "results.json").read_text() == "{"


def test_a_run_that_left_nothing_cannot_be_rebuilt(tmp_path, capsys):
    (tmp_path / RUN_ID).mkdir()
    code, _, err = run(capsys, "report", "build", tmp_path)
    assert (code, err) == (3, f"gpu-acceptance: {tmp_path}/{RUN_ID}: no journal/rank-*.jsonl in this folder\n")
    assert not list((tmp_path / RUN_ID).iterdir())


def test_journals_of_another_run_are_not_rebuilt_here(tmp_path, capsys):
    run_dir = told(plan=make_plan(run_id="first")).leave(tmp_path / RUN_ID)
    code, _, err = run(capsys, "report", "build", run_dir)
    assert (code, err) == (3, f"gpu-acceptance: {run_dir}/results.json: is of run first, not of {RUN_ID}\n")
    assert not (run_dir / "results.json").exists()


def test_report_merge_joins_the_journals_of_nodes(tmp_path, capsys):
    told().leave(tmp_path / "a", 2, 3)
    told().leave(tmp_path / "b", 0, 3)  # rank 1 is in both
    for path in tmp_path.glob("*/journal/*"):
        os.utime(path, (0, 1_795_161_600 + 60 * (path.name == "rank-00002.jsonl")))
    out_dir = tmp_path / "out"
    code, out, err = run(capsys, "report", "merge", out_dir, tmp_path / "a", tmp_path / "b")
    assert (code, err) == (6, "")
    assert "rebuilt from 3 of 4 journals (joined from 2 folders)" in out
    assert sorted(path.name for path in (out_dir / "journal").iterdir()) == [f"rank-0000{rank}.jsonl" for rank in range(3)]
    assert read_results(out_dir).ended_at == "2026-11-20T08:01:00+00:00"
    assert (out_dir / "report.html").exists()
    (last,) = (told().leave(tmp_path / "c", 0, 1, 2) / "journal").iterdir()
    os.utime(last, (0, 1_795_161_600))
    code, out, _ = run(capsys, "report", "merge", out_dir, tmp_path / "c")
    assert code == 6
    assert "rebuilt from 4 of 4 journals (joined from 1 folder)" in out
    assert read_results(out_dir).ended_at == "2026-11-20T08:01:00+00:00"


def test_journals_that_do_not_fit_together_are_not_merged(tmp_path, capsys):
    told().leave(tmp_path / "a", 2, 3)
    told(triad=(120.0, 110.0, 120.0, 120.0)).leave(tmp_path / "b", 0)
    told(plan=make_plan(run_id="another")).leave(tmp_path / "c", 0, 1)
    first, second = (tmp_path / name / "journal" / "rank-00001.jsonl" for name in "ab")
    code, _, err = run(capsys, "report", "merge", tmp_path / "out", tmp_path / "a", tmp_path / "b")
    assert (code, err) == (3, f"gpu-acceptance: {first} and {second}: two journals of one rank that differ\n")
    code, _, err = run(capsys, "report", "merge", tmp_path / "out", tmp_path / "a", tmp_path / "c")
    assert code == 3
    assert f"journals of different runs: run_id {RUN_ID} and another" in err
    code, _, err = run(capsys, "report", "merge", tmp_path / "out", tmp_path / "a", tmp_path / "nowhere")
    assert (code, err) == (4, f"gpu-acceptance report merge: DIR: {tmp_path}/nowhere: no such folder\n")
    (tmp_path / "nowhere").mkdir()
    code, _, err = run(capsys, "report", "merge", tmp_path / "out", tmp_path / "a", tmp_path / "nowhere")
    assert (code, err) == (4, f"gpu-acceptance: {tmp_path}/nowhere: no run in this folder: no journal/rank-*.jsonl\n")
    assert not (tmp_path / "out").exists()


def test_a_folder_of_copies_joins_nothing_and_is_named(tmp_path, capsys):
    """One folder given twice, or one run under two names, adds nothing."""
    first, again = tmp_path / "a", tmp_path / "again"
    told().leave(first, 2, 3)
    told().leave(again, 2, 3)
    for copy in (first, again):
        code, out, err = run(capsys, "report", "merge", tmp_path / f"out-{copy.name}", first, copy)
        assert code == 6
        assert "rebuilt from 2 of 4 journals (joined from 1 folder)" in out
        assert err == f"gpu-acceptance: {copy}: nothing but copies of journals of the folders before it\n"


def test_a_journal_under_the_name_of_another_rank_is_not_merged(tmp_path, capsys):
    journals = told().leave(tmp_path / "a", 2, 3) / "journal"
    (journals / "rank-00002.jsonl").write_bytes((journals / "rank-00001.jsonl").read_bytes())
    code, _, err = run(capsys, "report", "merge", tmp_path / "out", tmp_path / "a")
    said = f"gpu-acceptance: {journals}/rank-00002.jsonl: the file's name and its first line disagree: the first line identifies rank 1\n"
    assert (code, err) == (3, said)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("verb", ["build", "merge"])
def test_a_link_is_no_journal(tmp_path, capsys, verb):
    (tmp_path / "secret").write_text("of the user who joins foreign folders")
    run_dir = told().leave(tmp_path / RUN_ID, 2, 3)
    link = run_dir / "journal" / "rank-00002.jsonl"
    link.symlink_to(tmp_path / "secret")
    out_dir = tmp_path / "out" if verb == "merge" else run_dir
    code, _, err = run(capsys, "report", verb, *([out_dir] if verb == "merge" else []), run_dir)
    assert (code, err) == (3, f"gpu-acceptance: {link}: a link, not a journal that a rank wrote here\n")
    assert not (out_dir / "results.json").exists()


def test_a_run_that_has_its_report_is_not_merged(tmp_path, capsys):
    run_dir = leave_run(tmp_path)
    code, _, err = run(capsys, "report", "merge", tmp_path / "out", run_dir)
    assert code == 4
    assert f"{run_dir}/results.json: the run's own reporter wrote it and lost no rank: there is nothing to join" in err
    assert not (tmp_path / "out").exists()


def test_a_run_whose_reporter_lost_ranks_is_merged_and_its_report_stays(tmp_path, capsys):
    for name, silent in (("a", (2, 3)), ("b", (0, 1))):
        told().leave(tmp_path / name, *silent)
    seen = told(rank_2=Outcome.LOST, rank_3=Outcome.LOST)
    record = make_run_record(seen.plan, seen.job, seen.rows(), ended_at=NOW.isoformat(), end=RunEnd(), journals=range(4))
    write_results(tmp_path / "a", record)
    before = (tmp_path / "a" / "results.json").read_bytes()
    code, out, _ = run(capsys, "report", "merge", tmp_path / "out", tmp_path / "a", tmp_path / "b")
    assert code == 6
    assert "no reporter saw this run whole: rebuilt from 4 of 4 journals (joined from 2 folders)" in out
    assert (tmp_path / "a" / "results.json").read_bytes() == before
