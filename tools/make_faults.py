"""Writes docs/faults.md from what the tests of the fault matrix see: `make_faults.py` runs them, all of them, on this machine.

With `--from=FOLDER` it runs nothing and takes what an earlier run left there (`pytest tests --faults=FOLDER`).
Readings on GPUs are lines of the same kind in reports/evidence/faults-gpu.jsonl, as tools/gpu/faults.py writes them.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "faults.md"
_LOOKS = re.compile(r"\bseen\.(row|told)\(")
ON_GPUS = ROOT / "reports" / "evidence" / "faults-gpu.jsonl"
HEAD = """# Faults

What a run ends in when something breaks, as our own tests see it: `make faults` runs them and writes this page.
Each fault is a real one, in real processes of 1 to 4 ranks. Of one inside a validation the tests demand in every case that the
figures measured before it are in `results.json`, that it ends within its deadline and 25 s, that the next validation passes
(unless the run ends there), and that no process is left.

Times are those of one run on a machine with 2 cores, six tests at a time: of the validation, or from the fault to the end of the last
process. They hold what the test asks for (a deadline of 3 or 4 s, 20 s of coming late), and the 5 s that peers of a bad rank have to
end by themselves.
"-": not timed. Slurm is one of two nodes on that machine. What a fork server that does not answer says is in the rank's log; the test gave
it 3 s, a run gives it 30.

## On a CPU

| fault | verdict | what the user sees | time |
|---|---|---|---|
"""
HEAD_ON_GPUS = """
## On GPUs

`tools/gpu/faults.py` on 8 NVIDIA H200 of one host, 8 ranks, NCCL 2.28.9, torch 2.11, NVLink multicast off; deadline 20 s. After each
fault inside a validation the next one passed on all 8 ranks, in a new generation of workers. What differs from a CPU is NCCL: its
collectives return before they are done, so a rank that waits stands after its last line, and its collectives tell what it waits for.

| fault | verdict | what the user sees | time |
|---|---|---|---|
"""
HEALTHY = "the next validation"

Line = dict[str, str | float]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", dest="folder", type=Path, metavar="FOLDER", help="what an earlier run left")
    options = parser.parse_args(arguments)
    if options.folder:
        PAGE.write_text(page_of(read(options.folder)), encoding="utf-8")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        tests = sorted(str(path) for path in (ROOT / "tests").rglob("test_*.py") if _LOOKS.search(path.read_text(encoding="utf-8")))
        command = [sys.executable, "-m", "pytest", *tests, f"--faults={folder}", "-n4", "--dist=loadfile", "-q"]
        code = subprocess.run(command, cwd=ROOT, check=False).returncode
        if code == 0:
            PAGE.write_text(page_of(read(Path(folder))), encoding="utf-8")
        return code


def read(folder: Path) -> list[Line]:
    """All that was seen; a fault that several tests saw counts once, with its longest time."""
    lines = [line for path in sorted(folder.glob("*.jsonl")) for line in _lines(path)]
    longest = {line["fault"]: line for line in sorted(lines, key=lambda line: line["took_s"])}
    return list(longest.values())


def page_of(lines: Iterable[Line]) -> str:
    on_gpus = [line for line in _lines(ON_GPUS) if line["fault"] != HEALTHY]
    return f"{HEAD}{_rows(lines)}{HEAD_ON_GPUS}{_rows(on_gpus)}"


def _rows(lines: Iterable[Line]) -> str:
    return "".join(f"{_row(line)}\n" for line in sorted(lines, key=lambda line: (line["verdict"], line["fault"])))


def _lines(path: Path) -> list[Line]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _row(line: Line) -> str:
    fault, verdict, says = (str(line[key]).replace("|", "\\|") for key in ("fault", "verdict", "says"))
    says = says.replace("`", "'")
    return f"| {fault} | {verdict} | `{says}` | {_seconds(line['took_s'])} |"


def _seconds(took_s: str | float) -> str:
    return f"{float(took_s):.1f} s" if float(took_s) else "-"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
