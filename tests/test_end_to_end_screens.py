"""The first and the last screen, on a terminal and in a file, for each verdict and each way to start a run on one node."""

import os
import pty
import re
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest
from clean_environment import clean_environment
from faults import assert_nothing_left
from suite import PYTHON, ROOT, Finished, finished, make_suite, run, start, torchrun_command
from waiting import HANG_S, wait_for
from warm import fork

from gpu_acceptance.folder.manifest import read_manifest

pytestmark = pytest.mark.launcher

PROGRAM = [PYTHON, "-m", "gpu_acceptance", "run"]
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
COLUMNS = 100
# What the overlay of each asks of the example, and what the verdict line begins with.
VERDICTS = {"ACCEPTED": ("passes", 0), "REJECTED": ("misses", 1), "INCOMPLETE": ("no_limit", 6)}


def on_a_terminal(command: list[str], cwd: Path, **env: str) -> tuple[int, str]:
    """Exit code and output of a command whose standard streams are a terminal of 100 columns."""
    lead, follow = pty.openpty()
    environment = {**clean_environment(), "TERM": "xterm", "COLUMNS": str(COLUMNS), "LINES": "24", **env}
    process = fork(command, cwd, environment, None, terminal=follow) or subprocess.Popen(
        command, cwd=cwd, env=environment, stdin=follow, stdout=follow, stderr=follow, start_new_session=True
    )
    os.close(follow)
    said = b""
    while True:
        try:
            more = os.read(lead, 65_536)
        except OSError:  # EIO: the last of them has closed it
            break
        if not more:
            break
        said += more
    os.close(lead)
    return process.wait(timeout=HANG_S), said.decode().replace("\r\n", "\n")


@pytest.fixture(scope="module")
def suites(tmp_path_factory):
    return {verdict: make_suite(tmp_path_factory.mktemp(example), example) for verdict, (example, _) in VERDICTS.items()}


def last_rows(output: str, most: int = 15) -> list[str]:
    return output.rstrip("\n").split("\n")[-most:]


def screen_of(rows: list[str], verdict: str) -> list[str]:
    """The rows from the verdict on, without colours; an empty row sets them apart."""
    plain = [ESCAPE.sub("", row) for row in rows]
    first = next(number for number, row in enumerate(plain) if row.startswith(verdict))
    assert plain[first - 1] == ""
    return plain[first:]


def assert_last_screen(rows: list[str], verdict: str, folder: Path) -> None:
    """The verdict, what to do, the paths; and nothing of pytest or torchrun."""
    text = "\n".join(rows)
    assert text.count(verdict) == 1, text
    assert f"report: {folder}/report.html" in " ".join(text.split())
    assert read_manifest(folder).sha256 in text
    if verdict != "ACCEPTED":
        assert "to do: " in " ".join(rows).lower()
        assert "(gpu-acceptance remedy " in " ".join(text.split())
    for noise in ("Traceback", "ChildFailedError", "exitcode", "error_file", "passed in", "E11", "W11", "short test summary"):
        assert noise not in text, text


def folder_of(suite: Path) -> Path:
    return max((suite / "reports").iterdir(), key=lambda path: path.stat().st_mtime)


@pytest.fixture(scope="module")
def in_files(suites):
    """The end of the program for each verdict, in a file: with its ranks and level told, by an overlay and a named profile, and plain."""
    (suites["REJECTED"] / "site.yaml").write_text(
        "limits: {misses.value: {at_least: 0.9, unit: GB/s, scope: rank, source: 'policy: this site asks for less'}}"
    )
    options = {"ACCEPTED": ["--ranks=1", "--level", "full"], "REJECTED": ["--limits", "site.yaml", "--hardware=cpu"], "INCOMPLETE": []}
    return {verdict: run([*PROGRAM, *options[verdict]], suite) for verdict, suite in suites.items()}


@pytest.mark.parametrize("verdict", VERDICTS)
@pytest.mark.parametrize("way", ["a terminal", "a file"])
def test_the_last_screen_of_the_program_is_the_verdict_and_nothing_follows_it(suites, in_files, verdict, way):
    suite, (_, code) = suites[verdict], VERDICTS[verdict]
    if way == "a terminal":
        returncode, output = on_a_terminal(PROGRAM, suite)
        folder = folder_of(suite)
    else:
        done = in_files[verdict]
        returncode, output, folder = done.returncode, done.output, done.folder
    assert returncode == code, output
    rows = last_rows(output)
    screen = screen_of(rows, verdict)
    assert_last_screen(screen, verdict, folder)
    assert "Traceback" not in output
    assert len(re.findall(rf"^\S*{verdict}", output, re.MULTILINE)) == 1, "it stands once"
    coloured = re.findall(r"\x1b\[1;3[123]m(\w+)\x1b\[0m", "\n".join(rows))
    assert coloured == ([verdict] if way == "a terminal" else [])
    assert way == "a file" or all(len(row) <= COLUMNS or " " not in row.strip() for row in screen)


