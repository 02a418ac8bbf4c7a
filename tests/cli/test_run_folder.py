"""The run that a verb is given, and its verdict: one line, and never the verdict of another run."""

import os
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from gpu_acceptance.cli.run_folder import how_long_ago
from gpu_acceptance.folder.files import read_results, write_results
from gpu_acceptance.folder.journal import Journal
from gpu_acceptance.record.run_record import Refusal
from tests.cli.test_verbs import NOW, leave_run, run
from tests.journals import RUN_ID, make_plan, told
from tests.judging import make_identity
from tests.report import samples


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
    assert "which run is the newest, 20261120-070000-ab12 and 20261120-070000-cd34 started in one second; name a run folder" in err


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
