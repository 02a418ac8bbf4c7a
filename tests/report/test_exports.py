"""The files for other tools, read back by their own parsers: the same numbers, and no text that leaves its place."""

import csv
import io
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_prometheus

from gpu_acceptance.folder.files import read_results
from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.report import exports
from gpu_acceptance.report.ending import write_ending
from gpu_acceptance.report.exports import COLUMNS, EXPORTS, build_figures, build_junit, build_metrics, figure_properties, write_exports
from tests.report import sample_rows, samples
from tests.report.test_hostile import PIECES, for_hostile_text, hostile, tainted_record

# --- all ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sample", samples.ALL)
def test_they_are_built_again_byte_for_byte(tmp_path, sample):
    write_ending(tmp_path, samples.ALL[sample]())
    before = {name: (tmp_path / name).read_bytes() for name in EXPORTS}
    assert write_exports(tmp_path, read_results(tmp_path)) == ()
    assert {name: (tmp_path / name).read_bytes() for name in EXPORTS} == before


def test_one_that_cannot_be_written_is_told_and_the_verdict_stands(tmp_path, monkeypatch):
    def fail(record):
        raise ZeroDivisionError("a bug")

    (tmp_path / "summary.txt").write_text("ACCEPTED, of another day")
    monkeypatch.setattr(exports, "EXPORTS", {**EXPORTS, "summary.txt": fail})
    made = write_ending(tmp_path, samples.rejected())
    assert made.lines[1] == f"{tmp_path}/summary.txt could not be written: ZeroDivisionError: a bug"
    assert (made.exit_code, read_results(tmp_path).conclusion) == (1, samples.rejected().conclusion)
    assert not (tmp_path / "summary.txt").exists()


# --- junit.xml ------------------------------------------------------------------------------------------------------------------


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


@for_hostile_text("]]></testcase><testcase name='verdict'/>")
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


# --- figures.csv ----------------------------------------------------------------------------------------------------------------


def table(text):
    return list(csv.DictReader(io.StringIO(text, newline=""), strict=True))


def figures(record):
    """Each figure of a record, and each counter that rose or could not be read."""
    return [
        (row.nodeid, attempt.number, rank.rank, figure)
        for row in record.rows
        for attempt in row.attempts
        for rank in attempt.ranks
        for figure in (*rank.figures, *(counter for counter in rank.counters if counter.value != 0))
    ]


def number_and_text(figure):
    """The two cells of a value, of which one is empty."""
    if isinstance(figure.value, bool):
        return "", str(figure.value).lower()
    return ("", figure.value) if isinstance(figure.value, str) else ("" if figure.value is None else str(figure.value), "")


@pytest.mark.parametrize("sample", samples.ALL)
def test_each_figure_has_its_row_and_every_digit(sample):
    record = samples.ALL[sample]()
    rows = [row for row in table(build_figures(record)) if row["validation"]]
    cells = ("validation", "attempt", "rank", "metric", "value", "text", "unit")
    assert [tuple(row[cell] for cell in cells) for row in rows] == [
        (nodeid, str(attempt), str(rank), one.metric, *number_and_text(one), one.unit) for nodeid, attempt, rank, one in figures(record)
    ]


@pytest.mark.parametrize("sample", samples.ALL)
def test_columns_of_numbers_hold_nothing_else(sample):
    for row in table(build_figures(samples.ALL[sample]())):
        for column in ("value", "spread_percent", "at_least", "at_most", "attempt", "rank", "node", "gpu_index"):
            assert row[column] == "" or is_number(row[column]), (column, row[column])


@pytest.mark.parametrize("serial", ["1653924100006", "1653924100006123456", "0012", "12e5", "1.5", "1,000", "7%"])
def test_a_serial_stays_what_it_is_in_a_spreadsheet(serial):
    record = samples.rejected()
    gpus = tuple(gpu.model_copy(update={"serial": serial}) for gpu in record.ranks[0].gpus)
    changed = samples.of_ranks(record, [one.model_copy(update={"gpus": gpus}) for one in record.ranks])
    assert {row["gpu_serial"] for row in table(build_figures(changed)) if row["rank"]} == {f"'{serial}"}


