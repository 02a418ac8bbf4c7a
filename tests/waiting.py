"""Waiting for what another process or thread does, with an end: for tests on a machine of any speed."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

HANG_S = 900  # far beyond any run, on a machine that has ten others to do; only to end a test of a run that does not end


def wait_until(condition: Callable[[], bool], seconds: float = 120.0) -> bool:
    """Return whether the condition came true within this time; looks again every 20 ms."""
    end = time.monotonic() + seconds
    while not (met := condition()) and time.monotonic() < end:
        time.sleep(0.02)
    return met


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    """Until a file is there that this process makes; shows what the process said where it ended without."""
    wait_until(lambda: path.exists() or process.poll() is not None)
    assert path.exists(), process.communicate(timeout=HANG_S)[0]
