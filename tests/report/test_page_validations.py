"""The page shows each validation with its figures, margins, ranks and the telemetry of its GPUs."""

import pytest

from gpu_acceptance.record.gpu_telemetry import GpuTelemetry, Level
from gpu_acceptance.report.build import build_page
from gpu_acceptance.report.validations import judgement_lines, name_ranks
from gpu_acceptance.report.words import figure_text
from tests.report import sample_rows, samples
from tests.report.pages import parse
from tests.report.sample_pages import PAGES, page_with, section, section_of


def cells_of(page):
    return [one.text.strip() for one in parse(page).all("td")]


def test_curves_are_drawn_and_described():
    """Three of eight ranks, with their values, also in words for a screen reader."""
    page = parse(PAGES["trained"])
    charts = [one for one in page.all("svg") if one.attributes.get("role") == "img" and "step" in one.attributes["aria-label"]]
    assert [one.attributes["aria-label"].split(". ")[0] for one in charts] == [
        "lora_convergence.loss in nats over 40 steps",
        "lora_convergence.step_s in s over 301 steps",
        "lora_convergence.alone.step_s in s over 40 steps",
        "320 steps on ranks 0-7 by how long they took: shortest 1 s, median 1.04 s, longest 1.082 s.",
    ]
    assert charts[0].attributes["aria-label"].split(". ")[1:] == [
        "rank 0: from 13.39 to 1.392, lowest 1.392, highest 13.39",
        "sound run (profile): from 13.4 to 1.402, lowest 1.402, highest 13.4",
        "least there is: from 1.386 to 1.386, lowest 1.386, highest 1.386.",
    ]
    told = section("trained", "validations")
    assert "rank 0 (lowest mean of 8 ranks)" in told
    assert "rank 3 (highest mean of 8 ranks)" in told  # one of its points is no number: it is the last
    assert "Each point is the mean of its neighbours: 240 of 301 steps." in told
    assert "The table has 24 of 40 points; results.json has all." in told
    assert "Drawn are 3 of 8 ranks." in told
    assert " 39 1.392 1.402 1.3863 " in told


def test_a_narrow_miss_is_not_rounded_into_its_bound():
    row = sample_rows.hbm_row(worst=4149.9999996)
    text = section_of(build_page(samples.rejected().model_copy(update={"rows": (row,)})), "validations")
    assert "hbm.triad.bandwidth ✗ MISSED 4149.9999996 GB/s >= 4150" in text


def test_every_validation_shows_margin_spread_worst_and_figures_by_rank():
    text = section("accepted", "validations")
    assert "gemm.bf16.tflops ✓ held 731.4 TFLOP/s >= 690 +6.0 % 0.31 % rank 3 (node-01.example, GPU 3, serial 1653924100004)" in text
    worst = "rank 5 (node-01.example, GPU 5, serial 1653924100006)"
    assert f"hbm.triad.bandwidth ✓ held 4312 GB/s >= 4150 +3.9 % 0.12 % {worst} median 4332 (rank 2)" in text
    assert "nccl.all_reduce.busbw_ring ✓ held 365.4 GB/s >= 347 +5.3 % 0.22 % rank 0 (node-01.example, GPU 0," in text
    assert "nccl.all_reduce.algbw (GB/s)" in text
    assert "5 node-01.example, GPU 5, serial 1653924100006 ✓ passed 12.5 s 4312 (spread 0.12 %)" in text


def test_a_figure_without_a_value_has_its_anomaly():
    record = samples.accepted()
    row = sample_rows.row(
        "acceptance/test_hbm.py::test_a", lambda rank: [sample_rows.figure("a", None, "s", anomaly="nan")] if rank else [], ()
    )
    text = build_page(record.model_copy(update={"rows": (row,)}))
    assert "no value: nan" in text
    assert '<td class="num">none</td>' in text


