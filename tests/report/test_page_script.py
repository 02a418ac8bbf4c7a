"""The page in a real browser: find, sort and unfold, also by keyboard, and print."""

import pytest

from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.report.build import build_page
from tests.report import sample_rows, samples
from tests.report.large import large

SHOWN = """[...document.querySelectorAll(".validations tr.head")].filter(one => one.checkVisibility())
  .map(one => one.querySelector("code").innerText)"""
TOLD = "document.querySelector('.finder [role=status]').innerText"
FOCUS = "document.querySelector('.finder input').focus()"
UNFOLD = "document.querySelectorAll('#validations .subject').forEach(one => (one.open = true))"
FOCUSED = "document.activeElement.innerText"
GEMM, HBM, NCCL = "test_gemm[bf16]", "test_hbm_triad", "test_nccl_large[all_reduce]"


@pytest.fixture
def tab(browser):
    """Three validations, two of them FAILED."""
    tab = browser.open(build_page(samples.rejected()))
    tab.ask(UNFOLD)
    yield tab
    assert tab.complaints == []


def find(tab, words):
    tab.ask(FOCUS)
    tab.type(words)


def press_button(tab, words):
    """By keyboard: Tab until it has the focus, then the space bar."""
    for _ in range(60):
        if words in (tab.ask(FOCUSED) or "")[:40]:
            return tab.press(" ")
        tab.press("Tab")
    raise AssertionError(f"no {words!r} among what Tab reaches")


def test_without_javascript_all_is_there_and_no_control_without_use(browser):
    tab = browser.open(build_page(samples.incomplete()), script=False)
    assert tab.ask("document.querySelectorAll('button, input, [aria-sort]').length") == 0
    tab.ask(UNFOLD)
    names = [row.nodeid.split("::")[-1] for row in samples.incomplete().rows]
    assert sorted(tab.ask(SHOWN)) == sorted(names)  # grouped by subject


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("hbm", [HBM]),  # a validation
        ("NCCL.all_reduce.busbw", [NCCL]),  # a metric, in any case
        ("node-01 serial 1653924100006", [GEMM, HBM, NCCL]),  # a GPU: folded, its figures by rank
        ("1653924100006 tflops", [GEMM]),  # all of the words
        ("test_hbm.triad", []),  # text, no pattern
        ("no such thing", []),
    ],
)
def test_words_find_validations(tab, words, shown):
    find(tab, words)
    assert tab.ask(SHOWN) == shown
    assert tab.ask(TOLD) == f"{len(shown)} of 3 validations shown"


def test_what_is_found_is_unfolded_and_folded_again_when_nothing_is_looked_for(browser):
    tab = browser.open(build_page(samples.rejected()))
    opened = """[...document.querySelectorAll('#validations .subject')].filter(one => one.open)
      .map(one => one.querySelector('.subject-name').innerText)"""
    was = tab.ask(opened)
    assert "gemm" not in was  # all of it held
    find(tab, "tflops")
    assert tab.ask(SHOWN) == [GEMM]
    tab.press("Escape")
    assert tab.ask(opened) == was
    assert tab.complaints == []


def test_a_subject_of_which_nothing_is_shown_goes_with_its_heading_and_escape_shows_all_again(tab):
    find(tab, "hbm")
    names = "[...document.querySelectorAll('#validations .subject-name')].filter(one => one.checkVisibility()).map(one => one.innerText)"
    assert tab.ask(names) == ["hbm"]
    press_button(tab, "FAILED")
    assert tab.ask(SHOWN) == [HBM]
    tab.press("Escape")
    assert tab.ask(SHOWN) == [GEMM, HBM, NCCL]
    assert tab.ask("document.querySelectorAll('.finder [aria-pressed=true]').length") == 0
    assert tab.ask("document.querySelector('.finder input').value") == ""


