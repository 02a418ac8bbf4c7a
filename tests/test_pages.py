"""The pages that are made from code are what the code says now, and count what was judged as they say."""

import re
from collections import Counter
from pathlib import Path

import pytest

from gpu_acceptance.thresholds.limit import Limit
from tools import support
from tools.make_pages import PAGES, README, ROOT, commands_page, options_page, readme, with_block
from tools.suite_pages import validations_page

pytestmark = pytest.mark.repository

ONE, TWO = Path("one"), Path("two")


def test_pages_are_what_the_code_says():
    pages = {ROOT / path: make for path, make in PAGES.items()} | {README: readme}
    assert [path for path, make in pages.items() if path.read_text(encoding="utf-8") != make()] == [], "run `make docs`"


def test_the_readme_is_short():
    text = README.read_text(encoding="utf-8")
    assert text.count("\n") <= 120
    assert len(text.split()) <= 900
    table = re.compile(r"^[|]")
    assert [line for line in text.split("\n") if len(line) > 100 and not table.match(line) and "](" not in line] == []


def test_a_block_is_replaced_and_nothing_else():
    text = "before\n<!-- generated: support -->\nold\n<!-- end -->\nafter\n<!-- generated: other -->\nkept\n<!-- end -->\n"
    assert with_block(text, "support", "new\n") == text.replace("old", "new")
    with pytest.raises(ValueError, match=r"no block <!-- generated: none --> \.\.\. <!-- end -->"):
        with_block(text, "none", "new\n")


def test_an_option_and_a_command_have_their_form_and_their_details():
    form = "`--waive=METRIC-GLOB=reason`: accept without these limits; shown in the verdict. May be given several times."
    assert f"\n### --waive\n\n{form}\n\nExample: `--waive=" in options_page()
    page = commands_page()
    assert "\n## report merge\n" in page
    assert "\n```text\ngpu-acceptance report merge OUT DIR...\n```\n" in page
    assert "\n```text\ngpu-acceptance report sign --key=FILE DIR\n```\n" in page
    assert "\n| `--count=N` | number of tables to show (default: no end) |\n" in page
    assert "\n## report\n" not in page
    assert "\n```text\ngpu-acceptance run [--ranks=N] [OPTION...]\n```\n" in page  # options of the suite have their own page


def test_a_subject_stands_where_it_runs():
    always, asked = validations_page().split("## On request")
    assert "| [`parity`](limits.md#parity) | training | Training on one GPU, with DDP and with FSDP gives" in always
    assert " in fp32 and bf16. | `soak` | `full` |\n" in always
    assert "[`localise`](limits.md#localise)" in asked
    rows = [line for line in (always + asked.split("## Rows of the suite")[0]).splitlines() if line.startswith("| [")]
    subjects = {path.stem.removeprefix("test_") for path in (ROOT / "acceptance").glob("test_*.py")}
    assert sorted(line.split("`")[1] for line in rows) == sorted(subjects)


def limit(metric, source, **more):
    return Limit(metric, "GB/s", "rank", f"{source}: x", "made.yaml", at_least=1.0, **more)


def run(folder, verdict, *judged, level="full"):
    return support.Run(folder, "NVIDIA H200", (1, 2), verdict, level, frozenset(judged))


LIMITS = [limit("hbm.copy", "measured"), limit("hbm.read", "datasheet"), limit("nccl.busbw", "derived", min_ranks=2)]


def test_only_limits_of_this_size_count():
    alone, pair = (support._cell((1, size), LIMITS, [run(ONE, "ACCEPTED", "hbm.copy", "nccl.busbw", "gone.since")]) for size in (1, 2))
    assert (alone.num_limits, alone.num_judged) == (2, 1)
    assert (pair.num_limits, pair.num_judged) == (3, 2)
    assert pair.sources == Counter(measured=1, published=1, derived=1)


def test_what_several_runs_judged_counts_once_and_the_accepted_one_is_shown():
    runs = [run(ONE, "REJECTED", "hbm.copy", "hbm.read"), run(TWO, "ACCEPTED", "hbm.copy", level="quick")]
    cell = support._cell((1, 2), LIMITS, runs)
    assert cell.num_judged == 2
    assert cell.run.folder == TWO
    assert cell.run.title == "ACCEPTED (quick)"


def test_sizes_share_a_row_where_nothing_was_run():
    cells = [support._cell((1, size), LIMITS, [run(ONE, "REJECTED")] if size == 4 else []) for size in (1, 2, 4, 8)]
    assert [[cell.shape for cell in alike] for alike in support._alike(cells)] == [[(1, 1)], [(1, 2), (1, 8)], [(1, 4)]]


def test_a_committed_run_is_in_the_matrix_as_what_it_was():
    found = support._run(ROOT / "reports" / "evidence" / "h200x2-two-nodes" / "full")
    assert (found.device_name, found.shape, found.title) == ("NVIDIA H200", (2, 1), "ACCEPTED")
    assert found.page == ROOT / "reports" / "evidence" / "h200x2-two-nodes" / "README.md"
    assert found.judged >= {"hbm.copy.bandwidth", "hbm.triad.bandwidth"}