def test_a_miss_names_its_rank_its_gpu_its_bound_and_its_source():
    rows = [row for row in table(build_figures(samples.rejected())) if row["metric"] == "hbm.triad.bandwidth"]
    assert [row["rank"] for row in rows if row["named"] == "true"] == ["5"]
    (row,) = (row for row in rows if row["named"] == "true")
    assert (row["value"], row["host"], row["gpu_index"], row["gpu_serial"]) == ("3120.0", "node-01.example", "5", "'1653924100006")
    assert (row["bound"], row["at_least"], row["at_most"], row["status"]) == (">= 4150", "4150.0", "", "missed")
    (judgement,) = (one for row in samples.rejected().rows for one in row.judgements if one.metric == "hbm.triad.bandwidth")
    assert row["source"] == ": ".join(part for part in (judgement.file, judgement.source) if part) != ""


def test_what_was_never_measured_has_a_row_without_a_value():
    rows = [row for row in table(build_figures(samples.incomplete())) if row["status"] == "not measured"]
    assert rows
    assert {row["value"] for row in rows} == {""}


@pytest.mark.parametrize("text", ["=HYPERLINK(1)", "+1+1", "-2+3", "@SUM(1)", "\t=1", " =1", "\r=1", "\uff1d1", '"=1', "a,b\r\nc;d"])
def test_no_text_is_a_formula_or_leaves_its_cell(text):
    record = samples.rejected()
    rows = table(build_figures(samples.of_ranks(record, [one.model_copy(update={"host": text}) for one in record.ranks])))
    plain = table(build_figures(record))
    assert [{**row, "host": ""} for row in rows] == [{**row, "host": ""} for row in plain]
    (host,) = {row["host"] for row in rows if row["rank"]}
    assert host.isprintable()
    assert host.lstrip()[0] not in "=+-@\uff1d"


def test_a_counter_that_did_not_rise_has_no_row_and_one_that_rose_has():
    counters = (sample_rows.figure("counters.a", 0, "count"), sample_rows.figure("counters.b", 2, "count"))
    row = sample_rows.with_ranks(sample_rows.gemm_row(1), {0: {"figures": (), "counters": counters}})
    rows = table(build_figures(samples.with_rows(samples.rejected(), row)))
    assert [(one["metric"], one["value"]) for one in rows if one["validation"]] == [("counters.b", "2")]


def test_a_number_below_0_stays_a_number():
    figures = (sample_rows.figure("a.b", -1.25e-07, "s"), sample_rows.figure("a.c", "-x", "text"))
    row = sample_rows.with_ranks(sample_rows.gemm_row(1), {0: {"figures": figures}})
    values = [(one["value"], one["text"]) for one in table(build_figures(samples.with_rows(samples.rejected(), row)))[:2]]
    assert values == [("-1.25e-07", ""), ("", "'-x")]


@pytest.mark.slow
@pytest.mark.parametrize("sample", ["rejected", "stuck", "incomplete", "trained"])
@given(taint=hostile | st.text(st.characters(), min_size=1, max_size=20), lead=st.sampled_from("x=+-@\t\r\n "))
@example(taint="x" * 1_000_000, lead="x")
@example(taint='",\r\n=1+1\r\n' + "".join(PIECES), lead="=")
@settings(max_examples=15, deadline=None)
def test_hostile_text_changes_its_own_cells_alone(sample, taint, lead):
    plain = samples.ALL[sample]()
    rows = table(build_figures(tainted_record(sample, lead + taint)))
    for row in rows:
        assert list(row) == list(COLUMNS)
        assert all(cell.isprintable() and (cell[:1] not in "=+-@" or not cell or is_number(cell)) for cell in row.values())
    measured = [row for row in rows if row["validation"]]
    numbers = [(str(one.value), rank) for _, _, rank, one in figures(plain) if type(one.value) in {float, int}]
    assert [(row["value"], int(row["rank"])) for row in measured if is_number(row["value"])] == numbers


