"""What the plugin costs per validation over a bare pytest function, in one run; and the time from start to the first validation.

The same empty validations run three ways: in plain pytest, and under the plugin on 2 and on 4 ranks, worker already up. The cost of
one validation is a slope (many against few of them), so that starting costs nothing. Times of a shared machine are only good as ratios.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

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
PLAIN = "import pytest\n\n@pytest.mark.parametrize('i', range({number}))\ndef test_empty(i):\n    assert i >= 0\n"
JUDGED = "import pytest\n\n@pytest.mark.parametrize('i', range({number}))\ndef test_empty(i, check):\n    check('empty.value', i, 'count')\n"
FEW, MANY = 10, 210


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 4])
    ranks = parser.parse_args().ranks
    bare_s = slope(lambda number: plain_s(number))
    print(f"bare pytest function:          {bare_s * 1e3:8.3f} ms per validation")
    for number_of_ranks in ranks:
        first_s, cost_s = judged_slope(number_of_ranks)
        print(
            f"under the plugin, {number_of_ranks} ranks:     {cost_s * 1e3:8.3f} ms per validation, {cost_s / bare_s:.1f} times a bare one "
            f"(+{(cost_s - bare_s) * 1e3:.3f} ms); start to first validation {first_s:.1f} s"
        )


def slope(seconds_for) -> float:
    return (seconds_for(MANY) - seconds_for(FEW)) / (MANY - FEW)


def plain_s(number: int) -> float:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "test_empty.py").write_text(PLAIN.format(number=number))
        output = run([sys.executable, "-m", "pytest", "-q", "-pno:cacheprovider", str(folder)], folder)
        return float(re.findall(r" in ([0-9.]+)s", output)[-1])


def judged_slope(ranks: int) -> tuple[float, float]:
    """Seconds from start to the first validation, and seconds per validation, from the journal's own clock-free durations."""
    few_s, _ = judged_s(FEW, ranks)
    many_s, first_s = judged_s(MANY, ranks)
    return first_s, (many_s - few_s) / (MANY - FEW)


def judged_s(number: int, ranks: int) -> tuple[float, float]:
    """Wall time of the run, and the wall time until its first validation had begun."""
    with tempfile.TemporaryDirectory() as name:
        suite = make_suite(Path(name), number)
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "-m", "pytest", "acceptance/"]
        started = time.time()
        output = run(command, suite)
        journals = sorted((suite / "reports").glob("*/journal/rank-00000.jsonl"))
        formed = json.loads(journals[0].read_text().splitlines()[1])
        seconds = float(re.findall(r"passed in ([0-9.]+)s", output)[-1])
        first_s = time.time() - started - seconds + formed["duration_s"]
        return seconds, first_s


def make_suite(folder: Path, number: int) -> Path:
    for part in ("src", "fixtures", "conftest.py", "pyproject.toml"):
        (folder / part).symlink_to(ROOT / part)
    for part in ("acceptance", "thresholds"):
        (folder / part).mkdir()
    (folder / "acceptance" / "test_empty.py").write_text(JUDGED.format(number=number))
    (folder / "thresholds" / "cpu.yaml").write_text(LIMITS)
    (folder / "thresholds" / "base.yaml").write_text("deadline_s: 60\n")
    return folder


def run(command: list[str], folder: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    finished = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False)
    if finished.returncode:
        sys.exit(f"{' '.join(command)} ended with {finished.returncode}:\n{finished.stdout[-3000:]}\n{finished.stderr[-3000:]}")
    return finished.stdout


if __name__ == "__main__":
    main()
