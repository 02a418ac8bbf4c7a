"""The command line: one line, the run's own exit code, never the verdict of another run."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from tensorboard_runs import read_runs, with_curve, with_curves

from gpu_acceptance import __version__
from gpu_acceptance.cli import evidence, report
from gpu_acceptance.cli import verbs as cli
from gpu_acceptance.cli.run_folder import how_long_ago
from gpu_acceptance.cli.verbs import main
from gpu_acceptance.folder.files import read_results, write_results
from gpu_acceptance.folder.journal import Journal
from gpu_acceptance.folder.manifest import write_manifest
from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.record.run_record import Refusal, RunEnd
from gpu_acceptance.report.remedies import table
from gpu_acceptance.thresholds.profile import profile_names, shipped_dir
from gpu_acceptance.verdict.run_record import make_run_record
from tests.journals import RUN_ID, TRIAD, make_plan, told
from tests.judging import make_identity
from tests.report import samples
from tests.run.test_suite import ROOT

VERBS = "run, verdict, report, init, inventory, snapshot, health, watch, pods, meet, remedy, explain, limits, profiles"
NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)


def leave_run(reports, run_id=samples.RUN_ID, sample=samples.accepted, **conclusion):
    """A run folder with its results, journals and manifest, the conclusion changed where asked."""
    record = sample(run_id=run_id)
    run_dir = samples.leave(reports / run_id, record)
    if conclusion:
        write_results(run_dir, record.model_copy(update={"conclusion": record.conclusion.model_copy(update=conclusion)}))
    write_manifest(run_dir)
    return run_dir


def without_age(line):
    """The line without how long ago the run ended, which grows between two calls."""
    text, found = re.subn(r" \| ended [0-9.]+ s ago", "", line)
    assert found == 1
    return text


def run(capsys, *arguments):
    """Exit code, standard output, standard error."""
    try:
        code = cli.main([str(argument) for argument in arguments])
    except SystemExit as exit_:
        code = exit_.code
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize(
    ("sample", "code", "line"),
    [
        ("accepted", 0, "ACCEPTED"),
        ("rejected", 1, samples.rejected().conclusion.line),
        ("incomplete", 6, samples.incomplete().conclusion.line),
        ("cpu", 0, "ACCEPTED (cpu profile: no GPU was tested)"),
    ],
)
def test_verdict_is_one_line_and_the_code_of_the_run(tmp_path, capsys, sample, code, line):
    run_dir = leave_run(tmp_path, sample=samples.ALL[sample])
    returned, out, err = run(capsys, "verdict", run_dir)
    assert (returned, err) == (code, "")
    assert out.startswith(f"{line} | run {samples.RUN_ID} | ended ")
    assert out.endswith(f" | {run_dir}/results.json\n")
    assert out.count("\n") == 1


@pytest.mark.parametrize(("sample", "code"), [("accepted", 3), ("rejected", 1), ("incomplete", 6)])
def test_without_its_manifest_no_run_is_accepted_and_none_is_better_than_it_says(tmp_path, capsys, sample, code):
    """As after an edit that leaves no contradiction, with the manifest removed."""
    run_dir = leave_run(tmp_path, sample=samples.ALL[sample])
    (run_dir / "SHA256SUMS").unlink()
    returned, out, err = run(capsys, "verdict", tmp_path)
    assert returned == code
    assert bool(out) == (code != 3)
    if code == 3:
        seen = f"{run_dir}: no SHA256SUMS, which a run writes last, beside a results.json that says ACCEPTED: "
        why = "the run still goes on, its reporter was killed or could not write it, it is of an earlier version, or the file was removed"
        assert err == f"gpu-acceptance: {seen}{why}; there is no verdict\n"


def test_a_folder_of_runs_means_the_newest(tmp_path, capsys):
    leave_run(tmp_path, "20261120-070000-ab12", samples.accepted)
    leave_run(tmp_path, "20261121-060000-0001", samples.rejected)
    (tmp_path / "README.md").touch()
    (tmp_path / "samples").mkdir()
    (tmp_path / "samples" / "results.json").touch()
    code, out, _ = run(capsys, "verdict", tmp_path)
    assert code == 1
    assert "run 20261121-060000-0001" in out


def test_the_default_folder_is_reports(tmp_path, capsys, monkeypatch):
    leave_run(tmp_path / "reports")
    monkeypatch.chdir(tmp_path)
    assert run(capsys, "verdict")[0] == 0


def test_a_newest_run_without_results_never_hands_out_an_older_verdict(tmp_path, capsys):
    leave_run(tmp_path, "20261120-070000-ab12")
    (tmp_path / "20261120-080000-cd34").mkdir()
    for folder in (tmp_path, tmp_path / "20261120-080000-cd34"):
        code, out, err = run(capsys, "verdict", folder)
        assert (code, out) == (3, "")
        assert err == (
            f"gpu-acceptance: {tmp_path}/20261120-080000-cd34: this run left no results.json: "
            "it was refused, killed, or is still going on; there is no verdict\n"
        )


@pytest.mark.parametrize("name", [RUN_ID, "first"])
def test_a_killed_run_has_no_verdict_and_the_message_says_how_to_rebuild_it(tmp_path, capsys, name):
    run_dir = told().leave(tmp_path / name)
    code, out, err = run(capsys, "verdict", run_dir)
    assert (code, out) == (3, "")
    assert err == (
        f"gpu-acceptance: {run_dir}: this run left no results.json: it was refused, killed, or is still going on; there is no verdict; "
        f"to judge what its journals prove: gpu-acceptance report build {run_dir}\n"
    )


ABSENT = "rank 1 (node 1) did not arrive within 120 s; see what torchrun said there"


def leave_refusal(run_dir, *messages, run_id=None):
    """The journals of a run that never began: who each rank is, and what it said."""
    for rank, message in enumerate(messages):
        with Journal(run_dir / "journal" / f"rank-{rank:05d}.jsonl") as journal:
            journal.append(make_identity(rank, 2, 1).model_copy(update={"run_id": run_id or run_dir.name}))
            journal.append(Refusal(message=message, ended_at=datetime.now(UTC).isoformat(timespec="seconds")))
    return run_dir


def test_a_run_whose_ranks_never_met_says_so_and_hides_no_older_one(tmp_path, capsys):
    leave_run(tmp_path, "20261120-070000-ab12")
    run_dir = leave_refusal(tmp_path / "20261120-080000-cd34", ABSENT)
    for folder in (tmp_path, run_dir):
        code, out, err = run(capsys, "verdict", folder)
        assert (code, err) == (6, "")
        assert out.startswith(f"INCOMPLETE: nothing ran: {ABSENT} | run 20261120-080000-cd34 | ended ")
        assert out.endswith(f" ago | {run_dir}/journal/rank-00000.jsonl\n")
    assert run(capsys, "verdict", leave_refusal(tmp_path / "named", ABSENT))[0] == 6


def test_a_run_whose_ranks_never_met_has_no_report(tmp_path, capsys):
    run_dir = leave_refusal(tmp_path / RUN_ID, ABSENT)
    line = f"gpu-acceptance: {run_dir}/journal/rank-00000.jsonl: no report, because nothing ran: {ABSENT}\n"
    for arguments in ((), ("--from-journals",)):
        assert run(capsys, "report", "build", *arguments, tmp_path) == (6, "", line)
    assert [path.name for path in run_dir.iterdir()] == ["journal"]


def test_joined_folders_of_a_run_whose_ranks_never_met_have_no_report(tmp_path, capsys):
    one, other = (leave_refusal(tmp_path / name, ABSENT, "no control store") for name in "ab")
    (one / "journal" / "rank-00001.jsonl").unlink()
    (other / "journal" / "rank-00000.jsonl").unlink()
    code, out, err = run(capsys, "report", "merge", tmp_path / "out", one, other)
    assert (code, out) == (6, "")
    why = f'rank 0 said "{ABSENT}", rank 1 said "no control store"'
    assert err == f"gpu-acceptance: {one}/journal/rank-00000.jsonl: no report, because nothing ran: {why}\n"
    assert not (tmp_path / "out").exists()


def test_a_refusal_of_another_run_gives_no_verdict(tmp_path, capsys):
    path = leave_refusal(tmp_path / RUN_ID, ABSENT, run_id="20261125-000000-ffff") / "journal" / "rank-00000.jsonl"
    assert run(capsys, "verdict", tmp_path) == (3, "", f"gpu-acceptance: {path}: is of run 20261125-000000-ffff, not of {RUN_ID}\n")


def test_a_refusal_beside_a_plan_is_no_verdict_on_the_others(tmp_path, capsys):
    run_dir = told().leave(tmp_path / RUN_ID, 0)
    leave_refusal(run_dir, "no control store")
    code, _, err = run(capsys, "verdict", tmp_path)
    assert code == 3
    assert f"to judge what its journals prove: gpu-acceptance report build {run_dir}" in err
    assert run(capsys, "report", "build", tmp_path)[0] == 6
    assert "took no part: rank 0: no control store" in read_results(run_dir).conclusion.reasons


@pytest.mark.parametrize("begins_first", [True, False])
@pytest.mark.parametrize("leaves_results", [True, False])
def test_a_run_whose_name_has_no_time_says_it_in_its_results_or_journals(tmp_path, capsys, begins_first, leaves_results):
    leave_run(tmp_path, "20261120-070000-ab12", samples.rejected)
    started_at = "2026-11-20T06:59:59+00:00" if begins_first else "2026-11-20T07:00:01+00:00"
    if leaves_results:
        leave_run(tmp_path, "monday", partial(samples.accepted, started_at=started_at))
    else:
        told(plan=make_plan(started_at=started_at)).leave(tmp_path / "monday")
    code, out, err = run(capsys, "verdict", tmp_path)
    assert code == (1 if begins_first else 0 if leaves_results else 3)
    assert ("ab12 | ended " in out) == begins_first
    assert ("monday | ended " in out) == (leaves_results and not begins_first)
    assert ("monday: this run left no results.json" in err) == (code == 3)


@pytest.mark.parametrize("content", [None, "", '{"started_at": "now"}'])
def test_a_run_that_does_not_say_when_counts_by_its_folder_and_is_never_passed_over(tmp_path, capsys, content):
    leave_run(tmp_path, "20261120-070000-ab12")
    (tmp_path / "monday" / "journal").mkdir(parents=True)
    if content is not None:
        (tmp_path / "monday" / "results.json").write_text(content)
    os.utime(tmp_path / "monday", (0, 4_000_000_000))
    code, out, err = run(capsys, "verdict", tmp_path)
    assert (code, out) == (3, "")
    assert f"{tmp_path}/monday" in err


def test_two_runs_that_began_together_are_a_usage_error(tmp_path, capsys):
    for name in ("20261120-070000-ab12", "20261120-070000-cd34"):
        leave_run(tmp_path, name)
    code, out, err = run(capsys, "verdict", tmp_path)
    assert (code, out) == (4, "")
    assert (
        "cannot tell which run is the newest, 20261120-070000-ab12 and 20261120-070000-cd34 started in one second; name a run folder" in err
    )


def test_a_link_to_a_run_is_no_run_of_its_own(tmp_path, capsys):
    (tmp_path / "latest").symlink_to(leave_run(tmp_path))
    assert run(capsys, "verdict", tmp_path)[0] == 0
    assert run(capsys, "verdict", tmp_path / "latest")[0] == 0


@pytest.mark.parametrize(("name", "message"), [("nowhere", "no such folder"), ("file", "no such folder"), ("", "no run in this folder")])
def test_without_a_run_it_is_a_usage_error(tmp_path, capsys, name, message):
    (tmp_path / "file").touch()
    folder = tmp_path / name
    assert run(capsys, "verdict", folder) == (4, "", f"gpu-acceptance: {folder}: {message}\n")


@pytest.mark.parametrize("text", ["", "ACCEPTED", '{"schema_version": 2}', "{}", None])
def test_unusable_results_give_no_verdict(tmp_path, capsys, text):
    path = leave_run(tmp_path) / "results.json"
    if text is None:
        path.unlink()
        path.mkdir()
    else:
        path.write_text(text)
    code, out, err = run(capsys, "verdict", tmp_path)
    assert (code, out, err.count("\n")) == (3, "", 1)
    assert f"{path}: " in err


@pytest.mark.parametrize(("sample", "exit_code"), [("accepted", 1), ("accepted", 3), ("incomplete", 0), ("rejected", 0)])
def test_results_that_contradict_themselves_give_no_verdict(tmp_path, capsys, sample, exit_code):
    leave_run(tmp_path, sample=samples.ALL[sample], exit_code=exit_code)
    code, out, err = run(capsys, "verdict", tmp_path)
    assert (code, out, err.count("\n")) == (3, "", 1)
    assert "results.json: contradicts itself: " in err


def test_an_edited_verdict_line_is_not_repeated(tmp_path, capsys):
    leave_run(tmp_path, sample=samples.rejected, line="ACCEPTED")
    code, out, _ = run(capsys, "verdict", tmp_path)
    assert (code, out.split(" | ")[0]) == (1, samples.rejected().conclusion.line)


def test_results_of_another_run_give_no_verdict(tmp_path, capsys):
    other = tmp_path / "20261125-000000-ffff"
    leave_run(tmp_path).rename(other)
    code, _, err = run(capsys, "verdict", tmp_path)
    assert (code, err) == (3, f"gpu-acceptance: {other}/results.json: is of run {samples.RUN_ID}, not of {other.name}\n")


@pytest.mark.parametrize("verb", [["verdict"], ["report", "build"]])
def test_results_beside_the_journals_of_another_run_give_no_verdict(tmp_path, capsys, verb):
    run_dir = told(plan=make_plan(run_id="first")).leave(tmp_path / "run")
    write_results(run_dir, samples.accepted())
    code, out, err = run(capsys, *verb, run_dir)
    journal = run_dir / "journal" / "rank-00000.jsonl"
    assert (code, out) == (3, "")
    assert err == f"gpu-acceptance: {run_dir}/results.json: is of run {samples.RUN_ID}, and {journal} beside it is of first\n"
    assert not (run_dir / "report.html").exists()


@pytest.mark.parametrize("verb", [["verdict"], ["report", "build"]])
def test_a_link_to_the_results_of_another_run_gives_no_verdict(tmp_path, capsys, verb):
    other = leave_run(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "results.json").symlink_to(other / "results.json")
    said = f"gpu-acceptance: {tmp_path}/run/results.json: a link, and not what a run left here\n"
    assert run(capsys, *verb, tmp_path / "run") == (3, "", said)


def test_a_renamed_run_folder_still_speaks_for_its_run(tmp_path, capsys):
    run_dir = leave_run(tmp_path).rename(tmp_path / "for-the-vendor")
    assert run(capsys, "verdict", run_dir)[0] == 0


def test_text_of_a_machine_cannot_steer_the_terminal(tmp_path, capsys):
    leave_run(tmp_path, sample=partial(samples.accepted, selection="-k '\n\x1b[2Jtwo\u202e'"))
    _, out, _ = run(capsys, "verdict", tmp_path)
    assert out.startswith(r"ACCEPTED (-k '\n\x1b[2Jtwo\u202e') | run ")
    assert out.count("\n") == 1


@pytest.mark.parametrize(
    ("ago", "text"),
    [
        (timedelta(seconds=5), "ended 5.0 s ago"),
        (timedelta(hours=3, minutes=5), "ended 3 h 5 min ago"),
        (timedelta(days=1, hours=5), "ended 1 day ago"),
        (timedelta(days=40), "ended 40 days ago"),
        (timedelta(minutes=-10), "ended 10 min 0 s in the future: the clocks differ"),
        (timedelta(days=-400), "ended 400 days in the future: the clocks differ"),
    ],
)
def test_how_long_ago(ago, text):
    assert how_long_ago((NOW - ago).isoformat(), NOW) == text


def test_an_age_of_half_a_century_is_a_wrong_clock():
    said = "ended at 1970-01-01T00:01:00+00:00, when this program did not exist: that node's clock was wrong"
    assert how_long_ago("1970-01-01T00:01:00+00:00", NOW) == said


@pytest.mark.parametrize("ended_at", ["", "yesterday", "2026-11-20T07:00:00"])
def test_an_invalid_time_is_an_error(ended_at):
    with pytest.raises(ValueError, match=r"ended_at is .*, not an ISO 8601 time with a zone"):
        how_long_ago(ended_at, NOW)


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


def test_profiles_lists_what_is_shipped(capsys):
    code, out, _ = run(capsys, "profiles")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == profile_names(shipped_dir())
    assert next(line for line in out.splitlines() if line.startswith("h200-sxm ")).endswith("  NVIDIA H200")


def test_a_broken_profile_is_named(tmp_path, capsys, monkeypatch):
    (tmp_path / "base.yaml").write_text("limits: [")
    monkeypatch.setattr(cli, "shipped_dir", lambda: tmp_path)
    code, _, err = run(capsys, "profiles")
    assert (code, err.count("\n")) == (4, 1)
    assert "base.yaml" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), f"gpu-acceptance: name a verb; known: {VERBS}"),
        (("verdct",), f"gpu-acceptance: unknown verb 'verdct'; known: {VERBS}; did you mean 'verdict'?"),
        (("judge",), f"gpu-acceptance: unknown verb 'judge'; known: {VERBS}"),
        (("report",), "gpu-acceptance report: name a verb; known: build, merge, compare, verify, sign, redact"),
        (
            ("report", "bild"),
            "gpu-acceptance report: unknown verb 'bild'; known: build, merge, compare, verify, sign, redact; did you mean 'build'?",
        ),
        (("report", "merge", "out"), "gpu-acceptance report merge: the following arguments are required: DIR"),
        (
            ("report", "build", "--tensorbord"),
            "gpu-acceptance report build: --tensorbord: unknown option; known: --help, --from-journals, --tensorboard; "
            "did you mean '--tensorboard'?",
        ),
        (("report", "merge", "out", "dir\nx"), "gpu-acceptance report merge: DIR: dir\\nx: no such folder"),
        (("verdict", "a", "b"), "gpu-acceptance verdict: b: one argument too many; --help shows those that there are"),
        (("verdict", "--force"), "gpu-acceptance verdict: --force: unknown option; known: --help"),
        (
            ("health", "x", "--expect-gpu=8"),
            "gpu-acceptance health: --expect-gpu=8: unknown option; known: --help, --hardware, --limits, --allow-busy, --expect-gpus; "
            "did you mean '--expect-gpus'?",
        ),
    ],
)
def test_usage_errors_are_one_line_and_end_with_4(capsys, arguments, message):
    assert run(capsys, *arguments) == (4, "", f"{message}\n")


PATHS = {  # a verb -> the arguments before and after a path
    **dict.fromkeys(("verdict", "inventory", "health", "report build", "report verify"), ((), ())),
    "report merge": (("out",), ()),
    "report compare": ((), (".",)),
    "report sign": (("--key=key",), ()),
    "report redact": (("--names=names",), ("out",)),
}


@pytest.mark.parametrize("verb", PATHS)
def test_a_path_that_is_not_there_is_a_usage_error_of_every_verb(tmp_path, capsys, monkeypatch, verb):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "key").touch()
    before, after = PATHS[verb]
    code, out, err = run(capsys, *verb.split(), *before, "nowhere", *after)
    assert (code, out, err.count("\n")) == (4, "", 1)
    assert "nowhere: no such f" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("report", "verify", "--allowed-signers=nowhere", "."), "report verify: --allowed-signers: nowhere: no such file"),
        (("report", "verify", "--allowed-signers=.", "."), "report verify: --allowed-signers: .: is a folder; allowed: a file"),
        (("report", "sign", "--key=nowhere", "."), "report sign: --key: nowhere: no such file"),
        (("report", "redact", "--names=no/names", ".", "out"), "report redact: --names: no/names: no such folder: no"),
        (("report", "compare", "--html=no/page.html", ".", "."), "report compare: --html: no/page.html: no such folder: no"),
        (("snapshot", "no/node.json"), "snapshot: FILE: no/node.json: no such folder: no"),
        (("snapshot", "/dev/null"), "snapshot: FILE: /dev/null: not a regular file, so it is not replaced"),
    ],
)
def test_a_file_that_an_option_names_is_looked_for_first(tmp_path, capsys, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert run(capsys, *arguments) == (4, "", f"gpu-acceptance {message}\n")


def test_half_of_a_key_is_enough_where_the_other_is_with_an_agent(tmp_path):
    (tmp_path / "key.pub").touch()
    assert evidence._key(str(tmp_path / "key")) == tmp_path / "key"


HELP = [("--help",), ("report", "-h"), ("report", "merge", "-h"), *((verb, "-h") for verb in VERBS.split(", "))]


@pytest.mark.parametrize("arguments", HELP)
def test_every_verb_has_help(capsys, arguments):
    code, out, _ = run(capsys, *arguments)
    assert code == 0
    assert out.startswith("usage: gpu-acceptance")


def test_version(capsys):
    assert run(capsys, "--version") == (0, f"gpu-acceptance {__version__}\n", "")


def test_the_module_runs_like_the_command(tmp_path):
    leave_run(tmp_path, sample=samples.incomplete)
    environment = {**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[2])}
    command = [sys.executable, "-m", "gpu_acceptance", "verdict", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=180)
    assert (done.returncode, done.stderr) == (6, "")
    assert done.stdout.startswith(f"{samples.incomplete().conclusion.line} | ")


def files_of(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"}


def test_the_copy_holds_the_suite_its_limits_and_a_readme(tmp_path, capsys):
    folder = tmp_path / "new" / "mine"
    assert main(["init", str(folder)]) == 0
    copied = files_of(folder)
    readme = copied.pop("README.md").decode()
    wanted = {name: (ROOT / name).read_bytes() for name in ("conftest.py", "pytest.ini")}
    for part in ("acceptance", "fixtures", "thresholds"):
        wanted |= {f"{part}/{name}": content for name, content in files_of(ROOT / part).items()}
    assert copied == wanted
    assert readme.startswith("# An acceptance suite of your own\n\nA copy of the suite of gpu-acceptance 0.2.0, ")
    assert capsys.readouterr().out.startswith(f"{folder}: the suite of gpu-acceptance 0.2.0; README.md there says how to run it")


def test_a_folder_that_is_there_and_empty_is_taken(tmp_path):
    assert main(["init", str(tmp_path)]) == 0
    assert (tmp_path / "conftest.py").is_file()


@pytest.mark.parametrize(("name", "what"), [("full", "is not empty"), ("file", "is a file")])
def test_existing_files_stay(tmp_path, capsys, name, what):
    place = tmp_path / name
    if name == "file":
        place.write_text("mine")
    else:
        place.mkdir()
        (place / "mine").touch()
    before = sorted(tmp_path.rglob("*"))
    assert main(["init", str(place)]) == 4
    told = f"gpu-acceptance: {place} {what}; allowed: a folder that does not exist yet, or is empty\n"
    assert capsys.readouterr().err == told
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_that_cannot_be_made_is_named(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert main(["init", str(tmp_path / "file" / "below")]) == 3
    assert capsys.readouterr().err == f"gpu-acceptance: {tmp_path / 'file' / 'below' / 'acceptance'}: Not a directory\n"


def test_without_a_kind_all_are_listed_one_a_line(capsys):
    assert main(["remedy"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(table().remedies)
    assert any(line.split(maxsplit=2)[1:] == ["reset", "a repair of GPU memory waits for a reset"] for line in lines)


@pytest.mark.parametrize("kind", table().remedies)
def test_a_kind_is_printed_whole(capsys, kind):
    assert main(["remedy", kind]) == 0
    out, remedy = capsys.readouterr().out, table().remedies[kind]
    severity = table().severities[remedy.severity]
    assert out.startswith(f"{kind}: {remedy.title}\n")
    for part in (remedy.means, remedy.do, *remedy.checks, *severity.commands.values()):
        assert part in out


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("repair_pendin", "no kind of failure 'repair_pendin'; did you mean 'repair_pending'? (gpu-acceptance remedy lists them)"),
        ("zzzz", "no kind of failure 'zzzz' (gpu-acceptance remedy lists them)"),
        ("\x1b[31m\n", "no kind of failure '\\\\x1b[31m\\\\n' (gpu-acceptance remedy lists them)"),
    ],
)
def test_a_kind_that_is_not_in_the_table_is_a_usage_error(capsys, kind, said):
    assert main(["remedy", kind]) == 4
    assert capsys.readouterr().err == f"gpu-acceptance: {said}\n"
