"""`gpu-acceptance report verify`: what a run left, and what was changed since; no verb makes a changed run look like its own."""

import shutil

import pytest

from gpu_acceptance.folder.files import read_results, write_results
from gpu_acceptance.folder.manifest import read_manifest, write_manifest
from gpu_acceptance.report.build import write_page
from gpu_acceptance.report.exports import write_exports
from tests.cli.test_verbs import leave_run, run
from tests.journals import RUN_ID, told
from tests.report import samples


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


@pytest.mark.parametrize("digest", ["", "abc", "0" * 63, "G" * 64])
def test_an_invalid_digest_is_a_usage_error(run_dir, capsys, digest):
    code, _, err = run(capsys, "report", "verify", f"--sha256={digest}", run_dir)
    assert code == 4
    assert f"--sha256: {digest!r} is not allowed; allowed: 64 hexadecimal digits" in err


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