@pytest.mark.parametrize(("verdict", "arguments", "env"), [("ACCEPTED", "", {"NO_COLOR": "1"}), ("INCOMPLETE", "--color=yes", {})])
def test_make_adds_one_line_of_its_own_where_the_exit_code_is_not_0(suites, verdict, arguments, env):
    """Without colours where NO_COLOR says so; with those of pytest there is no summary of its own."""
    suite, (_, code) = suites[verdict], VERDICTS[verdict]
    program = suite / ".venv" / "bin" / "gpu-acceptance"
    program.parent.mkdir(parents=True)
    (suite / ".venv" / ".ready").touch()
    program.write_text(f'#!/bin/sh\nexec {shlex.join(PROGRAM[:-1])} "$@"\n')
    program.chmod(0o755)
    make = ["make", "-f", str(ROOT / "Makefile"), "-o", ".venv/.ready", "accept", f"ARGS={arguments}"]
    returncode, output = on_a_terminal(make, suite, **env)
    assert returncode == (2 if code else 0), output
    *rows, last = last_rows(output)
    assert last.endswith(f"accept] Error {code}") or not code
    assert_last_screen(screen_of(rows if code else [*rows, last], verdict), verdict, folder_of(suite))
    assert ("\x1b[" in output) == (verdict != "ACCEPTED")
    assert not re.search(r"\d+ passed.* in [0-9.]+s", ESCAPE.sub("", output))
    assert verdict != "INCOMPLETE" or "short test summary info" in output


@pytest.mark.parametrize("verdict", VERDICTS)
def test_under_plain_torchrun_its_page_ends_with_the_same_screen(suites, verdict):
    suite, (_, code) = suites[verdict], VERDICTS[verdict]
    returncode, output = on_a_terminal(torchrun_command("acceptance/"), suite)
    if not code:
        assert returncode == 0, output
        assert_last_screen(screen_of(last_rows(output), verdict), verdict, folder_of(suite))
        return
    assert returncode == 1
    *rows, frame = last_rows(output)
    assert set(frame) == {"="}
    assert_last_screen([ESCAPE.sub("", row) for row in rows], verdict, folder_of(suite))
    blocks = re.findall(r"exitcode  : (\d) \(pid: \d+\)\s*\n  error_file: \S+\n  traceback : (.*)\n", ESCAPE.sub("", output))
    assert [int(one) for one, _ in blocks] == [code, code]
    assert blocks[0][1].startswith(verdict), "one short line of rank 1"
    assert blocks[1][1] == ""


def test_the_first_screen_says_what_is_tested_by_what_and_until_when(in_files):
    done = in_files["ACCEPTED"]
    lines = done.output.split("\n")
    (first,) = [number for number, line in enumerate(lines) if line.startswith("profile ")]
    profile, job, told, expected = lines[first : first + 4]
    assert profile == "profile   cpu, since there is no GPU; level full"
    assert job.startswith("job       1 node x 1 rank, no GPU: ")
    assert told == f"run       {done.folder.name}, its report will be in {done.folder}"
    assert re.fullmatch(r"expected  \S+ s for 1 validation and up to 1 limit; end about \d\d:\d\d \S+", expected)
    assert "profile   cpu, named by --hardware; 1 change by site.yaml; level full" in in_files["REJECTED"].output


def test_the_report_names_the_command_that_was_typed(in_files):
    assert in_files["ACCEPTED"].record.plan.command[-4:] == ("run", "--ranks=1", "--level", "full")


def test_with_v_what_is_not_applicable_is_one_line_for_each_subject_and_a_file_is_named_alone(tmp_path):
    suite = make_suite(tmp_path, "declared_skip", "passes")
    done = run([*PROGRAM, "-v", "--ranks=1"], suite)
    assert re.search(r"^declared_skip: \d+ validations? not applicable: ", done.output, re.MULTILINE), done.output
    assert "SKIPPED" not in done.output
    assert "acceptance/test_passes.py::test_value PASSED" in done.output
    assert "[100%]" in done.output
    alone = run([*PROGRAM, "-vv", "--ranks=1", "acceptance/test_declared_skip.py"], suite)
    assert "SKIPPED" in alone.output
    assert [row.subject for row in alone.record.rows] == ["world_formation", "declared_skip"]
    assert alone.returncode == 6


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--gpus=4"], "--gpus=4 declares that many GPUs of each node"),
        (["--level=quik"], "--level=quik: allowed: health, quick, full, soak; did you mean 'quick'?"),
        (["acceptance/test_passse.py"], "acceptance/test_passse.py: no such file or folder; did you mean 'acceptance/test_passes.py'?"),
        (["--run-id="], "--run-id=: allowed: 1 to 100 letters, digits, '.', '_' and '-', of which the first is a letter or digit"),
    ],
)
def test_a_usage_error_is_told_once_without_torchruns_page(suites, arguments, said):
    done = run([*PROGRAM, *arguments], suites["ACCEPTED"])
    assert done.returncode == 4, done.output
    slow_name = r"(\[W.*\] \[c10d\] The hostname of the client socket cannot be retrieved\. err=-3\n)*"  # torch, on a busy machine
    assert re.fullmatch(rf"{slow_name}ERROR: {re.escape(said)}.*\n\n", done.output), done.output
    assert done.folder is None


def test_sigterm_ends_the_run_with_its_verdict_and_leaves_nothing(tmp_path):
    suite = make_suite(tmp_path, "takes_long")
    process = start(PROGRAM, suite)
    wait_for(suite / "begun-0", process)
    process.send_signal(signal.SIGTERM)
    begun = time.monotonic()
    output, _ = process.communicate(timeout=HANG_S)
    stopped: Finished = finished(process.returncode, output, suite)
    assert stopped.returncode == 2, (output, time.monotonic() - begun)
    assert stopped.verdict_line.startswith("INCOMPLETE: interrupted")
    rows = last_rows(output)
    assert_last_screen(rows[rows.index("") + 1 :], "INCOMPLETE", stopped.folder)
    assert_nothing_left(suite)
