"""The table of all figures, read back by the csv module: the same numbers, and no text that leaves its cell or becomes a formula."""

import csv
import io

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpu_acceptance.report.exports import COLUMNS, build_figures
from tests.report import sample_rows, samples
from tests.report.test_hostile import PIECES, hostile, tainted_record


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
    ranks = tuple(
        one.model_copy(update={"gpus": tuple(gpu.model_copy(update={"serial": serial}) for gpu in one.gpus)}) for one in record.ranks
    )
    assert {row["gpu_serial"] for row in table(build_figures(record.model_copy(update={"ranks": ranks}))) if row["rank"]} == {f"'{serial}"}


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
    ranks = tuple(one.model_copy(update={"host": text}) for one in record.ranks)
    rows = table(build_figures(record.model_copy(update={"ranks": ranks})))
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
