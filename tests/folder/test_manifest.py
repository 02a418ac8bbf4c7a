"""A manifest holds all files of a run, is checked by sha256sum too, and vouches for nothing that was changed, whatever its text says."""

import os
import subprocess

import pytest

from gpu_acceptance.folder.files import RecordError, write_results
from gpu_acceptance.folder.manifest import differences, find_manifest, read_manifest, refuse_changed, write_manifest
from gpu_acceptance.folder.rebuild import read_run_folder
from tests.journals import RUN_ID, told
from tests.report import samples

HEX = "0" * 64


@pytest.fixture
def run_dir(tmp_path):
    """A run folder with its manifest."""
    folder = told().leave(tmp_path / RUN_ID)
    write_results(folder, samples.accepted())
    (folder / "tensorboard" / "node-01.example").mkdir(parents=True)
    (folder / "tensorboard" / "node-01.example" / "events.out.tfevents.1763622000.host_a").write_bytes(b"\xff\0")
    (folder / "empty").touch()
    write_manifest(folder)
    return folder


def changes(folder):
    return [str(one) for one in differences(folder, read_manifest(folder))]


def test_it_names_every_file_and_sha256sum_checks_it_and_tells_its_own_digest(run_dir):
    there = sorted(path.relative_to(run_dir).as_posix() for path in run_dir.rglob("*") if path.is_file() and path.name != "SHA256SUMS")
    assert len(there) == 7
    assert list(read_manifest(run_dir).digests) == there
    checked = subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=run_dir, capture_output=True, text=True, check=True)
    assert checked.stdout.splitlines() == [f"{name}: OK" for name in there]
    said = subprocess.run(["sha256sum", run_dir / "SHA256SUMS"], capture_output=True, text=True, check=True).stdout
    assert said.split()[0] == read_manifest(run_dir).sha256 == write_manifest(run_dir).sha256
    assert changes(run_dir) == []


def test_each_change_is_named_and_a_pipe_or_an_odd_name_does_no_harm(run_dir):
    (run_dir / "results.json").write_text((run_dir / "results.json").read_text() + " ")
    (run_dir / "journal" / "rank-00001.jsonl").unlink()
    os.mkfifo(run_dir / "journal" / "rank-00001.jsonl")  # holds nobody up
    (run_dir / "journal" / "rank-00002.jsonl").unlink()
    (run_dir / "journal" / "rank-00009.jsonl").touch()
    (run_dir / "empty").unlink()
    (run_dir / "empty").symlink_to("/dev/null")
    (run_dir / "logs").symlink_to("/")
    (run_dir / "a\n\x1b[2Jb").touch()
    assert changes(run_dir) == [
        r"EXTRA a\n\x1b[2Jb",
        "DIFFERS empty: is a link",
        "DIFFERS journal/rank-00001.jsonl: is not a regular file",
        "MISSING journal/rank-00002.jsonl",
        "EXTRA journal/rank-00009.jsonl",
        "EXTRA logs: is a link",
        "DIFFERS results.json",
    ]


@pytest.mark.parametrize("name", ["a\nb", "a b", "-n", "\u202e", "a\\b", "\udcff"])
def test_a_name_that_no_manifest_can_hold_makes_none(run_dir, name):
    before = (run_dir / "SHA256SUMS").read_bytes()
    (run_dir / os.fsencode(name).decode("utf-8", "surrogateescape")).touch()
    with pytest.raises(RecordError, match="has a name that no manifest can hold"):
        write_manifest(run_dir)
    assert (run_dir / "SHA256SUMS").read_bytes() == before


def test_a_link_makes_none(run_dir):
    (run_dir / "latest").symlink_to("results.json")
    with pytest.raises(RecordError, match="'latest' is a link"):
        write_manifest(run_dir)


HOSTILE = ("../x", "a/../../x", "/etc/passwd", "./a", "a//b", "a/", ".", "..", "-", "-n/a", "a b", "a\x1bb", "a\\nb")


