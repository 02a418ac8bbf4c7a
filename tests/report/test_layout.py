"""The layout of the page in a real browser: the content of the first screen, and what a narrow one cuts off."""

from pathlib import Path

import pytest

from gpu_acceptance.folder.files import read_results
from gpu_acceptance.report.build import build_page
from tests.report import samples
from tests.report.large import large

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
