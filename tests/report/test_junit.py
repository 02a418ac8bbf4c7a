"""JUnit of a run: the counts and cases that CI shows, and never green where the verdict is not ACCEPTED."""

from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpu_acceptance.folder.files import read_results
from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.report.exports import build_junit, figure_properties
from tests.report import samples
from tests.report.test_hostile import PIECES, hostile, tainted_record

REPORTS = Path(__file__).parents[2] / "reports"
ALLOWED = {  # of a testcase and what is in it: junit-10.xsd of Jenkins' xunit plugin
    "testsuites": set(),
    "testsuite": {"name", "tests", "failures", "errors", "skipped", "time", "timestamp", "hostname"},
    "properties": set(),
    "property": {"name", "value"},
    "testcase": {"classname", "name", "time"},
    "failure": {"type", "message"},
    "error": {"type", "message"},
    "skipped": {"type", "message"},
    "system-out": set(),
}
TAGS = {"passed": None, "not applicable": "skipped", "failed": "failure", "died": "failure", "stuck": "failure"}


def suite_of(record):
    (suite,) = ElementTree.fromstring(build_junit(record))
    return suite


def kind(case):
    """The tag of what is wrong with it, or None."""
    return next((child.tag for child in case if child.tag != "system-out"), None)


@pytest.mark.parametrize("sample", samples.ALL)
def test_each_validation_is_a_case_and_the_verdict_is_the_last(sample):
    record = samples.ALL[sample]()
    suite = suite_of(record)
    *cases, verdict = suite.findall("testcase")
    assert [kind(case) for case in cases] == [TAGS.get(row.outcome, "error") for row in record.rows]
    assert [case.get("name") for case in cases] == [row.nodeid.rpartition("::")[2] for row in record.rows]
    assert (verdict.get("classname"), verdict.get("name")) == ("gpu_acceptance", "verdict")
    assert kind(verdict) == {"ACCEPTED": None, "REJECTED": "failure"}.get(record.conclusion.verdict, "error")
    kinds = [kind(case) for case in suite.findall("testcase")]
    assert [int(suite.get(name)) for name in ("tests", "failures", "errors", "skipped")] == [
        len(kinds),
        *map(kinds.count, ("failure", "error", "skipped")),
    ]


def test_it_is_red_where_only_the_verdict_is():
    told = {"verdict": "REJECTED", "line": "REJECTED: 1 line of the contract missed", "exit_code": 1}
    suite = suite_of(samples.concluded(samples.accepted(), **told, **samples.objections("contract 8.2: missed")))
    (wrong,) = [case for case in suite.findall("testcase") if kind(case) not in {None, "skipped"}]
    assert wrong.get("name") == "verdict"
    assert wrong.find("failure").get("message") == "REJECTED: 1 line of the contract missed"
    assert wrong.findtext("failure") == "REJECTED: 1 line of the contract missed\ncontract 8.2: missed"
    assert suite.get("failures") == "1"


def cases_of(record):
    return dict(zip((row.nodeid for row in record.rows), suite_of(record).findall("testcase"), strict=False))


def test_it_is_red_without_the_verdict_whatever_the_exit_code():
    record = samples.concluded(samples.accepted(), verdict="INCOMPLETE", line="INCOMPLETE: 1 limit never measured")
    assert record.conclusion.exit_code == 0
    assert suite_of(record).get("errors") == "1"


def test_a_failure_names_the_culprit():
    record = read_results(REPORTS / "samples" / "h100x2-rejected")
    failed = next(row for row in record.rows if row.outcome is Outcome.FAILED)
    case = cases_of(record)[failed.nodeid]
    message = case.find("failure").get("message")
    assert message.startswith(f"failed: {failed.message[:100]}")
    assert "counters.throttle.sw_thermal" in message
    assert "rank 1" in message
    assert case.findtext("failure") == failed.message


def test_what_passed_has_its_figures():
    record = read_results(REPORTS / "samples" / "h200x2-accepted")
    held = next(row for row in record.rows if row.outcome is Outcome.PASSED and row.judgements and "::" in row.nodeid)
    case = cases_of(record)[held.nodeid]
    assert case.findtext("system-out").splitlines() == [f"{name}: {said}" for name, said in figure_properties(held).items()]
    assert case.get("classname") == held.nodeid.partition(".py::")[0].replace("/", ".")


def test_properties_of_the_suite_hold_the_verdict_and_the_figures_by_case():
    record = samples.rejected()
    told = {one.get("name"): one.get("value") for one in suite_of(record).find("properties")}
    assert (told["verdict"], told["exit_code"]) == (record.conclusion.line, "1")
    assert told["acceptance.test_hbm.test_hbm_triad hbm.triad.bandwidth at_least"] == "3120 GB/s, need >= 4150: missed"


@pytest.mark.slow
@pytest.mark.parametrize("sample", ["rejected", "stuck", "incomplete", "trained"])
@given(taint=hostile | st.text(st.characters(), min_size=1, max_size=20))
@example(taint="x" * 1_000_000)
@example(taint="]]></testcase><testcase name='verdict'/>" + "".join(PIECES))
@settings(max_examples=15)
def test_hostile_text_adds_no_case_and_no_attribute(sample, taint):
    record = tainted_record(sample, f"x{taint}")
    suite = suite_of(record)
    sound = suite_of(samples.ALL[sample]())
    assert [kind(case) for case in suite.findall("testcase")] == [kind(case) for case in sound.findall("testcase")]
    assert [element.tag for element in suite] == [element.tag for element in sound]
    for element in suite.iter():
        assert set(element.attrib) <= ALLOWED[element.tag]
        for text in (element.text or "", *element.attrib.values()):
            assert all(char.isprintable() or char in "\n\t" for char in text)
