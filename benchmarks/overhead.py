"""Cost of the plugin per validation over a bare pytest function, in one run; and the time from start to the first validation.

The same empty validations run in plain pytest, and under the plugin on 2 and on 4 ranks, worker already up. The figure is the median
time between the ends of two validations, on rank 0. Where there are GPUs it holds one reading of each rank's counters. On a shared
machine without GPUs only the ratios mean anything.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
LIMITS = """extends: base
requires: [empty]
limits:
  empty.value:
    at_least: 0
    unit: count
    scope: rank
    source: "policy: a limit for the benchmark of the suite itself"
"""
TESTS = "import pytest\n\n@pytest.mark.parametrize('i', range({number}))\ndef test_empty(i, check):\n    check('empty.value', i, 'count')\n"
# Writes down when each validation ended.
CLOCK = """
import os, time
def pytest_runtest_logfinish(nodeid):
    if os.environ.get("RANK", "0") == "0":
        with open("times.txt", "a") as file:
            file.write(f"{time.time()}\\n")
"""
BARE = "import pytest\n@pytest.fixture\ndef check():\n    return print\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 4])
    parser.add_argument("--validations", type=int, default=200)
    options = parser.parse_args()
    bare_ms, _ = measure(options.validations, BARE + CLOCK, [])
    print(f"bare pytest function:       {bare_ms:8.3f} ms per validation")
    for number in options.ranks:
        gpus = [f"--gpus={number}"] if torch.cuda.is_available() else []
        conftest = (ROOT / "conftest.py").read_text() + CLOCK
        cost_ms, first_s = measure(
            options.validations, conftest, ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={number}"], gpus
        )
        print(
            f"under the plugin, {number} ranks: {cost_ms:8.3f} ms per validation, {cost_ms - bare_ms:+.3f} ms, "
            f"{cost_ms / bare_ms:.1f} times a bare one; start to first validation {first_s:.1f} s"
        )


def measure(validations: int, conftest: str, launcher: list[str], options: Sequence[str] = ()) -> tuple[float, float]:
    """Median milliseconds between the ends of two validations, and seconds from start to the end of the first."""
    with tempfile.TemporaryDirectory() as name:
        suite = make_suite(Path(name), conftest, validations)
        started = time.time()
        run([sys.executable, *launcher, "-m", "pytest", "acceptance/", *options], suite)
        ends = [float(line) for line in (suite / "times.txt").read_text().split()]
        gaps = [later - earlier for earlier, later in pairwise(ends[1:])]  # the first is row 0
        return statistics.median(gaps) * 1e3, ends[1] - started


def make_suite(folder: Path, conftest: str, validations: int) -> Path:
    for part in ("src", "fixtures", "pytest.ini"):
        (folder / part).symlink_to(ROOT / part)
    for part in ("acceptance", "thresholds"):
        (folder / part).mkdir()
    (folder / "conftest.py").write_text(conftest)
    (folder / "acceptance" / "test_empty.py").write_text(TESTS.format(number=validations))
    name, match = ("this-gpu", f"match: {{device_name: {torch.cuda.get_device_name()}}}\n") if torch.cuda.is_available() else ("cpu", "")
    (folder / "thresholds" / f"{name}.yaml").write_text(match + LIMITS)
    (folder / "thresholds" / "base.yaml").write_text("deadline_s: 60\n")
    return folder


def run(command: list[str], folder: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    finished = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False)
    if finished.returncode:
        sys.exit(f"{' '.join(command)} ended with {finished.returncode}:\n{finished.stdout[-3000:]}\n{finished.stderr[-3000:]}")


if __name__ == "__main__":
    main()