def is_number(cell):
    try:
        float(cell)
    except ValueError:
        return False
    return True


# --- metrics.prom ---------------------------------------------------------------------------------------------------------------


READERS = pytest.mark.parametrize("read", [read_openmetrics, read_prometheus], ids=["openmetrics", "prometheus"])


def series(text, read=read_openmetrics):
    """Family -> its series, each a frozen set of labels -> value."""
    found = {}
    for family in read(text):
        assert family.type == "gauge"
        assert family.documentation
        for sample in family.samples:
            assert sample.timestamp is None
            key = frozenset(sample.labels.items())
            assert key not in found.setdefault(sample.name.removeprefix("gpu_acceptance_"), {})
            found[sample.name.removeprefix("gpu_acceptance_")][key] = sample.value
    return found


def labels(**those):
    return frozenset(those.items())


@READERS
@pytest.mark.parametrize("sample", samples.ALL)
def test_both_formats_read_the_same_numbers_as_the_results(sample, read):
    record = samples.ALL[sample]()
    found = series(build_metrics(record), read)
    conclusion = record.conclusion
    assert found["exit_code"] == {labels(): conclusion.exit_code}
    assert [dict(key)["verdict"] for key, value in found["verdict"].items() if value == 1] == [conclusion.verdict]
    assert found["limits"] == {
        labels(state=name): getattr(conclusion.coverage, f"limits_{name}") for name in ("expected", "judged", "held")
    }
    assert found["validations"] == {labels(outcome=one): sum(row.outcome is one for row in record.rows) for one in Outcome}
    assert found["validation_outcome"] == {labels(validation=row.nodeid, outcome=row.outcome): 1 for row in record.rows}
    figures = {
        labels(metric=one.metric, bound=one.bound, unit=one.unit): one.value for one in conclusion.limits if type(one.value) in {int, float}
    }
    assert {
        frozenset(one for one in key if one[0] not in {"host", "gpu"}): value for key, value in found.get("figure", {}).items()
    } == figures
    margins = {labels(metric=one.metric, bound=one.bound): one.margin for one in conclusion.limits if one.margin is not None}
    assert found.get("margin_ratio", {}) == margins


def test_a_bound_is_a_number_and_the_worst_figure_names_its_host_and_its_gpu():
    found = series(build_metrics(samples.rejected()))["limit"]
    assert found[labels(metric="hbm.triad.bandwidth", bound="at_least", unit="GB/s")] == 4150
    found = series(build_metrics(samples.rejected()))["figure"]
    assert found[labels(metric="hbm.triad.bandwidth", bound="at_least", unit="GB/s", host="node-01.example", gpu="5")] == 3120
    of_job = [dict(key).keys() for key in found if dict(key)["metric"].startswith("nccl.")]
    assert of_job
    assert all(keys == {"metric", "bound", "unit"} for keys in of_job), "a figure of the whole job is nobody's"


def test_more_gpus_are_not_more_series_and_the_end_is_what_openmetrics_demands():
    text = build_metrics(samples.two_nodes())
    assert "rank" not in text.replace("gpu_acceptance_ranks", "").replace("Ranks", "")
    assert "serial" not in text
    text = build_metrics(samples.accepted())
    assert text.endswith("\n# EOF\n")
    assert "\n\n" not in text


@for_hostile_text('"} 1\n# EOF\nverdict{verdict="ACCEPTED"} 1\n\\')
def test_hostile_text_changes_labels_alone(sample, taint):
    plain = samples.ALL[sample]()
    text = build_metrics(tainted_record(sample, f"x{taint}"))
    assert all(line.isprintable() for line in text.removesuffix("\n").split("\n"))
    found, expected = series(text), series(build_metrics(plain))
    for name in ("verdict", "exit_code", "gpus", "limits", "validations"):
        assert found[name] == expected[name]
    assert series(text, read_prometheus) == found
    assert set(found) <= set(expected)
