"""The disk of the reports fills up in the middle of a run: what was measured so far is still judged and said."""

import os
from pathlib import Path


def test_fills(check, ranks):
    check("fills_the_disk.value", 5.0, "GB/s")
    folder = Path(os.environ["REPORTS_THAT_FILL_UP"])
    if ranks.rank == 0:
        with (folder / "filler").open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(b"x" * (1 << 20))
            except OSError:
                pass
            try:
                while True:
                    file.write(b"x")
            except OSError:
                pass


def test_next(check):
    check("fills_the_disk.value", 5.0, "GB/s")
