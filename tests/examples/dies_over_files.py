"""The worker of one rank is killed over files that it has written, with a link to a folder of somebody else among them."""

import os
import signal
from pathlib import Path


def test_killed(ranks, check, tmp_path):
    (tmp_path / "file").write_text("x" * 1000)
    (tmp_path / "link").symlink_to(os.environ["SOMEBODY_ELSES"])
    Path(os.environ["SOMEBODY_ELSES"], str(ranks.rank)).write_text(str(tmp_path))
    ranks.gather("written", True)
    if ranks.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    ranks.gather("never", True)
    check("dies_over_files.value", 2.0, "GB/s")
