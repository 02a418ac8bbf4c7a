"""Says that it has begun, and goes on for some seconds without a word to its peers."""

import time
from pathlib import Path

LONG_S = 12


def test_value(check, ranks):
    Path(f"sleeps-{ranks.rank}").touch()
    time.sleep(LONG_S)
    check("sleeps_on.value", 5.0, "GB/s")
