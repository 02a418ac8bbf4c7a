"""Verbs of `report`: from results or journals; the files of a reporter are never replaced; no changed run looks like its own."""

import os
import shutil
import sys
from dataclasses import replace

import pytest
from tensorboard_runs import read_runs, with_curve, with_curves

from gpu_acceptance.cli import report
from gpu_acceptance.folder.files import read_results, write_results
from gpu_acceptance.folder.manifest import read_manifest, write_manifest
from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.record.run_record import RunEnd
from gpu_acceptance.report.build import write_page
from gpu_acceptance.report.exports import write_exports
from gpu_acceptance.verdict.run_record import make_run_record
from tests.cli.test_verbs import NOW, leave_run, run, without_age
from tests.journals import RUN_ID, TRIAD, make_plan, told
from tests.report import samples


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


@pytest.fixture
def run_dir(tmp_path):
    """The files of a reporter: results, the page, the manifest of both."""
    folder = leave_run(tmp_path)
    write_page(folder)
    write_manifest(folder)
    return folder


def digest_of(folder):
    return read_manifest(folder).sha256


def edit_results(folder):
    """Into those of another run, journals and all, which are as right in themselves."""
    shutil.rmtree(folder / "journal")
    samples.leave(folder, samples.accepted(ended_at="2026-11-21T00:00:00+00:00"))


def test_a_run_as_it_was_left(run_dir, capsys):
    tail = f"10 files as SHA256SUMS names them{{}} | SHA256SUMS sha256 {digest_of(run_dir)} | {run_dir}\n"
    line = read_results(run_dir).conclusion.line
    consistent = f"{line}\nCONSISTENT: " + tail.format("; whether it is the run's own, its digest says")
    assert run(capsys, "report", "verify", run_dir) == (0, consistent, "")
    verified = f"{line}\nVERIFIED by --sha256: " + tail.format("")
    assert run(capsys, "report", "verify", f"--sha256={digest_of(run_dir)}", run_dir.parent) == (0, verified, "")


def test_what_was_changed_is_named(run_dir, capsys):
    record = read_results(run_dir)
    write_results(run_dir, record.model_copy(update={"ended_at": "2026-11-21T00:00:00+00:00"}))
    (run_dir / "junit.xml").touch()
    code, out, err = run(capsys, "report", "verify", run_dir)
    assert (code, err) == (1, "")
    *lines, last = out.splitlines()
    assert lines == ["EXTRA junit.xml", "DIFFERS results.json"]
    assert last == f"CHANGED: 1 changed, 1 extra | SHA256SUMS sha256 {digest_of(run_dir)} | {run_dir}"


def test_a_manifest_made_anew_is_not_the_one_that_the_run_printed(run_dir, capsys):
    printed = digest_of(run_dir)
    edit_results(run_dir)
    write_manifest(run_dir)
    assert run(capsys, "report", "verify", run_dir)[0] == 0
    code, out, _ = run(capsys, "report", "verify", f"--sha256={printed}", run_dir)
    assert code == 1
    assert out.startswith(f"DIFFERS SHA256SUMS: its sha256 is not {printed}\nCHANGED: 1 changed | ")


def test_a_manifest_of_another_run(run_dir, tmp_path, capsys):
    other = leave_run(tmp_path / "elsewhere", "20261125-000000-ffff", samples.rejected)
    write_page(other)
    write_manifest(other)
    shutil.copy(other / "SHA256SUMS", run_dir)
    code, out, _ = run(capsys, "report", "verify", run_dir)
    assert code == 1
    assert "CHANGED: 10 changed: not one file as it names it, a manifest of another run | " in out
    shutil.rmtree(run_dir)
    shutil.copytree(other, run_dir)
    code, out, err = run(capsys, "report", "verify", run_dir)
    assert (code, out) == (3, "")
    assert err == f"gpu-acceptance: {run_dir}/results.json: is of run 20261125-000000-ffff, not of {run_dir.name}\n"


