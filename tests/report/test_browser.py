"""The page in a real browser: offline, without a complaint, its layout, its figures, on paper, and all that its script does."""

import io
import re
import unicodedata
from importlib import resources
from pathlib import Path

import pypdf
import pytest

from gpu_acceptance.folder.files import read_results
from gpu_acceptance.report.build import build_compare_page, build_page
from gpu_acceptance.report.problems import problems
from gpu_acceptance.report.validations import shown_figures
from gpu_acceptance.report.words import STATUS, figure_text, judged_figure, rounded
from gpu_acceptance.verdict.comparison import compare
from tests.report import sample_rows, samples
from tests.report.large import large

HEADING = "document.querySelector('h1').innerText.replace(/\\s+/g, ' ').trim()"


def compared():
    after = samples.accepted()
    after = after.model_copy(update={"plan": after.plan.model_copy(update={"run_id": "20261121-090000-cd34"})})
    return compare(samples.rejected(), after)


@pytest.mark.parametrize("script", [True, False], ids=["script", "no script"])
@pytest.mark.parametrize("name", samples.ALL)
def test_a_browser_shows_the_verdict_and_has_no_complaint(browser, name, script):
    record = samples.ALL[name]()
    tab = browser.open(build_page(record), script=script)
    assert tab.complaints == []
    assert tab.ask(HEADING).endswith(f" {record.conclusion.line}")
    assert tab.ask("document.querySelector('h1').checkVisibility()")
    assert tab.ask("document.title").startswith(f"{record.conclusion.verdict}: ")
    assert "What was not tested" in tab.dom()


def test_a_browser_shows_two_runs_beside_each_other(browser):
    tab = browser.open(build_compare_page(compared()))
    assert tab.complaints == []
    assert tab.ask(HEADING).endswith(compared().line)
    assert tab.ask("document.querySelectorAll('th button').length") > 0  # its tables are sorted by the same script


def test_this_test_would_see_a_request_and_a_script(browser):
    """The policy of the page refuses both, and the console says so."""
    planted = '<img src="https://example.invalid/a.png"><script>document.title = "owned"</script></main>'
    tab = browser.open(build_page(samples.rejected()).replace("</main>", planted))
    assert len(tab.complaints) >= 2
    assert "Content Security Policy" in " ".join(tab.complaints)
    assert "owned" not in tab.ask("document.title")


AXE = """
for (const one of document.querySelectorAll("details")) one.open = true;
axe.run().then(found => found.violations.filter(one => ["serious", "critical"].includes(one.impact))
  .map(one => [one.id, one.nodes.length, one.nodes[0].html.slice(0, 200)]));
"""


def faults(tab):
    """Return the serious and critical findings of axe-core, with everything unfolded."""
    tab.ask(resources.files("axe_core_python").joinpath("axe.min.js").read_text(encoding="utf-8"))
    return tab.ask(AXE)


@pytest.mark.parametrize(("name", "scheme"), [("rejected", "light"), ("incomplete", "dark"), ("trained", "dark")])
def test_everybody_can_read_the_page(browser, name, scheme):
    assert faults(browser.open(build_page(samples.ALL[name]()), scheme=scheme, width=390)) == []


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_everybody_can_read_what_was_found_and_sorted(browser, scheme, width):
    tab = browser.open(build_page(samples.incomplete()), scheme=scheme, width=width)
    tab.ask("document.querySelector('.finder input').focus()")
    tab.type("nccl")
    tab.ask("document.querySelector('.finder [aria-pressed]').click(); document.querySelector('th button').click()")
    assert tab.ask("document.querySelectorAll('.filtered, [aria-sort], [aria-pressed=true]').length") >= 3
    assert faults(tab) == []


def test_everybody_can_read_a_comparison(browser):
    assert faults(browser.open(build_compare_page(compared()), width=390)) == []


def test_this_test_would_see_a_picture_without_words(browser):
    planted = '<img src="data:,"><p style="color: #999; background: #aaa">pale words</p></main>'
    tab = browser.open(build_page(samples.rejected()).replace("</main>", planted))
    assert {name for name, *_ in faults(tab)} == {"image-alt", "color-contrast"}


# --- layout ---------------------------------------------------------------------------------------------------------------------


