"""Leftovers of a validation: they count against that validation, and never reach the next one."""

import contextlib
import getpass
import re
from pathlib import Path

import psutil
import pytest
from faults import assert_nothing_left
from suite import make_suite, plain_pytest, processes_in, torchrun
from waiting import wait_until

pytestmark = pytest.mark.launcher


FORKS_FIRST = """
def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: "forks" not in item.path.name)
"""


@pytest.fixture(scope="module")
def left(tmp_path_factory):
    return torchrun(make_suite(tmp_path_factory.mktemp("left"), "leaves_a_process", "stops_reading"))


@pytest.fixture(scope="module")
def one_sided(tmp_path_factory):
    return torchrun(make_suite(tmp_path_factory.mktemp("one_sided"), "leaves_a_collective"))


def test_a_collective_that_only_one_rank_issued(one_sided):
    assert one_sided.row("test_one_sided").outcome in {"error", "stuck"}
    row = one_sided.row("leaves_a_collective.py::test_next")
    assert (row.outcome, row.attempts[0].ranks[1].figures[0].value) == ("passed", 2.0)


def test_what_a_validation_held_or_changed_is_over_for_the_next_and_a_late_figure_belongs_to_none(tmp_path):
    """Also what was held for one that is left out."""
    examples = ("changes_its_surroundings", "checks_late", "left_out", "passes")
    ended = plain_pytest(make_suite(tmp_path, *examples), "--budget=600")
    names = ("changes_its_surroundings.py::test_next", "checks_late.py::test_late", "checks_late.py::test_next", "test_first", "test_value")
    assert [ended.row(name).outcome for name in names] == ["passed"] * 5, ended.output
    assert ended.row("test_second").outcome == "not run"
    assert "out of time: --budget=600" in ended.row("test_second").message
    text = "acceptance/test_checks_late.py::test_late gave checks_late.value after it had ended"
    assert any(text in record.message for attempt in ended.row("worker_end").attempts for record in attempt.ranks)


def test_what_is_right_passes_and_settings_that_a_validation_leaves_are_put_back(tmp_path):
    """A process that is just ending is not left behind."""
    examples = ("ends_a_moment_later", "holds_for_the_module", "leaves_settings", "talks_in_pairs")
    ended = torchrun(make_suite(tmp_path, *examples), ranks=3)
    wrong = [row.nodeid for row in ended.record.rows if row.outcome != "passed"]
    assert (wrong, ended.verdict_line) == ([], "ACCEPTED (cpu profile: no GPU was tested)"), ended.output
    log = (ended.folder / "logs" / "rank-00000.log").read_text()
    assert "::test_setting[leave-alarm], put back: timer ITIMER_REAL is True, was False\n" in log
    assert "::test_nested, put back: environment LEFT_BY_THE_CALL is '1', was None\n" in log


def test_a_forked_copy_does_not_speak_for_the_worker_and_what_fails_when_the_session_ends_counts(tmp_path):
    """The worker that forked is replaced."""
    ended = plain_pytest(make_suite(tmp_path, "fails_at_the_end", "forks", conftest=FORKS_FIRST))
    assert ended.row("test_forks").outcome == "error"
    assert "left behind: process" in ended.row("test_forks").message
    assert "seen, whatever the copy says" in ended.row("forks.py::test_next").message
    assert "error in teardown: OSError: the data is corrupted" in ended.row("test_value").message
    assert ended.returncode == 6


def test_what_cannot_be_put_back_is_an_error_and_costs_the_workers(tmp_path):
    """Four times, two in each subject: a third one would end its subject."""
    ended = torchrun(make_suite(tmp_path, "leaves_in_doubt", "leaves_more_in_doubt"))
    rows = {row.nodeid.rsplit("test_")[-1]: row for row in ended.record.rows}
    after = ("doubt[find-clock]", "doubt[find-busy_thread]", "after_set_up", "after_affinity")
    assert {name: str(rows[name].outcome) for name in after} == dict.fromkeys(after, "passed"), ended.output
    left = ("doubt[leave-clock]", "doubt[leave-busy_thread]", "set_up", "affinity")
    assert {name: str(rows[name].outcome) for name in left} == dict.fromkeys(left, "error"), ended.output
    said = {name: rows[name].message for name in left}
    assert "error in teardown: left behind: replacement of time.perf_counter is " in said["doubt[leave-clock]"]
    assert "error in teardown: left behind: thread burner\n" in said["doubt[leave-busy_thread]"]
    assert "error in teardown: ValueError: set-up\n" in said["set_up"]
    assert "; left behind: replacement of math.sqrt is " in said["set_up"]
    assert "left behind: CPU affinity is [" in said["affinity"]
    assert ended.verdict_line.startswith("INCOMPLETE")


