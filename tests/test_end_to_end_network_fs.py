"""`--shared-dir` on a network file system, two clients of one server: late by its cache, without locks, frozen, gone."""

import re

import pytest
from hosts import connected, needs_hosts
from sshfs import exported, needs_sshfs
from suite import shipped_suite
from waiting import wait_until

pytestmark = [pytest.mark.launcher, needs_hosts, needs_sshfs]

CACHED_S = 4
MiB = 2**20


@pytest.fixture
def export(tmp_path):
    with exported(tmp_path) as export:
        yield export


def run(tmp_path, export, points, *arguments, file_bytes=8 * MiB, meanwhile=lambda: None):
    """Two hosts, one rank each, which have a mount of their own at one path: what both were left with."""
    shared, overlay = tmp_path / "shared", tmp_path / "overlay.yaml"
    shared.mkdir()
    overlay.write_text(f"reason: a test\nparameters: {{shared_fs.patience_s: 20, shared_fs.file_bytes: {file_bytes}}}\n")
    suites = [shipped_suite(tmp_path / f"node-{node}", "shared_fs") for node in (0, 1)]
    for suite in suites:
        shorten(suite / "acceptance" / "test_shared_fs.py", "deadline(900)", "deadline(10)")
    script = ("-m", "pytest", "acceptance/", f"--limits={overlay}", f"--shared-dir={shared}", *arguments)
    with connected(suites) as hosts:
        try:
            for node, point in enumerate(points):
                hosts.start_one(node, script=script, mount=("--bind", str(point), str(shared)))
            meanwhile()
            return [host.wait() for host in hosts.hosts]
        finally:
            export.drop()  # what waits for it could not be killed


def shorten(file, before, after):
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after))


def stop_while_written(export, stop):
    """Once all ranks write."""
    assert wait_until(lambda: len([*export.served.glob("*/data-*")]) == 2)
    stop()


def test_a_cache_shows_files_late_and_locks_that_each_client_keeps_to_itself_are_found_out(tmp_path, export):
    """Not `test_exclusive`: sshfs tells the one who comes second EPERM instead of EEXIST where both are there at once."""
    points = export.mount(), export.mount(CACHED_S)
    first, _ = run(tmp_path, export, points, "-k", "not exclusive")
    assert first.row("test_same").outcome == "passed", first.output
    assert first.values("test_same", rank=0) == {"missing": 0, "wrong": 0, "foreign": 0, "delay": pytest.approx(0, abs=CACHED_S / 2)}
    assert first.values("test_same", rank=1)["missing"] == 0
    assert CACHED_S / 2 < first.values("test_same", rank=1)["delay"] < 20
    assert first.values("test_mount", rank=1)["type"] == "fuse.sshfs"
    assert first.row("test_rename").outcome == first.row("test_bandwidth").outcome == "passed"
    locks = first.row("test_locks")
    assert locks.outcome == "failed"
    assert "shared_fs.locks.holders = 2 ranks, need == 1 ranks" in locks.message
    assert "nodes keep locks to themselves" in locks.message
    assert first.verdict_line.startswith("REJECTED: ")
    assert [*export.served.iterdir()] == []


def test_a_server_that_stops_answering_in_the_middle_ends_its_row_and_holds_no_run(tmp_path, export):
    """Workers are in the kernel, where no signal reaches them; what began them ends all the same."""
    points = export.mount(), export.mount()
    first, second = run(
        tmp_path,
        export,
        points,
        *("-k", "bandwidth or small"),
        file_bytes=64 * MiB,
        meanwhile=lambda: stop_while_written(export, export.freeze),
    )
    row = first.row("test_bandwidth")
    assert row.outcome == "stuck", first.output
    told = "deadline of 10 s passed; its process is in the kernel and cannot be interrupted (D), in "
    assert f"ranks 0-1: stuck in call: {told}" in row.message
    assert first.row("test_small_files").outcome == "not run"
    formation = first.row("world_formation")
    assert len(formation.attempts) > 1
    for rank in (rank for attempt in formation.attempts[1:] for rank in attempt.ranks):
        assert rank.message.startswith("the last worker is still there 30 s after it was killed: no new one can start beside it; "), rank
    assert max(rank.duration_s for attempt in formation.attempts[2:] for rank in attempt.ranks) < 30  # found out once
    stays = r"\S+/shared/\.gpu-acceptance-shared-\S+-\*: no answer within 5 s: is its server there\?"
    assert re.search(f"--shared-dir: what workers left there when they were killed stays: {stays}", first.output), first.output
    assert first.verdict_line.startswith("REJECTED: ")
    assert first.returncode
    assert second.returncode


def test_a_server_that_is_gone_in_the_middle_is_said_to_be(tmp_path, export):
    points = export.mount(), export.mount()
    first, _ = run(
        tmp_path, export, points, "-k", "bandwidth", file_bytes=64 * MiB, meanwhile=lambda: stop_while_written(export, export.drop)
    )
    row = first.row("test_bandwidth")
    assert row.outcome == "error", first.output
    assert re.search(r"OSError: write: rank [01]: \w+: \[Errno (5|103|107)\] ", row.message), row.message
    assert first.verdict_line.startswith("INCOMPLETE: ")
    assert first.returncode


def test_a_server_that_does_not_answer_before_the_run_is_a_usage_error_on_both(tmp_path, export):
    points = export.mount(), export.mount()
    export.freeze()
    for ended in run(tmp_path, export, points):
        assert "/shared: no answer within 20 s: is its server there? (findmnt -T DIR) [node 0 (node-0, rank 0)]" in ended.output
        assert ended.folder is None
