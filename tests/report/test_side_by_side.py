"""GPUs side by side: figures beside their median, pairs, smallest margins; and what a page of many ranks leaves out, and says so."""

import re

import pytest

from gpu_acceptance.record.outcome import Outcome, Status
from gpu_acceptance.report.build import build_page
from gpu_acceptance.report.side_by_side import MOST_METRICS, MOST_NODES, Scale, heat_map, matrices
from gpu_acceptance.report.validations import MOST_RANKS, notable
from gpu_acceptance.report.validations import note as note_on
from tests.report import sample_rows, samples
from tests.report.large import large
from tests.report.pages import parse


@pytest.fixture(scope="module")
def many():
    """70 nodes of 8 GPUs, 6 validations."""
    return large(70, 6)


def by_place(grid):
    return {(line.name, column): cell for line in grid.rows for column, cell in zip(grid.columns, line.cells, strict=True)}


def test_cells_are_held_against_the_median():
    values = (100.0, 100.5, 102.0, 96.0, 80.0, 105.0, 100.0)
    scale = Scale(values)
    cells = [scale.cell(value, missed=value == 80.0) for value in values]
    assert scale.median == 100.0
    assert [cell.tone for cell in cells] == [0, 0, 1, -2, -3, 2, 0]
    assert (cells[4].mark, cells[4].said) == ("✗", "-20.0 % from the median, missed its limit")
    assert (cells[5].mark, cells[5].said) == ("▲", "+5.0 % from the median, the most")


def test_what_is_equal_everywhere_and_a_median_of_0_have_no_ends():
    assert {Scale((2.0, 2.0)).cell(2.0).mark} == {""}
    assert [Scale((0.0, 0.0, 3.0)).cell(value).tone for value in (0.0, 3.0)] == [0, 0]


def test_each_node_has_one_map_of_metrics_and_gpus_and_those_that_stand_out_come_first(many):
    nodes, note = heat_map(many)
    assert len(nodes) == MOST_NODES
    first = nodes[0]
    assert first.title == "node 0: node-01.example"  # it has the slow GPU
    assert first.columns == tuple(f"GPU {slot}" for slot in range(8))
    assert {line.name for line in first.rows[:2]} == {"made0.case0.rate", "made0.case5.rate"}  # a miss comes first
    assert by_place(first)["made0.case0.rate", "GPU 5"].mark == "✗"
    assert first.rows[0].note.startswith("test_case[")
    assert re.fullmatch(
        r"6 of 70 nodes are left out, whose figures are within \d[\d.]* % of the medians, and none missed a limit\. "
        r"All are in figures\.csv\.",
        note,
    )


def test_metrics_that_are_left_out_are_counted(many):
    """One of each validation has figures of its own on each rank."""
    one, *_ = (row for row in many.rows if row.outcome is Outcome.PASSED)
    rows = tuple(one.model_copy(update={"nodeid": f"acceptance/test_made.py::test_{number}"}) for number in range(7))
    nodes, note = heat_map(samples.with_rows(samples.accepted(), *rows))
    assert [len(node.rows) for node in nodes] == [MOST_METRICS]
    assert note == f"{4 * 7 - MOST_METRICS} of 28 metrics are left out, whose GPUs are nearer to each other. All are in figures.csv."


def test_pairs_are_shown_from_whom_to_whom_and_a_label_that_is_no_rank_makes_none():
    def figures_of(rank):
        return [
            sample_rows.figure(f"p2p.both.to_rank_{other}", 390.0 + rank - 40 * (rank == other - 1 == 2), "GB/s", to_rank=other)
            for other in range(4)
            if other != rank
        ]

    row = sample_rows.row("acceptance/test_p2p.py::test_bandwidth", figures_of, [], ranks=4)
    record = samples.with_rows(samples.accepted(), row)
    (grid,) = matrices(record)
    cells = by_place(grid)
    assert (grid.title, grid.corner) == ("p2p.both, GB/s; median 391", "from / to")
    assert grid.columns == tuple(line.name for line in grid.rows) == ("rank 0", "rank 1", "rank 2", "rank 3")
    assert cells["rank 1", "rank 1"] is None
    assert (cells["rank 2", "rank 3"].text, cells["rank 2", "rank 3"].mark) == ("352", "▼")
    row = sample_rows.row(
        "acceptance/test_p2p.py::test_x", lambda rank: [sample_rows.figure("p2p.x", 1.0, "GB/s", to_rank="abc")], [], ranks=2
    )
    assert matrices(samples.with_rows(samples.accepted(), row)) == ()


def test_the_smallest_margins_come_first(many):
    (table,) = re.findall("<caption>Smallest margins of what held</caption>(.*?)</table>", build_page(many), re.DOTALL)
    margins = [float(margin) for margin in re.findall(r'<span class="num">\+([\d.]+) %', table)]
    assert margins == sorted(margins)
    held = [one.margin for one in many.conclusion.limits if one.status is Status.HELD]
    assert (len(margins), margins[0]) == (8, round(100 * min(held), 1))


def test_of_many_ranks_the_notable_ones_have_a_line(many):
    row = next(row for row in many.rows if row.outcome is Outcome.FAILED)
    (attempt,) = row.attempts
    kept = notable(attempt, row.judgements)
    assert len(kept) == MOST_RANKS
    assert {5, 17} <= {one.rank for one in kept}
    assert [one.rank for one in kept] == sorted(one.rank for one in kept)
    assert note_on(attempt).startswith("64 of 560 ranks: ")
    few = samples.accepted().rows[0]
    assert (notable(few.attempts[0], few.judgements), note_on(few.attempts[0])) == (few.attempts[0].ranks, "")


@pytest.mark.slow
def test_the_page_of_many_ranks_says_what_it_leaves_out(many):
    page = build_page(many)
    (section,) = [one for one in parse(page).all("section") if one.attributes["id"] == "side-by-side"]
    assert "6 of 70 nodes are left out" in section.text
    assert "missed its limit" in section.text
    assert page.count("All are in results.json and figures.csv.") == len(many.rows)
    assert len(page) < 2_000_000  # 24 MB of 1,024 ranks and 60 validations would be 1.3 here, of rows that are left out now
