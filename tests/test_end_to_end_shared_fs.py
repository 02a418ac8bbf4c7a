"""`--shared-dir` on two hosts with real mounts: one directory, two of one name, one that shows files late, a full one, a read-only one."""

import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from hosts import connected, needs_hosts
from suite import plain_pytest, shipped_suite

pytestmark = [pytest.mark.launcher, needs_hosts]

LATE_S = 3


@pytest.fixture
def disk(tmp_path):
    """A file system in memory, of so many MiB, which both hosts see at one path."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def make(mebibytes):
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", str(folder)], check=True)
        return folder

    yield make
    subprocess.run(["umount", "--lazy", str(folder)], check=False, capture_output=True)


def run(tmp_path, *arguments, mounts=((), ()), patience_s=3, spoil=lambda _suite: None):
    """Two hosts, one rank each: what both were left with. `spoil` changes the suite of each."""
    overlay = tmp_path / "patience.yaml"
    overlay.write_text(f"reason: a test\nparameters: {{shared_fs.patience_s: {patience_s}}}\n")
    suites = [shipped_suite(tmp_path / f"node-{node}", "shared_fs") for node in (0, 1)]
    for suite in suites:
        spoil(suite)
    with connected(suites) as hosts:
        for node, mount in enumerate(mounts):
            hosts.start_one(node, script=("-m", "pytest", "acceptance/", f"--limits={overlay}", *arguments), mount=mount)
        return [host.wait() for host in hosts.hosts]


def test_one_directory_on_both_hosts_keeps_every_promise_and_nothing_of_ours(tmp_path, disk):
    folder = disk(8192)  # as much as it needs: memory is taken as files are written
    (folder / "theirs").write_text("stays")
    first, second = run(tmp_path, f"--shared-dir={folder}")
    assert (first.returncode, second.returncode) == (0, 0), first.output
    assert first.values("test_same", rank=1) == {"missing": 0, "wrong": 0, "foreign": 0, "delay": pytest.approx(0, abs=60)}
    assert first.values("test_mount")["type"] == "tmpfs"
    assert first.values("test_rename", rank=1)["rename.torn"] == 0
    assert first.values("test_exclusive")["exclusive.winners"] == 1
    assert first.values("test_locks") == {"locks.holders": 1, "locks.lost": 0, "locks.taken": 10}
    assert first.values("test_bandwidth", rank=1)["read.wrong"] == 0
    assert first.row("test_small_files").outcome == "not applicable"
    assert [path.name for path in folder.iterdir()] == ["theirs"]


def test_a_directory_of_the_same_name_on_each_host_is_found_out(tmp_path):
    folder = tmp_path / "scratch"
    folder.mkdir()
    alone = ("-t", "tmpfs", "tmpfs", str(folder))
    first, _ = run(tmp_path, f"--shared-dir={folder}", "-k", "same or exclusive or locks", mounts=(alone, alone))
    assert first.verdict_line.startswith("REJECTED: "), first.output
    row = first.row("test_same")
    assert row.outcome == "failed"
    assert "shared_fs.missing = 1 ranks (rank 1), need <= 0 ranks" in row.message
    assert "on ranks 0-1 (node-0; node-1)" in row.message or "on rank 0 (node-0)" in row.message, row.message
    assert first.values("test_exclusive")["exclusive.winners"] == 2
    locks = first.row("test_locks")
    assert "/number: made by another rank, and not seen within 3 s on rank 1: is the directory shared?" in locks.message
    assert {one.cause for one in locks.attempts[-1].ranks} == {"not shared"}


def test_files_that_are_shown_late_are_late_and_not_missing(tmp_path):
    """Two directories, and a copy from each to the other after 3 s, as a client does that believes its cache."""
    folder, other = tmp_path / "scratch", tmp_path / "other"
    folder.mkdir()
    other.mkdir()
    with copied_late(folder, other):
        first, _ = run(
            tmp_path, f"--shared-dir={folder}", "-k", "test_same", mounts=((), ("--bind", str(other), str(folder))), patience_s=20
        )
    row = first.row("test_same")
    assert row.outcome == "passed", first.output
    assert first.values("test_same")["missing"] == 0
    assert LATE_S - 1 < max(first.values("test_same", rank=rank)["delay"] for rank in (0, 1)) < 20


@contextmanager
def copied_late(*folders):
    copier = subprocess.Popen([sys.executable, str(Path(__file__).with_name("copy_late.py")), str(LATE_S), *map(str, folders)])
    try:
        yield
    finally:
        copier.kill()
        copier.wait()


def kill_in_the_middle(suite):
    """Both workers, after they have made a file in the directory."""
    file = suite / "acceptance" / "test_shared_fs.py"
    before = 'check("shared_fs.exclusive.winners", shared_dir.race(), "ranks")'
    assert before in file.read_text()
    file.write_text(file.read_text().replace(before, f"{before}\n    __import__('os').kill(__import__('os').getpid(), 9)"))


def test_a_directory_without_room_fails_by_its_limit_and_by_name_and_what_killed_workers_left_is_removed(tmp_path, disk):
    folder = disk(12)
    (folder / "theirs").touch()
    (folder / ".gpu-acceptance-shared-of-another-run").mkdir()
    first, _ = run(tmp_path, f"--shared-dir={folder}", "-k", "same or mount or exclusive or bandwidth", spoil=kill_in_the_middle)
    killed = first.row("test_exclusive")
    assert killed.outcome == "died", first.output
    assert {one.message for one in killed.attempts[-1].ranks} == {"the worker ended with signal SIGKILL"}
    assert first.verdict_line.startswith("REJECTED: "), first.output
    assert first.row("test_same").outcome == "passed"
    assert "shared_fs.free = " in first.row("test_mount").message
    assert "need >= 4e+09 bytes" in first.row("test_mount").message or "need >= 4000000000 bytes" in first.row("test_mount").message
    assert re.search(r"OSError: write: rank [01]: OSError: \[Errno 28\] No space left on device", first.row("test_bandwidth").message)
    assert sorted(path.name for path in folder.iterdir()) == [".gpu-acceptance-shared-of-another-run", "theirs"]
    assert "--shared-dir: " not in first.output


def test_a_directory_that_one_host_may_not_write_in_is_a_usage_error_on_both(tmp_path):
    folder = tmp_path / "scratch"
    folder.mkdir()
    ended = run(tmp_path, f"--shared-dir={folder}", mounts=((), ("-t", "tmpfs", "-o", "ro", "tmpfs", str(folder))))
    text = f"--shared-dir={folder}: not writable; name a folder that is, on every node [node 1 (node-1, rank 1)]"
    for one in ended:
        assert f"ERROR: {text}" in one.output, one.output
        assert one.folder is None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("", "--shared-dir=: allowed: a folder that all nodes share"),
        ("not-there", "/not-there: No such file or directory; name a folder that is there on every node"),
        ("conftest.py", "/conftest.py: not a folder; name one that is there on every node"),
    ],
)
def test_what_is_no_folder_is_refused(tmp_path, value, text):
    refused = plain_pytest(shipped_suite(tmp_path, "shared_fs"), f"--shared-dir={value}")
    assert refused.returncode == 4
    assert text in refused.output