@pytest.mark.parametrize("name", [*HOSTILE, "SHA256SUMS", "SHA256SUMS.sig"])
def test_a_hostile_name_in_it_is_refused(run_dir, name):
    with (run_dir / "SHA256SUMS").open("a") as file:
        file.write(f"{HEX}  {name}\n")
    with pytest.raises(RecordError, match=r"SHA256SUMS: line 8: .* is not the name of a file of a run$"):
        read_manifest(run_dir)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "does not name results.json: cut off, or not of a run"),
        (f"{HEX}  junit.xml\n", "does not name results.json: cut off, or not of a run"),
        (f"{HEX}  results.json", "cut off: its last line does not end"),
        (f"{HEX[1:]}  results.json\n", "line 1: not 64 hexadecimal digits, two blanks and a name: "),
        (f"{HEX} *results.json\n", "line 1: not 64 hexadecimal digits, two blanks and a name: "),
        (f"{HEX.replace('0', 'A')}  results.json\n", "line 1: not 64 hexadecimal digits, two blanks and a name: "),
        (f"\\{HEX}  results.json\n", "line 1: not 64 hexadecimal digits, two blanks and a name: "),
        (f"{HEX}  results.json\r\n", "line 1: not 64 hexadecimal digits, two blanks and a name: "),
        (f"{HEX}  results.json\n\n", "line 2: not 64 hexadecimal digits, two blanks and a name: "),
        (f"{HEX}  results.json\n" * 2, "line 2: results.json is named twice"),
        ("\x1b[2J\u202e\n", r"line 1: not 64 hexadecimal digits, two blanks and a name: b'\x1b[2J\xe2\x80\xae'"),
    ],
)
def test_a_manifest_that_is_none_is_refused_in_one_line(run_dir, text, message):
    (run_dir / "SHA256SUMS").write_bytes(text.encode())
    with pytest.raises(RecordError) as refused:
        read_manifest(run_dir)
    assert str(refused.value).startswith(f"{run_dir}/SHA256SUMS: {message}")
    assert str(refused.value).isprintable()


def test_cut_off_after_a_line_it_leaves_files_over(run_dir):
    lines = (run_dir / "SHA256SUMS").read_text().splitlines(keepends=True)
    (run_dir / "SHA256SUMS").write_text("".join(lines[:-1]))
    assert changes(run_dir) == ["EXTRA tensorboard/node-01.example/events.out.tfevents.1763622000.host_a"]


def test_a_link_is_no_manifest(run_dir):
    (run_dir / "SHA256SUMS").rename(run_dir.parent / "elsewhere")
    (run_dir / "SHA256SUMS").symlink_to(run_dir.parent / "elsewhere")
    with pytest.raises(RecordError, match="SHA256SUMS: not a regular file"):
        find_manifest(run_dir)


def test_results_that_it_does_not_name_are_refused_and_without_it_nothing_is_known(run_dir):
    refuse_changed(run_dir)
    (run_dir / "results.json").write_text("{}")
    with pytest.raises(RecordError, match=r"results\.json: not the file that SHA256SUMS beside it names: changed since the end of the run"):
        refuse_changed(run_dir)
    (run_dir / "SHA256SUMS").unlink()
    assert find_manifest(run_dir) is None
    refuse_changed(run_dir)


def test_a_run_that_is_rebuilt_says_which_journals_changed(run_dir):
    assert not [problem for one in read_run_folder(run_dir) for problem in one.problems]
    (run_dir / "journal" / "rank-00001.jsonl").unlink()
    with (run_dir / "journal" / "rank-00002.jsonl").open("a") as file:
        file.write("\n")
    problems = {problem for one in read_run_folder(run_dir) for problem in one.problems}
    assert {problem for problem in problems if "SHA256SUMS" in problem} == {
        f"{run_dir}/journal/rank-00001.jsonl: is missing, and SHA256SUMS beside it names it",
        f"{run_dir}/journal/rank-00002.jsonl: is not the file that SHA256SUMS beside it names",
    }