@pytest.mark.parametrize(("value", "unit", "shown"), [("2.28.9", "text", "2.28.9"), (True, "bool", "True"), (132, "count", "132 count")])
def test_a_text_or_a_truth_has_no_unit(value, unit, shown):
    judgement = sample_rows.nccl_row().judgements[0].model_copy(update={"value": value, "unit": unit})
    assert (figure_text(judgement), figure_text(judgement, exactly=True)) == (shown, shown)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ([3.0, 1.0, 2.0], "median 2 (rank 2)"),
        ([4.0, 1.0, 3.0, 2.0], "median 2 (rank 3)"),
        ([1.0, 2.0], ""),
        ([1.0] * 8, ""),
        (["a", "b", True], ""),
    ],
)
def test_the_rank_in_the_middle_stands_beside_the_worst(values, told):
    row = sample_rows.row("acceptance/test_hbm.py::test_a", lambda rank: [sample_rows.figure("hbm.a", values[rank], "s")], (), len(values))
    (line,) = judgement_lines([sample_rows.held("hbm.a", 1.0, "s", ">= 1", 0.0)], row.attempts)
    assert line.median == told


def test_many_ranks_are_not_all_spelled_out():
    names = {rank: f"host {rank}" for rank in range(20)}
    assert name_ranks(tuple(range(1, 11)), names)[-2:] == ("rank 8 (host 8)", "and ranks 9-10")
    assert name_ranks(tuple(range(20)), names) == ("all of ranks 0-19",)
    assert name_ranks((99,), names) == ("rank 99 (unknown)",)


def test_telemetry_of_the_gpus_stands_beside_the_figures():
    columns = [one.text.strip() for one in parse(PAGES["accepted"]).all("th")]
    gpu_columns = ["GPU busy (%)", "SM clock (MHz)", "power (W)", "GPU (°C)", "memory (°C)", "clocks held down (s)"]
    assert columns[columns.index("GPU busy (%)") :][:6] == gpu_columns
    cells = cells_of(PAGES["accepted"])
    assert "1411 (1335 to 1980)" in cells
    assert "698.7 (120.5 to 701)" in cells
    assert cells.count("sw power cap: 11") == 5
    assert cells.count("never") == 1
    assert cells.count("no value: unreadable (Unknown Error)") == 6
    assert cells.count("no value: not supported") == 1
    assert cells.count("not sampled") == 6


def test_without_a_gpu_the_table_has_no_columns_for_one():
    page = page_with(samples.accepted(), rows=tuple(with_telemetry(row) for row in samples.accepted().rows))
    assert "GPU busy" not in page
    assert "shown, not judged" not in page


def seen(**changes):
    """100 s of one GPU, a tenth of it unknown."""
    levels = {"utilisation_percent": Level(mean=90.0, low=0.0, high=100.0, held_s=90.0)}
    told = GpuTelemetry(
        length_s=100.0, seen_s=100.0, num_samples=2000, longest_gap_s=0.06, levels=levels, throttled_s={}, reasons_held_s=90.0, missing={}
    )
    return told.model_copy(update=changes)


def with_telemetry(row, *told):
    """The row with telemetry of the first ranks in its first attempt, and of no other."""
    return sample_rows.with_ranks(row, {rank: {"telemetry": told[rank] if rank < len(told) else None} for rank in range(8)})


def test_how_busy_the_gpus_were_in_all_validations():
    """Unknown time counts as idle; GPUs without a utilisation are not counted, and formations neither."""
    less = seen(levels={"utilisation_percent": Level(mean=100.0, low=100.0, high=100.0, held_s=10.0)})
    row = samples.accepted().rows[0]
    formation = row.model_copy(update={"subject": "world_formation"})
    rows = (with_telemetry(formation, less), with_telemetry(row, seen(), less), with_telemetry(row, seen(), seen(levels={})))
    record = samples.accepted().model_copy(update={"rows": rows})
    told = next(one.text for one in parse(build_page(record)).all("dd") if "of validations" in one.text)
    assert told.strip() == "46 % of 200 s of validations, mean of 2 GPUs; least on rank 1: 10 %"
    assert "GPUs busy" not in build_page(record.model_copy(update={"rows": rows[:1]}))


def test_telemetry_that_covers_a_part_of_the_time_says_so():
    level = Level(mean=100.0, low=100.0, high=100.0, held_s=10.0)
    (row, *others) = samples.accepted().rows
    rows = (with_telemetry(row, seen(levels={"utilisation_percent": level}, reasons_held_s=10.0)), *others)
    cells = cells_of(page_with(samples.accepted(), rows=rows))
    assert "100 (100 to 100), known for 10.0 of 100.0 s" in cells
    assert "never, known for 10.0 of 100.0 s" in cells
