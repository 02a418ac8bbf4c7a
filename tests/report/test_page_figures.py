"""The figures of the page, read back from a browser: those of results.json, to the digit that is printed."""

from pathlib import Path

import pytest

from gpu_acceptance.folder.files import read_results
from gpu_acceptance.report.build import build_page
from gpu_acceptance.report.validations import shown_figures
from gpu_acceptance.report.words import judged_figure, rounded

REPORTS = Path(__file__).parents[2] / "reports"
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