def test_what_a_quick_validation_leaves_is_no_miss_of_the_next(tmp_path):
    ended = torchrun(make_suite(tmp_path, "leaves_for_the_next"))
    assert list(ended.outcomes().values()) == ["error", "passed", "passed"], ended.output
    assert "error in teardown: left behind: replacement of torch.equal is print, was None" in ended.row("test_equal[0]").message
    assert ended.verdict_line.startswith("INCOMPLETE")


def test_what_goes_wrong_in_a_teardown_is_told_of_the_teardown(tmp_path):
    ended = plain_pytest(make_suite(tmp_path, "ends_badly_in_teardown"))
    assert "died in teardown: the worker ended with signal SIGABRT" in ended.row("test_aborts").message
    lines = ended.row("test_two_at_once").message.splitlines()
    assert lines[0].endswith("error in teardown: OSError: the first is in use")
    assert lines[1:] == ["ValueError: the second is gone", "ExceptionGroup of 2 exceptions"]
    assert ended.row("test_next").outcome == "passed"


def test_a_process_left_behind_is_gone_before_the_next_and_a_worker_that_reads_nothing_holds_no_supervisor(left):
    assert left.row("test_leaves").outcome == "error"
    assert "sleep 4321)" in left.row("test_leaves").message
    assert left.row("leaves_a_process.py::test_next").outcome == "passed"
    assert [process for process in processes_in(left.suite) if process.endswith("sleep 4321")] == []
    assert left.row("test_stopped").outcome == "stuck"
    assert left.outcomes_by_rank("test_stopped")[0] == "stuck"
    assert left.row("stops_reading.py::test_next").outcome == "passed"


MONITORS = """
import os, subprocess
from pathlib import Path

if "GPU_ACCEPTANCE_SUPERVISOR" not in os.environ:
    monitor = subprocess.Popen(["sleep", "4477"])

    def pytest_runtest_logfinish(nodeid):
        with Path("monitored").open("a") as file:
            print(monitor.poll(), file=file)
"""


def test_what_a_conftest_started_beside_the_run_lives_until_its_end(tmp_path):
    suite = make_suite(tmp_path, "leaves_a_process", conftest=MONITORS)
    ended = plain_pytest(suite)
    assert ended.row("test_leaves").outcome == "error"
    assert ended.row("leaves_a_process.py::test_next").outcome == "passed"
    assert set((suite / "monitored").read_text().split()) == {"None"}
    assert_nothing_left(suite)


def test_an_import_that_changes_what_all_run_in(tmp_path):
    ended = plain_pytest(make_suite(tmp_path, "import_changes"))
    assert ended.returncode == 5  # nothing ran
    message = ended.row("world_formation").message
    text = "importing the validations changed what all of them run in: environment NCCL_ALGO is 'TREE', was None; "
    assert f"{text}torch default_dtype is torch.float64, was torch.float32" in message


def test_tmp_path_is_the_validations_own(tmp_path):
    """It is gone with its worker, killed or not, and what other pytest of this user left is not cleared away: that could take any time."""
    temporary, elsewhere = tmp_path / f"tmp-{'long' * 20}", tmp_path / "elsewhere"
    elsewhere.mkdir()
    shared, short = set(Path("/dev/shm").iterdir()), set(Path("/tmp").glob("gpu-acceptance-*"))
    others = [temporary / f"pytest-of-{getpass.getuser()}" / f"pytest-{number}" / "file" for number in range(9)]
    others.append(temporary / "gpu-acceptance-of-another-run" / "file")
    for other in others:
        other.parent.mkdir(parents=True)
        other.touch()
    ended = torchrun(
        make_suite(tmp_path / "suite", "dies_over_files", "writes_files"), env={"TMPDIR": str(temporary), "SOMEBODY_ELSES": str(elsewhere)}
    )
    left = set(Path("/tmp").glob("gpu-acceptance-*")) - short
    assert ended.outcomes_by_rank("test_killed") == {0: "victim", 1: "died"}
    assert ended.row("writes_files.py::test_value").outcome == "passed", ended.output
    written = [Path((elsewhere / str(rank)).read_text()) for rank in (0, 1)]
    assert all(path.is_relative_to(temporary) for path in written)
    assert all(other.exists() for other in others)
    assert wait_until(lambda: [path.name for path in temporary.glob("gpu-acceptance-*")] == ["gpu-acceptance-of-another-run"])
    assert wait_until(lambda: {path for path in left if path.exists()} <= in_use())  # that of a test beside this one
    made = [path for path in set(Path("/dev/shm").iterdir()) - shared if re.match(r"psm_|sem\.|torch_", path.name)]
    assert wait_until(lambda: not any(path.exists() for path in made)), made  # those of a test beside this one go with it


def in_use():
    """Folders of other runs on this machine, which other tests may have started meanwhile."""
    found = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            found.add(Path(process.environ().get("TMPDIR", "/")))
    return found
