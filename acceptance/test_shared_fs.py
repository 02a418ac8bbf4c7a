"""A folder is the same on all nodes; renames, locks, owners and data behave as programs expect, under load from all ranks."""

import pytest

pytestmark = [pytest.mark.no_group, pytest.mark.deadline(900)]


def test_same(shared_dir, check):
    """Each rank leaves a token and reads those of all: none is missing, wrong, or of another owner. A delay is a figure of its own."""
    met = shared_dir.meet()
    for which in ("missing", "wrong", "foreign"):
        check(f"shared_fs.{which}", len(met.ranks[which]), "ranks", detail=met.names(which))
    check("shared_fs.delay", met.delay_s, "s")


def test_mount(shared_dir, check, record):
    """Every node mounts the same type of file system, and it has free space."""
    mount = shared_dir.mount()
    check("shared_fs.type", mount.fs_type, "text", detail=f"{mount.source} on {mount.mount_point}")
    check("shared_fs.free", mount.free_bytes, "bytes")
    record("shared_fs.free_inodes", mount.free_inodes, "count")


def test_rename(shared_dir, check, record):
    """A file that is replaced by rename is either the old one or the new one, whole, for every reader."""
    found = shared_dir.replace_while_read()
    check("shared_fs.rename.torn", found.num_torn, "reads", detail=f"{found.num_reads} reads")
    check("shared_fs.rename.seen", found.is_last_seen, "bool")
    record("shared_fs.rename.stale", found.num_stale, "reads")


def test_exclusive(shared_dir, check):
    """If all ranks make one file with O_EXCL at once, exactly one succeeds."""
    check("shared_fs.exclusive.winners", shared_dir.race(), "ranks")


def test_locks(shared_dir, check):
    """A lock has one holder over all nodes; nodes that add to one number under it lose no addition."""
    num_holders, added, found = shared_dir.count_together()
    check("shared_fs.locks.holders", num_holders, "ranks")
    check("shared_fs.locks.lost", added - found, "count", detail=f"{added} added, {found} found")
    check("shared_fs.locks.taken", added, "count")


def test_bandwidth(shared_dir, check):
    """All ranks write at once, then read a file of another node: every block is as it was written."""
    moved = shared_dir.move()
    check("shared_fs.read.wrong", moved.num_wrong, "blocks", detail=f"written by rank {moved.written_by}")
    check("shared_fs.write.bandwidth", moved.write_gb_per_s, "GB/s")
    check("shared_fs.read.bandwidth", moved.read_gb_per_s, "GB/s")


def test_small_files(shared_dir, check):
    """All ranks together make, look at and remove files of 4 KiB at the expected rate."""
    check("shared_fs.small_files.rate", shared_dir.small_files_per_s(), "files/s")
