"""Each benchmark runs, in its smallest form. Its figures are read on a machine that does nothing else, and not here."""

import os
import re
import subprocess

import pytest
from suite import PYTHON, ROOT

pytestmark = pytest.mark.launcher


@pytest.mark.parametrize(
    ("name", "arguments", "line"),
    [
        (
            "overhead",
            ["--ranks", "2", "--validations=3"],
            r"under the plugin, 2 ranks: .* times a bare one; start to first validation .* s",
        ),
        ("control_scale", ["2"], r" +2 ranks: .* ms per validation with all ranks on this machine; CPU of the leader .*"),
        ("redaction_scale", ["3"], r"24 GPUs: .* MB redacted in .* s, .* ns for a byte"),
        pytest.param("report_scale", ["3"], r" +first screen in Chromium after .* s", marks=pytest.mark.needs("chromium")),
    ],
)
def test_it_runs_and_prints_its_figures(name, arguments, line):
    command, environment = [PYTHON, f"benchmarks/{name}.py", *arguments], {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert re.search(rf"^{line}$", ended.stdout, re.MULTILINE), ended.stdout
