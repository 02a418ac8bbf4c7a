"""The worker of one rank is killed over what it made: files, a link to another user's folder, shared memory, a process."""

import multiprocessing
import os
import signal
import tempfile
from multiprocessing import shared_memory
from pathlib import Path


def test_killed(ranks, check, tmp_path):
    (tmp_path / "file").write_text("x" * 1000)
    (tmp_path / "link").symlink_to(os.environ["SOMEBODY_ELSES"])
    Path(os.environ["SOMEBODY_ELSES"], str(ranks.rank)).write_text(str(tmp_path))
    made = [shared_memory.SharedMemory(create=True, size=4096), multiprocessing.get_context("spawn").Semaphore()]
    server = multiprocessing.Manager()
    made += [server, server.list([1]), tempfile.mkdtemp()]
    ranks.gather("written", len(made))
    if ranks.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    ranks.gather("never", True)
    check("dies_over_files.value", 2.0, "GB/s")