def test_a_run_without_a_manifest(tmp_path, capsys):
    folder = leave_run(tmp_path)
    (folder / "SHA256SUMS").unlink()
    line = f"{folder}: no SHA256SUMS: nothing says what this run left; its reporter was killed, or is of an earlier version"
    assert run(capsys, "report", "verify", folder) == (3, "", f"gpu-acceptance: {line}\n")
    assert run(capsys, "report", "build", folder)[0] == 0
    assert not (folder / "SHA256SUMS").exists()


def test_many_changes_are_counted(run_dir, capsys):
    for number in range(30):
        (run_dir / f"extra-{number:02d}").touch()
    out = run(capsys, "report", "verify", run_dir)[1].splitlines()
    assert out[-2] == "... and 10 more"
    assert out[-1].startswith("CHANGED: 30 extra | ")


def test_edited_results_have_no_verdict_and_get_no_page_and_no_manifest(run_dir, capsys):
    page, manifest = ((run_dir / name).read_bytes() for name in ("report.html", "SHA256SUMS"))
    edit_results(run_dir)
    line = f"gpu-acceptance: {run_dir}/results.json: not the file that SHA256SUMS beside it names: changed since the end of the run\n"
    for arguments in (("verdict",), ("report", "build"), ("report", "build", "--from-journals")):
        assert run(capsys, *arguments, run_dir) == (3, "", line)
    assert [(run_dir / name).read_bytes() for name in ("report.html", "SHA256SUMS")] == [page, manifest]


def test_the_page_is_built_again_to_the_byte_and_tells_the_digest_of_the_results(run_dir, capsys):
    write_exports(run_dir, read_results(run_dir))
    write_manifest(run_dir)
    assert f"SHA-256 <code>{read_manifest(run_dir).digests['results.json']}</code>" in (run_dir / "report.html").read_text()
    (run_dir / "report.html").unlink()
    assert run(capsys, "report", "build", run_dir) == (0, f"{run_dir}/report.html\n", "")
    assert run(capsys, "report", "verify", run_dir)[0] == 0


def test_a_page_of_another_version_is_reported(run_dir, capsys, monkeypatch):
    write_exports(run_dir, read_results(run_dir))
    write_manifest(run_dir)
    monkeypatch.setattr("gpu_acceptance.report.build.build_page", lambda *_: "another page")
    code, _, err = run(capsys, "report", "build", run_dir)
    assert (code, err) == (
        0,
        "gpu-acceptance: DIFFERS report.html: no longer the page that SHA256SUMS names, which stays as it is\n",
    )
    assert run(capsys, "report", "verify", run_dir)[1].startswith("DIFFERS report.html\nCHANGED: 1 changed | ")


def test_a_rebuilt_run_has_a_manifest_too(tmp_path, capsys):
    folder = told().leave(tmp_path / RUN_ID, 3)
    assert run(capsys, "report", "build", folder)[0] == 6
    assert run(capsys, "report", "verify", folder)[0] == 0
    told().leave(tmp_path / "other")
    (tmp_path / "other" / "journal" / "rank-00003.jsonl").rename(folder / "journal" / "rank-00003.jsonl")
    assert run(capsys, "report", "verify", folder)[1].startswith("EXTRA journal/rank-00003.jsonl\n")
    assert run(capsys, "report", "build", "--from-journals", folder)[0] == 6
    assert run(capsys, "report", "verify", folder)[0] == 0
    path = folder / "journal" / "rank-00000.jsonl"
    path.write_text(path.read_text().replace("120.0", "121.0"))
    code, _, err = run(capsys, "report", "build", "--from-journals", folder)
    assert code == 6
    assert err == f"gpu-acceptance: {path}: is not the file that SHA256SUMS beside it names\n"
    assert f"{path}: is not the file that SHA256SUMS beside it names" in read_results(folder).conclusion.reasons
    assert f"{path}: is not the file" in (folder / "report.html").read_text()


def test_a_manifest_outlives_the_results_that_it_names(run_dir, capsys):
    (run_dir / "results.json").unlink()
    line = f"gpu-acceptance: {run_dir}/SHA256SUMS: of a run whose results.json is gone; move it away to rebuild the run from its journals\n"
    assert run(capsys, "report", "build", run_dir) == (3, "", line)
    assert run(capsys, "report", "merge", run_dir, run_dir) == (3, "", line)
    assert not (run_dir / "results.json").exists()
