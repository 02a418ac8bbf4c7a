"""Files of a run folder: a crash leaves no half file, and every way a file can be wrong is one readable line."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_acceptance.base.files import write_atomically
from gpu_acceptance.folder import files
from gpu_acceptance.folder.files import RecordError, new_run_id, node_run_id, read_results, write_results
from tests.report import samples

HBM, GEMM = "acceptance/test_hbm.py::test_hbm_triad", "acceptance/test_gemm.py::test_gemm[bf16]"
ATTEMPT = "rows 1 attempts 0"
FIGURE = "rows 0 attempts 0 ranks 0 figures 0"
GONE = object()


def written(tmp_path, *changes):
    """The results.json of an accepted run with changes, each a place and its new value, or GONE."""
    data = json.loads(samples.accepted().model_dump_json())
    for place, value in changes:
        *outer, last = [int(key) if key.isdigit() else key for key in place.split(" ")]
        inner = data
        for key in outer:
            inner = inner[key]
        if value is GONE:
            del inner[last]
        elif last == "+":
            inner.append(inner[value])
        else:
            inner[last] = value
    (tmp_path / "results.json").write_text(json.dumps(data))
    return tmp_path


def test_write_atomically_replaces_and_leaves_nothing_else_and_other_users_may_read_it(tmp_path):
    path = tmp_path / "results.json"
    previous = os.umask(0o022)
    try:
        for content in ("new ü", b"\xff cut off"):
            write_atomically(path, content)
            assert path.read_bytes() == (content if isinstance(content, bytes) else content.encode())
    finally:
        os.umask(previous)
    assert path.stat().st_mode & 0o777 == 0o644
    assert [entry.name for entry in tmp_path.iterdir()] == ["results.json"]


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "results.json"
    write_atomically(path, "old")

    def full(fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["results.json"]


@pytest.mark.parametrize("sample", samples.ALL)
def test_results_come_back_as_they_were(tmp_path, sample):
    record = samples.ALL[sample]()
    path = write_results(tmp_path, record)
    assert read_results(tmp_path) == record == read_results(path)


def test_text_that_utf8_cannot_carry_does_not_stop_a_record(tmp_path):
    record = samples.accepted(waivers={"a.\ud800": "b\udfff", "plain": "c"})
    write_results(tmp_path, record)
    assert read_results(tmp_path).plan.waivers == {r"a.\ud800": r"b\udfff", "plain": "c"}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "no such file"),
        (os.mkfifo, "not a regular file"),  # and does not block
        (lambda path: path.symlink_to("results.json"), "cannot be read: Too many levels of symbolic links"),
        (lambda path: path.write_bytes(b" " * (2**20 + 1)), "larger than 1 MiB"),
    ],
    ids=["missing", "pipe", "loop of links", "too large"],
)
def test_a_file_that_cannot_be_read_is_named_with_the_reason(tmp_path, monkeypatch, make, message):
    assert files.MAX_BYTES == 2 * 2**30
    monkeypatch.setattr(files, "MAX_BYTES", 2**20)
    path = tmp_path / "results.json"
    make(path)
    with pytest.raises(RecordError, match=re.escape(f"{path}: {message}")):
        read_results(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON: EOF while parsing"),
        ('{"header": ', "not JSON: EOF while parsing"),
        ("ACCEPTED", "not JSON: expected value"),
        ("[" * 100_000, "not JSON: recursion limit exceeded"),
        (b"\xff\xfe", "not JSON: "),
        ("[]", "Input should be an object, not []"),
        ("{}", "plan is missing (and 6 more)"),
    ],
)
def test_a_file_that_is_not_a_record_is_named(tmp_path, text, message):
    (tmp_path / "results.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(RecordError, match=re.escape(f"results.json: {message}")):
        read_results(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            [("schema_version", 1), ("novelty", 1)],
            "schema_version 1, by gpu-acceptance 0.1.0, which reads it; this version reads 2",
        ),
        ([("schema_version", 3), ("plan", {})], "schema_version is 3; this version reads 2"),
        ([("ranks 3 schema_version", "1")], "schema_version is '1'; this version reads 1"),
        ([("schema_version", GONE)], "no schema_version; this version reads 2"),
        ([("end novelty", 1)], "unknown key end.novelty"),
        ([(f"{FIGURE} novelty", 1)], "unknown key rows.0.attempts.0.ranks.0.figures.0.novelty"),
        ([("a\nb", 1)], r"unknown key a\nb"),
        ([("rows 0 duration_s", float("nan"))], "rows.0.duration_s: Input should be a finite number, not nan"),
        ([("rows 0 duration_s", float("-inf"))], "rows.0.duration_s: Input should be a finite number, not -inf"),
        ([(f"{FIGURE} value", float("nan"))], "figures.0.value: Input should be a finite number, a text, true or false, not nan"),
        ([("conclusion exit_code", "0")], "conclusion.exit_code: Input should be a valid integer, not '0'"),
        ([("conclusion verdict", "PASS")], "conclusion.verdict: Input should be 'ACCEPTED', 'REJECTED' or 'INCOMPLETE'"),
        ([("rows 0 message", "x" * 20_000)], "rows.0.message: String should have at most 16384 characters"),
        ([("rows 0 outcome", 1), ("rows 0 message", 2)], "(and 1 more)"),
        ([("plan", GONE)], "plan is missing"),
        ([("plan profile", None)], "plan.profile: "),
    ],
)
def test_a_fault_of_a_record_is_named_on_one_line(tmp_path, changes, message):
    with pytest.raises(RecordError) as caught:
        read_results(written(tmp_path, *changes))
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"{tmp_path}/results.json: ")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 700


@pytest.mark.parametrize(
    ("place", "value", "fault"),
    [
        ("rows 1 outcome", "error", f"{HBM}: outcome is error, and its figures and limits give passed"),
        ("rows 1 judgements 0 asked", 1.0, f"{HBM}: hbm.triad.bandwidth: asked is 1.0, and its figures and limits give 4150.0"),
        (f"{ATTEMPT} ranks 5 figures 0 value", 3.0, f"{HBM}: outcome is passed, and its figures and limits give failed"),
        ("plan profile limits hbm.triad.bandwidth at_least", 4400, f"{HBM}: outcome is passed, and its figures and limits give failed"),
        ("rows 1", GONE, f"{HBM} was planned, and has no row"),
        ("rows +", 1, f"{HBM} is there 2 times"),
        ("plan validations 1", GONE, f"{HBM} has a row, and was not planned"),
        ("rows 1 subject", "gemm", f"{HBM} is recorded with subject gemm"),
        (f"{ATTEMPT} number", 2, f"attempt 1 of {HBM} is recorded as attempt 2"),
        (f"{ATTEMPT} ranks 3 attempt", 2, f"attempt 1 of {HBM} has what rank 3 did in attempt 2 of {HBM}"),
        (f"{ATTEMPT} ranks +", 3, f"attempt 1 of {HBM} has a rank twice"),
        (f"{ATTEMPT} ranks 3", GONE, f"{HBM}: outcome is passed, and its figures and limits give lost"),
        ("rows 1 duration_s", 1.0, f"{HBM}: duration_s is 1.0, and its figures and limits give 12.7"),
        ("conclusion limits 4", GONE, "the whole run has 4 judgements, and its figures and limits give 5"),
        ("conclusion exit_code", 6, "conclusion.exit_code is 6, and what the record holds gives 0"),
        ("conclusion coverage gpus_tested", 7, "conclusion.coverage is Coverage(nodes=1, ranks=8, gpus_existing=8, gpus_tested=7,"),
        ("end interrupted", "SIGTERM", "conclusion.verdict is 'ACCEPTED', and what the record holds gives 'INCOMPLETE'"),
        ("plan measure_only", True, f"{GEMM} has 2 judgements, and its figures and limits give 0"),
        ("ranks 7", GONE, f"{GEMM}: outcome is passed, and"),
    ],
)
def test_a_record_from_which_another_result_follows_is_refused_on_one_line(tmp_path, place, value, fault):
    refuse(written(tmp_path, (place, value)), fault)


def refuse(run_dir, fault):
    with pytest.raises(RecordError) as caught:
        read_results(run_dir)
    assert str(caught.value).startswith(f"{run_dir}/results.json: contradicts itself: {fault}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("outcome", "fault"),
    [
        ("passed", "is passed, and nothing that was planned says so"),
        ("not applicable", "is not applicable, and nothing that was planned says so"),
        ("not run", "has judgements, and no attempt"),
        ("died", "is died, and nothing that was planned says so"),
    ],
)
def test_a_row_without_attempts_that_the_plan_does_not_explain_is_refused(tmp_path, outcome, fault):
    refuse(written(tmp_path, ("rows 1 attempts", []), ("rows 1 outcome", outcome)), f"{HBM} {fault}")


@pytest.mark.parametrize(
    "changes",
    [
        [("conclusion line", "ACCEPTED for 64 of 64 GPUs")],
        [(f"rows {row} message", "changed by hand") for row in range(3)],
        [(f"rows {row} judgements 0 message", "changed by hand") for row in range(3)],
    ],
    ids=["the verdict line", "rows", "judgements"],
)
def test_words_that_were_changed_by_hand_are_made_anew(tmp_path, changes):
    assert read_results(written(tmp_path, *changes)) == samples.accepted()


# --- the name of a run ----------------------------------------------------------------------------------------------------------

_ASKS = "import os; from gpu_acceptance.folder.files import node_run_id; print(node_run_id('node-01', os.getppid()))"


def test_ranks_of_one_launcher_name_one_folder_and_two_nodes_name_two():
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    ids = {subprocess.check_output([sys.executable, "-c", _ASKS], env=environment, text=True).strip() for _ in range(2)}
    own = node_run_id("node-01", os.getpid())
    assert ids == {own}
    assert files.RUN_ID.fullmatch(own)
    assert node_run_id("node-02", os.getpid()) != own


def test_without_a_launcher_each_rank_names_its_own_folder():
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    made = {node_run_id("node-01", None), node_run_id("node-01", None), node_run_id("node-01", gone.pid), new_run_id()}
    assert len(made) == 4
    assert all(map(files.RUN_ID.fullmatch, made))
