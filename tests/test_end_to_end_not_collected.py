"""Validations that were not collected, selected or committed, or that hooks hide or cover up, leave a trace in the verdict."""

import os

import pytest
from bundles import commit_all
from suite import PYTHON, make_suite, plain_pytest, run

pytestmark = pytest.mark.launcher


DROPS_ONE = """
def pytest_collection_modifyitems(items):
    items[:] = [item for item in items if item.name != "test_first"]
"""


def test_a_module_that_is_skipped_as_a_whole_is_named_and_leaves_the_run_incomplete(tmp_path):
    ended = plain_pytest(make_suite(tmp_path, "passes", "skips_as_a_whole"))
    assert ended.returncode == 6, ended.output
    assert ended.verdict_line.startswith("INCOMPLETE: 1 file not collected, ")
    said = "acceptance/test_skips_as_a_whole.py was skipped as a whole: needs a library that nobody has"
    assert ended.reasons.startswith(said)
    assert f"\n{said}" in ended.output
    assert ended.journal_of(0)[1]["not_collected"] == [said]


@pytest.mark.parametrize("path", ["acceptance/test_passes.py", "acceptance/test_passes.py::test_value"])
def test_a_path_instead_of_the_folder_is_in_the_verdict_line(tmp_path, path):
    ended = run([PYTHON, "-m", "pytest", path], make_suite(tmp_path, "passes"))
    assert ended.returncode == 0, ended.output
    assert ended.verdict_line == f"ACCEPTED (cpu profile: no GPU was tested, only {path} was asked for)"


def test_what_is_ignored_deselected_or_dropped_by_a_hook_is_in_the_verdict_line(tmp_path):
    suite = make_suite(tmp_path, "passes", "two_metrics", "waived", conftest=DROPS_ONE)
    ended = plain_pytest(suite, "--ignore=acceptance/test_waived.py", "--deselect=acceptance/test_passes.py")
    assert ended.returncode == 6, ended.output
    assert ended.outcomes() == {"test_second": "passed"}
    assert ended.verdict_line.endswith(
        "(cpu profile: no GPU was tested, 1 file left out: acceptance/test_waived.py, 2 validations deselected, "
        "conftest acceptance/conftest.py beside the suite's own)"
    )


@pytest.mark.parametrize(
    ("example", "arguments", "text"),
    [
        ("leaves_at_import", [], "could not collect: acceptance/test_leaves_at_import.py: SystemExit(0) while it was imported"),
        ("wrong_markers", [], "test_value: marker worker wants fresh to be True or False, got worker(fresh='no')"),
        (
            "passes",
            ["acceptance/test_passes.py", "--keep-duplicates"],
            "rank 0 collected more than once, so that one would answer for the other: acceptance/test_passes.py::test_value",
        ),
    ],
)
def test_what_cannot_be_collected_rightly_is_one_usage_error(tmp_path, example, arguments, text):
    ended = plain_pytest(make_suite(tmp_path, example), *arguments)
    assert ended.returncode == 4, ended.output
    assert text in ended.output
    assert "INTERNALERROR" not in ended.output
    assert not ended.has_results


def test_a_file_whose_name_is_no_text_is_one_usage_error(tmp_path):
    suite = make_suite(tmp_path, "passes")
    (suite / "acceptance" / os.fsdecode(b"test_\xff.py")).write_text("def test_value():\n    pass\n")
    ended = plain_pytest(suite)
    assert ended.returncode == 4, ended.output
    assert r"ERROR: rank 0 cannot take part: acceptance/test_\udcff.py::test_value: not UTF-8; rename the file" in ended.output
    assert "INTERNALERROR" not in ended.output


@pytest.mark.parametrize("name", ["world_formation", "worker_end", "counters"])
def test_names_of_what_the_run_itself_finds_are_reserved(tmp_path, name):
    suite = make_suite(tmp_path, "passes")
    (suite / "acceptance" / "test_passes.py").rename(suite / "acceptance" / f"test_{name}.py")
    ended = plain_pytest(suite)
    assert ended.returncode == 4, ended.output
    assert f"test_{name}.py: its name is reserved for what the run itself finds; rename it" in ended.output


CONFTEST = """
import pytest


@pytest.fixture
def record_curve(record_curve):
    return record_curve


def pytest_pycollect_makeitem(collector, name, obj):
    return [] if name == "test_hidden" else None


def pytest_collection_modifyitems(items):
    items[:] = [item for item in items if item.name != "test_thinned[2]"]


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_make_collect_report(collector):
    report = yield
    report.result = [one for one in report.result if one.name != "test_thinned[3]"]
    return report


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if item.name == "test_covered_up":
        report.outcome, report.longrepr = "passed", None
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    try:
        return (yield)
    except RuntimeError:
        if item.name != "test_swallowed":
            raise


def pytest_pyfunc_call(pyfuncitem):
    if pyfuncitem.name == "test_never_called":
        pyfuncitem.funcargs["check"]("hooked.value", 9.0, "GB/s")
        return True
"""


@pytest.mark.needs("git")
def test_a_suite_as_it_was_committed(tmp_path):
    suite = commit_all(make_suite(tmp_path, "begins", "passes"))
    ended = plain_pytest(suite)
    assert ended.verdict_line == "ACCEPTED (cpu profile: no GPU was tested)", ended.output
    state = ended.record.plan.suite
    assert (state.source, len(state.commit), state.num_changed) == ("checkout", 40, 0)
    assert f"gpu-acceptance 0.2.0 (commit {state.commit[:12]})" in " ".join((ended.folder / "summary.txt").read_text().split())


@pytest.mark.needs("git")
def test_what_was_changed_since_and_what_hooks_did_is_said(tmp_path):
    suite = commit_all(make_suite(tmp_path, "begins", "hooked"))
    (suite / "acceptance" / "conftest.py").write_text(CONFTEST)
    with (suite / "thresholds" / "cpu.yaml").open("a") as file:
        file.write("# edited\n")
    ended = plain_pytest(suite)
    said = [
        "cpu profile: no GPU was tested",
        "1 validation deselected",
        "limits file cpu.yaml not as committed",
        "1 file of the suite not as committed: acceptance/conftest.py",
        "conftest acceptance/conftest.py beside the suite's own",
        "fixture record_curve from acceptance/conftest.py",
        "2 tests not collected in full: test_hooked.py::test_hidden, test_hooked.py::test_thinned",
    ]
    assert ended.verdict_line == f"INCOMPLETE: 3 of 6 validations in error ({', '.join(said)})", ended.output
    assert ended.row("test_curve").outcome == "passed"
    for name, text in {
        "test_covered_up": "its report says passed, and the call raised RuntimeError: the call went wrong",
        "test_swallowed": "its report says passed, and the call raised RuntimeError: the call went wrong",
        "test_never_called": "its report says passed, and its function was never called: a hook answered in its place",
    }.items():
        assert ended.row(name).outcome == "error"
        assert ended.row(name).message.endswith(f"error in call: {text}"), ended.row(name).message
