"""Rank 1 asks for a foreign process on its GPU once, and goes on for a while beside it: its value would miss the limit."""

import os
import time
from pathlib import Path

FOLDER = Path(os.environ.get("SHARED_GPUS", "/nonsense"))


def test_value(check, ranks):
    is_slow = ranks.rank == 1 and not (FOLDER / "came").exists()
    if is_slow:
        (FOLDER / "wanted").touch()
        while not (FOLDER / "came").exists():
            time.sleep(0.05)
        time.sleep(1.5)
    check("shares_its_gpu.value", 0.1 if is_slow else 5.0, "GB/s")


def test_next(check):
    check("shares_its_gpu.value", 5.0, "GB/s")
