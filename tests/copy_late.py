"""Copies what is in one folder and not in the other, both ways, once it is so old: as a client does that believes its cache.

`copy_late.py SECONDS ONE OTHER`, until it is killed.
"""

import shutil
import sys
import time
from pathlib import Path


def copy_late(late_s: float, one: Path, other: Path) -> None:
    while True:
        for source, target in ((one, other), (other, one)):
            for path in (path for path in source.rglob("token") if time.time() - path.stat().st_mtime > late_s):
                copied = target / path.relative_to(source)
                copied.parent.mkdir(exist_ok=True)
                if not copied.exists():
                    shutil.copy(path, copied.with_suffix(".copying"))
                    copied.with_suffix(".copying").rename(copied)
        time.sleep(0.1)


if __name__ == "__main__":
    copy_late(float(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
