"""Says that it has begun, and goes on for an hour."""

import time
from pathlib import Path


def test_long(check, ranks):
    check("takes_long.value", 5.0, "GB/s")
    Path(f"begun-{ranks.rank}").touch()
    time.sleep(3600)


def test_next(check):
    check("takes_long.value", 5.0, "GB/s")
