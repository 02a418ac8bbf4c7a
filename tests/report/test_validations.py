"""Each validation with its figures, margins, ranks and telemetry, and one line for each subject."""

import pytest

from gpu_acceptance.record.gpu_telemetry import GpuTelemetry, Level
from gpu_acceptance.record.outcome import Outcome, Status
from gpu_acceptance.report.build import build_page
from gpu_acceptance.report.validations import judgement_lines, name_ranks, scoreboard, shown_scores
from gpu_acceptance.report.words import by_margin, figure_text
from tests.report import sample_rows, samples
from tests.report.pages import parse
from tests.report.sample_pages import PAGES, page_with, section, section_of
from tests.verdict.judged_anew import judged_anew


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
    text = section_of(build_page(samples.with_rows(samples.rejected(), row)), "validations")
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
    text = build_page(samples.with_rows(record, row))
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
    record = samples.with_rows(samples.accepted(), *rows)
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


# --- subjects -------------------------------------------------------------------------------------------------------------------


def scores(record):
    return {one.subject: (one.mark.word, one.counts, one.margin, one.duration) for one in shown_scores(scoreboard(record).values())}


def of_limits(*limits, rows=()):
    """A run of which no subject is required."""
    return samples.concluded(samples.with_rows(judged_anew(samples.accepted(), profile={"requires": frozenset()}), *rows), limits=limits)


def test_what_did_not_hold_comes_first_and_each_subject_has_its_nearest_limit():
    found = scores(samples.rejected())
    assert list(found) == ["hbm", "nccl", "gemm"]
    assert found["gemm"] == ("held", "2 held", "+6.0 %", "13 s")
    assert found["hbm"] == ("MISSED", "1 missed", "-24.8 %", "13 s")
    assert found["nccl"][:3] == ("MISSED", "1 missed, 1 held", "-24.4 %")


def test_every_subject_of_a_run_is_there_once():
    found = scoreboard(samples.incomplete()).values()
    shown = shown_scores(found)
    told = [one.subject for one in shown]
    not_applicable = [one.subject for one in found if one.mark.tone == "quiet"]
    assert sorted([*told, *not_applicable]) == sorted({row.subject for row in samples.incomplete().rows} | {"memory"})
    assert scores(samples.incomplete())["memory"][:2] == ("NOT RUN", "not run")  # required, and no validation of it was there
    assert not_applicable == ["infiniband"]
    text = section("incomplete", "scoreboard")
    assert all(f"{one.subject}{one.mark.symbol} {one.counts}" in text.replace(f"{one.subject} ", one.subject) for one in shown)
    assert "Does not apply to this run: infiniband." in text


def test_a_subject_of_which_nothing_was_run_is_there():
    limits = (sample_rows.not_measured("p2p.unidirectional.out.bandwidth"), sample_rows.not_measured("p2p.latency.wrong"))
    assert scores(of_limits(*limits)) == {"p2p": ("NOT MEASURED", "2 unproved", "", "")}
    (score,) = shown_scores(scoreboard(of_limits(*limits)).values())
    assert score.anchor == ""  # there is nothing that a link could lead to


def test_what_no_limit_says_of_a_validation_is_said_by_how_it_ended():
    stuck = sample_rows.row("acceptance/test_hbm.py::test_copy", lambda rank: [], [], outcome=Outcome.STUCK)
    not_run = sample_rows.row("acceptance/test_nic.py::test_share", lambda rank: [], [], outcome=Outcome.NOT_RUN)
    held = sample_rows.held("hbm.copy.bandwidth", 4312.0, "GB/s", ">= 4150", 0.039)
    missed = sample_rows.held("gemm.bf16.rate", 1.0, "TFLOP/s", ">= 2", -0.5, status=Status.MISSED)
    failed = sample_rows.row("acceptance/test_gemm.py::test_one", lambda rank: [], [missed], outcome=Outcome.FAILED)
    crashed = sample_rows.row("acceptance/test_gemm.py::test_two", lambda rank: [], [missed], outcome=Outcome.ERROR)
    alone = scores(of_limits(held, missed, rows=(stuck, not_run, failed)))
    assert scores(of_limits(missed, rows=(failed, crashed)))["gemm"][1] == "1 in error, 1 missed"
    of_a_counter = missed.model_copy(update={"metric": "counters.xids"})
    slowed = failed.model_copy(update={"judgements": (of_a_counter,)})
    assert scores(of_limits(of_a_counter, rows=(slowed,)))["gemm"][1] == "1 failed"
    assert {subject: one[:2] for subject, one in alone.items()} == {
        "hbm": ("STUCK", "1 stuck, 1 held"),
        "gemm": ("MISSED", "1 missed"),  # that it failed follows from that
        "nic": ("NOT RUN", "1 not run"),
    }


def test_a_limit_that_is_met_exactly_is_not_near_and_what_was_not_judged_has_no_margin():
    exact = sample_rows.held("gpu_health.pcie.width", 16, "lanes", ">= 16", 0.0)
    near = sample_rows.held("gpu_health.clock", 1965.0, "MHz", ">= 1900", 0.034)
    unstable = sample_rows.held("gpu_health.power", 5.0, "W", ">= 10", -0.5, status=Status.UNSTABLE)
    assert by_margin((exact, near, unstable), Status.HELD, Status.MISSED) == [near]
    assert scores(of_limits(exact, near, unstable))["gpu_health"][1:3] == ("1 unproved, 2 held", "+3.4 %")


def test_of_open_limits_the_worst_gives_the_mark_and_a_margin_beyond_the_bound_is_no_number():
    unstable = sample_rows.held("hbm.x.rate", 5.0, "GB/s", ">= 4", 0.2, status=Status.UNSTABLE)
    invalid = unstable.model_copy(update={"metric": "hbm.y.rate", "status": Status.INVALID})
    assert scores(of_limits(unstable, invalid))["hbm"][0] == "INVALID"
    far = sample_rows.held("binding.cores", 300, "cores", ">= 3", 99.0)
    assert scores(of_limits(far))["binding"][2] == ">+100 %"
