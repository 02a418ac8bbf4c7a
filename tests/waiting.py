"""Waiting for what another process or thread does, with an end: for tests on a machine of any speed."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path


def wait_until(condition: Callable[[], bool], seconds: float = 30.0) -> bool:
    """Return whether the condition came true within this time; looks again every 20 ms."""
    end = time.monotonic() + seconds
    while not (met := condition()) and time.monotonic() < end:
        time.sleep(0.02)
    return met


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    """Until a file is there that this process makes; shows what the process said where it ended without."""
    wait_until(lambda: path.exists() or process.poll() is not None, 120)
    assert path.exists(), process.communicate(timeout=180)[0]
