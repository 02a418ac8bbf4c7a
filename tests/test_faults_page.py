"""docs/faults.md has a row for each fault that some test looks at, and for no other; it names no machine."""

import ast
import json
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest
from faults import Fault, Seen, neutral

pytestmark = pytest.mark.repository

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "faults.md"
TOOL = ROOT / "tools" / "make_faults.py"
LOOKS = re.compile(r"\bseen\.(row|told)\(")  # as the tool finds them
NAMES_A_FAULT = {"Fault", "fault", "hang"}  # functions whose first argument is a fault's name


def looked_at() -> list[str]:
    return sorted(
        call.args[0].value
        for path in (ROOT / "tests").rglob("test_*.py")
        if LOOKS.search(text := path.read_text(encoding="utf-8"))
        for call in ast.walk(ast.parse(text))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in NAMES_A_FAULT
        if isinstance(call.args[0], ast.Constant)
    )


def rows_of(text: str) -> list[list[str]]:
    table = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| fault |")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table]


def test_the_page_names_exactly_the_faults_that_tests_look_at_and_no_cell_is_empty():
    on_a_cpu, _ = PAGE.read_text(encoding="utf-8").split("## On GPUs")
    assert sorted(row[0] for row in rows_of(on_a_cpu)) == looked_at()
    assert len(looked_at()) > 40
    rows = rows_of(PAGE.read_text(encoding="utf-8"))
    assert [row for row in rows if len(row) != 4 or not all(row)] == []


def test_the_readings_on_gpus_are_all_right_and_each_was_followed_by_a_validation_that_passed():
    lines = [json.loads(line) for line in (ROOT / "reports" / "evidence" / "faults-gpu.jsonl").read_text().splitlines()]
    assert [line["fault"] for line in lines if not line["right"]] == []
    assert len({line["fault"] for line in lines}) > 8


def test_a_text_names_no_machine():
    text = f"process 4711 of {platform.node()} in /tmp/some/where/results.json:\n 20261120-105204-2486a0b1"
    assert neutral(text) == "process N of node-00 in .../results.json: RUN"
    assert neutral("\x1b[31mred\udcff") == r"\x1b[31mred\udcff"
    assert len(neutral("x" * 1000)) < 300


@pytest.fixture
def module(tmp_path):
    """The tool with a page of its own."""
    copy = tmp_path / "tools" / "make_faults.py"
    copy.parent.mkdir()
    copy.write_text(TOOL.read_text(encoding="utf-8"))
    (tmp_path / "docs").mkdir()
    return copy


def test_the_tool_writes_one_row_for_a_fault_with_its_longest_time(module, tmp_path):
    (tmp_path / "seen").mkdir()
    fault = Fault("a | fault", "died", row="test_fault")
    for took_s in (4.04, 1.0):
        Seen(tmp_path / "seen", "test_it").told(fault, "rank 1: `died` | in call", took_s)
    Seen(tmp_path / "seen", "test_it").told(Fault("another", "exit code 4"), "refused", 0)
    evidence = tmp_path / "reports" / "evidence"
    evidence.mkdir(parents=True)
    on_gpus = {"fault": "on a GPU", "verdict": "REJECTED (stuck)", "says": "rank 2: stuck", "took_s": 20.5}
    after = {"fault": "the next validation", "verdict": "ACCEPTED (passed)", "says": "", "took_s": 0.1}
    (evidence / "faults-gpu.jsonl").write_text(f"{json.dumps(on_gpus)}\n{json.dumps(after)}\n")
    subprocess.run([sys.executable, str(module), f"--from={tmp_path / 'seen'}"], check=True)
    assert rows_of((tmp_path / "docs" / "faults.md").read_text()) == [
        ["a \\| fault", "REJECTED (died)", "`rank 1: 'died' \\| in call`", "4.0 s"],
        ["another", "exit code 4", "`refused`", "-"],
        ["on a GPU", "REJECTED (stuck)", "`rank 2: stuck`", "20.5 s"],
    ]