REPORTS = Path(__file__).parents[2] / "reports"
HEIGHT = 900  # of the browser's window
BOTTOMS = """Object.fromEntries(["header.verdict", "#short", "#scoreboard"].map(one =>
  [one, document.querySelector(one).getBoundingClientRect().bottom]))"""
# Of each limit that is told: whether bound and margin are where they can be seen, and nothing is cut off.
CUT = """(wide => [...document.querySelectorAll("#wrong .cards td[data-of], #validations .cards > tbody > tr > td[data-of]")]
  .filter(one => one.checkVisibility())
  .filter(one => (box => box.left < 0 || box.right > wide || one.scrollWidth > one.clientWidth + 1)(one.getBoundingClientRect()))
  .map(one => [one.dataset.of, one.innerText]))(document.documentElement.clientWidth)"""


def runs():
    """Rejected runs: of 8 GPUs with an odd bound, of 2 of which one overheats in 31 subjects, of 24 that are made."""
    for name in ("evidence/h200x8-accept/raised", "samples/h100x2-rejected"):
        yield pytest.param(lambda name=name: read_results(REPORTS / name), id=name)
    yield pytest.param(lambda: large(3, 60), id="24 GPUs")


@pytest.mark.parametrize("run", [*runs()])
def test_the_first_screen_of_a_rejected_run_has_verdict_culprits_and_scoreboard(browser, run):
    record = run()
    assert record.conclusion.verdict == "REJECTED"
    bottoms = browser.open(build_page(record), width=1280).ask(BOTTOMS)
    assert max(bottoms.values()) <= HEIGHT, bottoms


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("run", ["samples/h100x2-rejected", "samples/h200x2-accepted"])
def test_bound_margin_and_source_of_each_limit_can_be_seen(browser, run, width):
    tab = browser.open(build_page(read_results(REPORTS / run)), width=width)
    tab.ask("document.querySelectorAll('#validations .subject').forEach(one => (one.open = true))")
    assert tab.ask("document.querySelectorAll('.cards td[data-of=Source]').length") > 100
    assert tab.ask(CUT) == []
    assert tab.ask("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_this_test_would_see_what_is_cut_off(browser):
    page = build_page(samples.rejected()).replace("</style>", ".cards { min-width: 60rem; }</style>")
    assert ["Needed", ">= 4150"] in browser.open(page, width=390).ask(CUT)


# --- figures --------------------------------------------------------------------------------------------------------------------


ATTEMPTS = """Object.fromEntries([...document.querySelectorAll(".validations > tbody[id]")].map(body => [body.id,
  [...body.querySelectorAll("table")].filter(one => one.caption.textContent.startsWith("Attempt "))
    .map(one => [...one.tBodies[0].rows].map(row => [...row.cells].map(cell => cell.textContent)))]))"""


@pytest.mark.parametrize("run", ["samples/h200x2-accepted", "samples/h100x2-rejected", "evidence/h200-interconnect/x2-full"])
def test_each_figure_of_each_rank_is_that_of_the_results(browser, run):
    record, num_compared = read_results(REPORTS / run), 0
    shown = browser.open(build_page(record)).ask(ATTEMPTS)
    assert sorted(shown) == sorted(f"v{number}" for number in range(len(record.rows)))
    for number, row in enumerate(record.rows):
        for attempt, lines in zip(row.attempts, shown[f"v{number}"], strict=True):
            for rank, (name, _, _, _, *cells) in zip(attempt.ranks, lines, strict=True):
                assert name == str(rank.rank)
                told = [text.split(" (")[0] for cell in cells for text in cell.split("; ")]
                numbers = [one for one in shown_figures(rank) if type(one.value) in {int, float}]
                assert [one for one in numbers if rounded(one.value) not in told] == []
                num_compared += len(numbers)
    assert num_compared > 100


@pytest.mark.parametrize("run", ["samples/h100x2-rejected", "evidence/h200-compute/x4-competitor"])
def test_each_miss_is_shown_beside_its_bound(browser, run):
    record = read_results(REPORTS / run)
    missed = [one for row in record.rows for one in row.judgements if one.status == "missed"]
    text = browser.open(build_page(record)).ask("document.querySelector('#wrong').textContent")
    assert missed
    assert [one for one in missed if judged_figure(one) not in text or one.need not in text] == []


# --- paper ----------------------------------------------------------------------------------------------------------------------


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
