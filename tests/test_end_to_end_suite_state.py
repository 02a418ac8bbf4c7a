"""A suite that is not as it was committed, and hooks that hide or cover up: the verdict line says so, and nothing passes by them."""

import pytest
from bundles import commit_all
from suite import make_suite, plain_pytest

pytestmark = [pytest.mark.launcher, pytest.mark.needs("git")]

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


def test_a_suite_as_it_was_committed(tmp_path):
    suite = commit_all(make_suite(tmp_path, "begins", "passes"))
    ended = plain_pytest(suite)
    assert ended.verdict_line == "ACCEPTED (cpu profile: no GPU was tested)", ended.output
    state = ended.record.plan.suite
    assert (state.source, len(state.commit), state.num_changed) == ("checkout", 40, 0)
    assert f"gpu-acceptance 0.2.0 (commit {state.commit[:12]})" in " ".join((ended.folder / "summary.txt").read_text().split())


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
