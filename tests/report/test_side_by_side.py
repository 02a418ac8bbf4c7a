"""GPUs side by side: figures beside their median, pairs, smallest margins; and what a page of many ranks leaves out, and says so."""

import re

import pytest

from gpu_acceptance.record.outcome import Outcome, Status
from gpu_acceptance.report import build_page
from gpu_acceptance.report.grid import MOST_ROWS, make_grid
from gpu_acceptance.report.notable import MOST_RANKS, notable, note
from gpu_acceptance.report.side_by_side import MOST_CLOSE, MOST_GRIDS, closest, grids, matrices
from tests.report import samples
from tests.report.large import large
from tests.report.pages import parse


@pytest.fixture(scope="module")
def many():
    """70 nodes of 8 GPUs, 6 validations."""
    return large(70, 6)


def by_place(grid):
    return {(row, column): cell for row, cells in grid.rows for column, cell in zip(grid.columns, cells, strict=True)}


def test_cells_are_held_against_the_median_of_all():
    values = {
        ("a", "0"): 100.0,
        ("a", "1"): 100.5,
        ("a", "2"): 102.0,
        ("b", "0"): 96.0,
        ("b", "1"): 80.0,
        ("b", "2"): 105.0,
        ("b", "3"): 100.0,
    }
    grid = make_grid("rate", "GB/s", "node / slot", values, frozenset({("b", "1")}))
    cells = by_place(grid)
    assert (grid.median, grid.columns, [row for row, _ in grid.rows]) == ("100", ("0", "1", "2", "3"), ["a", "b"])
    assert [cells[key].tone for key in values] == [0, 0, 1, -2, -3, 2, 0]
    assert cells["a", "3"] is None
    assert (cells["b", "1"].mark, cells["b", "1"].said) == ("✗", "-20.0 % from the median, missed its limit")
    assert (cells["b", "2"].mark, cells["b", "2"].said) == ("▲", "+5.0 % from the median, the most")
    assert grid.note == ""


def test_what_is_equal_everywhere_and_a_median_of_0_have_no_ends():
    assert {cell.mark for cell in by_place(make_grid("x", "", "", {("a", "0"): 2.0, ("a", "1"): 2.0})).values()} == {""}
    assert [cell.tone for cell in by_place(make_grid("x", "", "", {("a", "0"): 0.0, ("a", "1"): 0.0, ("a", "2"): 3.0})).values()] == [
        0,
        0,
        0,
    ]


def test_of_many_rows_those_are_shown_that_stand_out():
    values = {(f"node {number}", "0"): 100 + number / 1000 for number in range(200)}
    values["node 150", "0"] = 50.0
    grid = make_grid("rate", "GB/s", "node / slot", values)
    assert len(grid.rows) == MOST_ROWS
    assert "node 150" in dict(grid.rows)
    assert re.fullmatch(
        r"64 of 200 rows, those that stand out most; all others are within -0\.\d+ % to \+0\.\d+ % of the median", grid.note
    )


def test_each_figure_of_a_rank_is_shown_by_node_and_slot(many):
    found = grids(many)
    assert len(found) == MOST_GRIDS
    missed = [grid for grid in found if any(cell and cell.mark == "✗" for cell in by_place(grid).values())]
    assert [grid.title for grid in missed] == [grid.title for grid in found[: len(missed)]]  # they come first
    assert {grid.title for grid in missed} == {"made0.case0.rate, test_case[0]", "made0.case5.rate, test_case[5]"}
    assert by_place(missed[0])["0: node-01.example", "5"].mark == "✗"


def test_pairs_are_shown_from_whom_to_whom():
    def figures_of(rank):
        return [
            samples.figure(f"p2p.both.to_rank_{other}", 390.0 + rank - 40 * (rank == other - 1 == 2), "GB/s", to_rank=other)
            for other in range(4)
            if other != rank
        ]

    row = samples.row("acceptance/test_p2p.py::test_bandwidth", figures_of, [], ranks=4)
    record = samples.accepted().model_copy(update={"rows": (row,)})
    (grid,) = matrices(record)
    cells = by_place(grid)
    assert (grid.title, grid.unit, grid.corner) == ("p2p.both", "GB/s", "from / to")
    assert grid.columns == tuple(row for row, _ in grid.rows) == ("rank 0", "rank 1", "rank 2", "rank 3")
    assert cells["rank 1", "rank 1"] is None
    assert (cells["rank 2", "rank 3"].text, cells["rank 2", "rank 3"].mark) == ("352", "▼")


def test_the_smallest_margins_come_first(many):
    found = closest(many)
    assert len(found) == MOST_CLOSE
    margin = min(one.margin for one in many.conclusion.limits if one.status is Status.HELD)
    assert found[0].margin == f"+{100 * margin:.1f} %"
    assert closest(samples.accepted())[0].metric == "hbm.triad.bandwidth"


def test_of_many_ranks_the_notable_ones_have_a_line(many):
    row = next(row for row in many.rows if row.outcome is Outcome.FAILED)
    (attempt,) = row.attempts
    kept = notable(attempt, row.judgements)
    assert len(kept) == MOST_RANKS
    assert {5, 17} <= {one.rank for one in kept}
    assert [one.rank for one in kept] == sorted(one.rank for one in kept)
    assert note(attempt).startswith("64 of 560 ranks: ")
    few = samples.accepted().rows[0]
    assert (notable(few.attempts[0], few.judgements), note(few.attempts[0])) == (few.attempts[0].ranks, "")


@pytest.mark.slow
def test_the_page_of_many_ranks_says_what_it_leaves_out(many):
    page = build_page(many)
    table = next(one for one in parse(page).all("table") if "rate, test_case[0]" in one.text)
    assert "64 of 70 rows, those that stand out most" in table.text
    assert "missed its limit" in table.text
    assert page.count("All are in results.json and figures.csv.") == len(many.rows)
    assert len(page) < 2_000_000  # 24 MB of 1,024 ranks and 60 validations would be 1.3 here, of rows that are left out now