def test_states_are_counted_and_any_of_those_pressed_is_shown(browser):
    tab = browser.open(build_page(samples.incomplete()))
    chips = tab.ask("[...document.querySelectorAll('.finder button')].map(one => one.innerText)")
    outcomes = [row.outcome for row in samples.incomplete().rows]
    assert "! ERROR 2" in chips
    assert f"✓ passed {outcomes.count(Outcome.PASSED)}" in chips
    assert chips[-1].startswith("✓")  # what is wrong stands first
    assert not any("held" in chip for chip in chips)
    tab.ask(FOCUS)
    press_button(tab, "ERROR")
    assert tab.ask(TOLD) == "2 of 7 validations shown"
    press_button(tab, "NOT RUN")
    assert tab.ask(SHOWN) == ["test_nccl_large[broadcast]", "test_ddp_throughput", "test_p2p_matrix"]
    assert tab.ask("document.querySelectorAll('.finder [aria-pressed=true]').length") == 2


def test_a_link_to_what_is_not_shown_shows_it(tab):
    find(tab, "gemm")
    assert tab.ask(SHOWN) == [GEMM]
    tab.ask("document.querySelector('#wrong a[href^=\"#v\"]').click()")
    assert tab.ask(SHOWN) == [GEMM, HBM, NCCL]


def test_large_tables_of_machines_are_searched_by_themselves(browser):
    tab = browser.open(build_page(large(3, 2)))
    finder = ".finder[aria-label='24 GPUs, as NVML names them']"
    tab.ask(f"document.querySelector('#machines details').open = true; document.querySelector(\"{finder} input\").focus()")
    tab.type("node-03")
    assert tab.ask(f'document.querySelector("{finder} [role=status]").innerText') == "8 of 24 rows shown"
    assert tab.ask("document.querySelectorAll('#environment tr.filtered').length") == 0


def test_many_nodes_side_by_side_are_searched(browser):
    tab = browser.open(build_page(large(17, 2)))
    finder = ".finder[aria-label='GPUs side by side']"
    tab.ask(f'document.querySelector("{finder} input").focus()')
    tab.type("node-04")
    assert tab.ask(f'document.querySelector("{finder} [role=status]").innerText') == "1 of 17 nodes shown"
    shown = "[...document.querySelectorAll('#side-by-side .node')].filter(one => one.checkVisibility())"
    assert tab.ask(f"{shown}.map(one => [one.open, one.querySelector('summary').innerText])") == [[True, "node 3: node-04.example"]]
    assert tab.complaints == []


COLUMN = """(table => {
  const at = [...table.tHead.rows[0].cells].findIndex(one => one.innerText.startsWith(%r));
  return [...table.tBodies[0].rows].map(one => one.cells[at].innerText.trim());
})(document.querySelector(%r))"""


def sort_by(tab, table, head, key="Enter"):
    tab.ask(f"[...document.querySelectorAll({table + ' th button'!r})].find(one => one.innerText.startsWith({head!r})).focus()")
    tab.press(key)
    order = f"[...document.querySelectorAll({table + ' th'!r})].map(one => one.getAttribute('aria-sort')).filter(Boolean)"
    return tab.ask(COLUMN % (head, table)), tab.ask(order)


def took(*seconds_by_rank):
    """A run of one validation that took so long on each rank."""
    durations = {rank: {"duration_s": took_s} for rank, took_s in enumerate(seconds_by_rank)}
    return samples.with_rows(samples.accepted(), sample_rows.with_ranks(sample_rows.gemm_row(), durations))


def test_a_column_goes_up_down_and_back_by_keyboard_and_a_duration_counts_by_its_seconds(browser):
    tab = browser.open(build_page(took(12.0, 200.0, 9.5, 7300.0, 12.0, 61.0, 9.5, 12.0)))
    tab.ask("document.querySelectorAll('#validations details').forEach(one => (one.open = true))")
    was = ["12.0 s", "3 min 20 s", "9.5 s", "2 h 1 min", "12.0 s", "1 min 1 s", "9.5 s", "12.0 s"]
    up = ["9.5 s", "9.5 s", "12.0 s", "12.0 s", "12.0 s", "1 min 1 s", "3 min 20 s", "2 h 1 min"]
    table = "#v0 details table"
    assert sort_by(tab, table, "Took") == (up, ["ascending"])
    assert tab.ask(COLUMN % ("Rank", table)) == ["2", "6", "0", "4", "7", "5", "1", "3"]  # equal ones stay as they were
    assert sort_by(tab, table, "Took", key=" ") == (up[::-1], ["descending"])
    assert sort_by(tab, table, "Took") == (was, [])
    assert sort_by(tab, table, "Rank") == ([str(rank) for rank in range(8)], ["ascending"])
    assert tab.complaints == []


