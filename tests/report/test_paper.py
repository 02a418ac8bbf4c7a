"""The page on paper, as a browser prints it: all of it is there, whatever was looked for on the screen, and no row is cut."""

import io
import re
import unicodedata
from pathlib import Path

import pypdf
import pytest

from gpu_acceptance.folder.files import read_results
from gpu_acceptance.report.build import build_page
from gpu_acceptance.report.problems import problems
from gpu_acceptance.report.words import STATUS, figure_text
from tests.report import sample_rows, samples

RUN = Path(__file__).parents[2] / "reports" / "evidence" / "h200-interconnect" / "x2-one-rank-without-p2p"
UNFOLDED = ":is(#wrong, #machines) details::details-content { content-visibility: visible; height: auto; }"
UNCUT = "tr, .tiles, .picture, .culprit > p, .culprits li, .scores li { break-inside: avoid; }"
ROWS = """[...document.querySelectorAll("tr")].filter(row => row.checkVisibility() && row.cells.length > 1)
  .map(row => [...row.cells].map(cell => cell.innerText))"""


def folded(text):
    """Without blanks, and with the letters of a ligature apart."""
    return re.sub(r"\s+", "", unicodedata.normalize("NFKC", text))


def print_it(browser, page, looked_for="", *, unfolded=False):
    """The sheets as folded texts, and the rows of all tables that are on them, as folded cells."""
    tab = browser.open(page)
    if unfolded:
        tab.ask("document.querySelectorAll('#validations .subject').forEach(one => (one.open = true))")
    tab.ask("document.querySelector('.finder input').focus()")
    tab.type(looked_for)
    sheets = [folded(sheet.extract_text()) for sheet in pypdf.PdfReader(io.BytesIO(tab.paper())).pages]
    tab.call("Emulation.setEmulatedMedia", media="print")
    tab.ask("document.querySelectorAll('.said').forEach(one => one.remove())")  # said, not shown
    rows = [[folded(cell) for cell in row] for row in tab.ask(ROWS)]
    assert tab.complaints == []
    return sheets, rows


def cut(sheets, rows):
    """Rows that are not whole on any sheet."""
    return [row for row in rows if not any(all(cell in sheet for cell in row) for sheet in sheets)]


@pytest.fixture(scope="module")
def record():
    """A rank that died, a limit that was missed, validations that did not run."""
    return read_results(RUN)


def test_paper_has_the_verdict_and_every_failure_and_cuts_no_row(browser, record):
    sheets, rows = print_it(browser, build_page(record), looked_for="no such thing", unfolded=True)
    assert folded(record.conclusion.line) in sheets[0]
    text = "".join(sheets)
    assert all(folded(reason) in text for reason in record.conclusion.reasons)
    found = problems(record)
    assert len(found) >= 2
    for one in found:
        assert folded(one.row.nodeid) in text
        for judged in (line.judgement for line in one.lines):
            mark = STATUS[judged.status]
            assert folded(judged.metric + mark.symbol + mark.word + figure_text(judged, exactly=True)) in text
    assert len(rows) > 300
    assert cut(sheets, rows) == []
    folds = text.count(folded("Figures by rank, attempts, how to run it again"))
    assert folds == len(record.rows)  # that they are not looked for is of the screen
    assert "Findvalidations" not in text


def test_a_table_that_goes_on_repeats_its_head_and_what_held_stays_folded(browser):
    """The head of the limits that were never measured, and of no subject of which all held."""
    record = samples.accepted()
    never = tuple(sample_rows.not_measured(f"hbm.case{number}.bandwidth") for number in range(120))
    conclusion = record.conclusion.model_copy(update={"limits": (*record.conclusion.limits, *never)})
    sheets, _ = print_it(browser, build_page(record.model_copy(update={"conclusion": conclusion})))
    head = folded("Limit State Figure Needed Scope Source, reason")
    with_rows = [sheet for sheet in sheets if re.search(r"hbm\.case\d+\.bandwidth", sheet)]
    assert len(with_rows) >= 3
    assert all(head in sheet for sheet in with_rows)
    assert not any("Deadline" in sheet for sheet in sheets)


def test_where_the_style_cannot_unfold_the_script_does_and_a_row_that_is_cut_would_be_seen(browser, record):
    page = build_page(record)
    assert UNCUT in page
    assert UNFOLDED in page
    sheets, rows = print_it(browser, page.replace(UNCUT, "").replace(UNFOLDED, ""))
    assert cut(sheets, rows)
    checks = [command for problem in problems(record) for one in problem.advice for command, _ in one.checks]
    assert checks
    assert all(folded(command) in "".join(sheets) for command in checks)