NUMBERS = """
<h2 id="t">T</h2><table id="tried"><thead><tr><th>Figure</th><th>Same</th></tr></thead><tbody>
%s</tbody></table></main>"""


def test_numbers_are_ordered_as_numbers_and_what_is_none_comes_last(browser):
    cells = ["262.5 GB/s", ">= 31", "none", "-4 %", "1e+06", "550.54.15", "+4.9 %", "rank 10", "rank 2", "0.12 (spread 3 %)"]
    rows = "".join(f"<tr><td>{cell}</td><td>x</td></tr>" for cell in cells)
    tab = browser.open(build_page(samples.accepted()).replace("</main>", NUMBERS % rows))
    numbers, texts = ["-4 %", "0.12 (spread 3 %)", "+4.9 %", ">= 31", "262.5 GB/s", "1e+06"], ["550.54.15", "none", "rank 2", "rank 10"]
    assert sort_by(tab, "#tried", "Figure") == ([*numbers, *texts], ["ascending"])
    assert sort_by(tab, "#tried", "Figure") == ([*numbers[::-1], *texts[::-1]], ["descending"])
    assert tab.ask("document.querySelectorAll('#tried th button').length") == 1  # where all are equal there is nothing to order


def test_a_table_with_a_cell_that_spans_others_is_left_alone(browser):
    rows = "<tr><td>2</td><td>x</td></tr><tr><td colspan=2>1</td></tr>"
    tab = browser.open(build_page(samples.accepted()).replace("</main>", NUMBERS % rows))
    assert tab.ask("document.querySelectorAll('#tried th button').length") == 0
    assert tab.complaints == []


def test_the_limits_of_a_validation_stay_with_it(tab):
    """Between its name and what is folded under it."""
    inside = "[...document.querySelectorAll('.validations tbody[id]')].map(one => [...one.rows].map(row => row.className || 'limit'))"
    table = "#validations .wide:has(#v2) > table"
    before = tab.ask(inside)
    assert before[2] == ["head", "limit", "limit", "more"]
    limits = f"[...document.querySelectorAll({table + ' > tbody > tr:not(.head, .more) > th'!r})].map(one => one.innerText)"
    names = tab.ask(limits)
    for order in (sorted(names), sorted(names, reverse=True), names):
        sort_by(tab, table, "Metric")
        assert tab.ask(limits) == order
        assert tab.ask(inside) == before


def test_all_is_unfolded_and_folded(tab):
    folds = "[...document.querySelectorAll('details')].map(one => one.open)"
    assert not all(tab.ask(folds))
    press_button(tab, "Expand all")
    assert all(tab.ask(folds))
    press_button(tab, "Collapse all")
    assert not any(tab.ask(folds))


def test_printing_unfolds_what_belongs_on_paper_and_leaves_the_page_as_it_was(tab):
    opened = "[...document.querySelectorAll('details')].filter(one => one.open).length"
    was = tab.ask(opened)
    tab.ask("dispatchEvent(new Event('beforeprint'))")
    assert tab.ask("[...document.querySelectorAll('#wrong details, #machines details')].every(one => one.open)")
    assert tab.ask(opened) > was
    tab.ask("dispatchEvent(new Event('afterprint'))")
    assert tab.ask(opened) == was


def test_hostile_words_in_the_field_are_words(tab):
    elements = "document.querySelectorAll('*').length"
    before = tab.ask(elements)
    find(tab, "<img src=x onerror=alert(1)> .* [ \\ ' \"")
    assert tab.ask(TOLD) == "0 of 3 validations shown"
    assert tab.ask(elements) == before
