"""Collectives by message size: what is drawn is the worst, a limit stands at its size, and the table has every digit of results.json."""

import re
from dataclasses import replace

import pytest

from gpu_acceptance.record.row import Attempt
from gpu_acceptance.report.build import build_page
from gpu_acceptance.report.charts import PANEL_HEIGHT, PANEL_WIDTH
from gpu_acceptance.report.sizes import collectives, size_text
from tests.report import samples
from tests.report.pages import parse
from tests.report.samples import sizes_row

POINT = re.compile(r"M(\d+\.\d) (\d+\.\d)h0")


def run(*rows, **parameters):
    record = samples.accepted().model_copy(update={"rows": rows})
    record.plan.profile.parameters.update(parameters)
    return record


def points(line):
    return [(float(x), float(y)) for x, y in POINT.findall(line.dots)]


@pytest.mark.parametrize(
    ("num_bytes", "text"), [(8, "8 B"), (2**15, "32 KiB"), (2**27, "128 MiB"), (2**33, "8 GiB"), (2**20 + 1, "1048577 B")]
)
def test_a_size_is_written_in_the_largest_unit_that_is_exact(num_bytes, text):
    assert size_text(num_bytes) == text


def test_short_messages_have_a_time_and_long_ones_a_rate_against_the_limit_of_their_size():
    (found,) = collectives(run(sizes_row()))
    time, rate = found.panels
    assert (found.name, time.title, rate.title) == ("all_reduce", "Time in us", "Bus bandwidth in GB/s")
    assert [word for _, word in time.across] == ["8 B", "32 KiB"]
    assert [word for _, word in rate.across] == ["2 MiB", "128 MiB", "8 GiB"]
    assert time.bounds == ""
    drawn = points(rate.lines[0])
    assert drawn == sorted(drawn)
    assert [y for _, y in drawn] == sorted((y for _, y in drawn), reverse=True)  # up is nearer to the top
    assert all(0 < x < PANEL_WIDTH and 0 < y < PANEL_HEIGHT for x, y in drawn)
    x, y = map(float, re.fullmatch(r"M(\S+) (\S+)h32", rate.bounds).groups())
    assert x + 16 == pytest.approx(drawn[-1][0])
    assert y > drawn[-1][1]  # 326 lies below 346
    assert rate.described == "Bus bandwidth in GB/s. nccl_sizes: 45.22 at 2 MiB, 285.1 at 128 MiB, 346 at 8 GiB."


REFERENCE = "all_reduce 8 64m 318.8 4g 365.4 all_reduce 4 4g 362.8 all_gather 8 4g 354.7"


def test_the_rates_of_a_sound_node_of_as_many_gpus_are_drawn_beside_them():
    (found,) = collectives(run(sizes_row(), **{"nccl_sizes.reference": REFERENCE}))
    time, rate = found.panels
    assert [line.label for line in time.lines] == ["nccl_sizes"]
    assert [(line.label, line.style) for line in rate.lines] == [("nccl_sizes", "first"), ("sound run (profile)", "reference")]
    assert len(points(rate.lines[1])) == 2
    assert rate.described.endswith("sound run (profile): 318.8 at 64 MiB, 365.4 at 4 GiB.")
    told = [(row.size, row.figure) for row in found.rows if row.metric == "sound run (profile)"]
    assert told == [("64 MiB", "318.8 GB/s"), ("4 GiB", "365.4 GB/s")]


def test_the_times_of_a_sound_node_are_drawn_beside_them_too():
    (found,) = collectives(run(sizes_row(), **{"nccl.latency_reference": "all_reduce 8 8b 7.75 32k 10.36 all_reduce 4 8b 1"}))
    time, rate = found.panels
    assert [(line.label, line.style) for line in time.lines] == [("nccl_sizes", "first"), ("sound run (profile)", "reference")]
    assert [line.label for line in rate.lines] == ["nccl_sizes"]
    assert time.described.endswith("sound run (profile): 7.75 at 8 B, 10.36 at 32 KiB.")
    told = [(row.size, row.figure) for row in found.rows if row.metric == "sound run (profile)"]
    assert told == [("8 B", "7.75 us"), ("32 KiB", "10.36 us")]


@pytest.mark.parametrize("reference", ["none", "all_reduce 4 4g 362.8", "all_reduce 8", 7])
def test_without_rates_of_as_many_gpus_nothing_is_drawn_beside_them(reference):
    (found,) = collectives(run(sizes_row(), **{"nccl_sizes.reference": reference}))
    assert [line.label for panel in found.panels for line in panel.lines] == ["nccl_sizes"] * 2


def test_on_several_nodes_there_is_no_such_rate():
    record = samples.two_nodes().model_copy(update={"rows": (sizes_row(ranks=16),)})
    record.plan.profile.parameters.update({"nccl_sizes.reference": REFERENCE})
    (found,) = collectives(record)
    assert "sound run (profile)" not in [line.label for panel in found.panels for line in panel.lines]


def test_the_table_has_each_figure_and_what_is_needed():
    (found,) = collectives(run(sizes_row()))
    assert [(row.size, row.figure, row.need) for row in found.rows] == [
        ("8 B", "54.54 us", "–"),
        ("32 KiB", "63.32 us", "–"),
        ("2 MiB", "45.22 GB/s", "–"),
        ("128 MiB", "285.1 GB/s", "–"),
        ("8 GiB", "346 GB/s", ">= 326"),
    ]
    page = parse(build_page(run(sizes_row())))
    cells = {element.text.strip() for element in page.all("td")}
    assert {row.figure for row in found.rows} <= cells


def test_drawn_is_the_worst_of_all_ranks_and_attempts():
    """A time is worse when longer, a rate when lower."""
    first = sizes_row(value_of=lambda metric, rank, value: value + rank)
    later = sizes_row(value_of=lambda metric, rank, value: value - 3)
    both = first.model_copy(update={"attempts": (*first.attempts, Attempt(number=2, ranks=later.attempts[0].ranks))})
    figures = {row.metric: row.figure for row in collectives(run(both))[0].rows}
    assert figures["nccl_sizes.all_reduce.time_8b"] == "61.54 us"
    assert figures["nccl_sizes.all_reduce.busbw"] == "343 GB/s"


def test_both_sizes_of_nccl_and_its_latencies_are_lines_of_their_own():
    sized = {
        "nccl.all_reduce.latency_8b_eager": (50.0, "us", 8, "one by one"),
        "nccl.all_reduce.latency_8b": (5.0, "us", 8, "in a CUDA graph"),
        "nccl.all_reduce.busbw_medium": (270.0, "GB/s", 2**27),
        "nccl.all_reduce.busbw": (340.0, "GB/s", 2**32),
        "nccl.all_reduce.busbw_native": (341.0, "GB/s"),  # of no size that we measured
        "nccl.all_reduce.wrong": (0, "elements"),
    }
    (found,) = collectives(run(sizes_row(sized, (), subject="nccl"), sizes_row()))
    assert [[line.label for line in panel.lines] for panel in found.panels] == [
        ["nccl_sizes", "nccl, called one by one", "nccl, called in a CUDA graph"],
        ["nccl_sizes", "nccl"],
    ]
    assert [word for _, word in found.panels[1].across] == ["2 MiB", "128 MiB", "", "8 GiB"]  # no room for 4 GiB beside 8
    assert not any("native" in row.metric or "wrong" in row.metric for row in found.rows)


def test_a_picture_of_many_ranks_is_as_small_as_one_of_two():
    assert collectives(run(sizes_row(ranks=64))) == collectives(run(sizes_row(ranks=2)))


def test_what_is_no_value_is_the_worst_and_is_not_drawn():
    (found,) = collectives(run(sizes_row(value_of=lambda metric, rank, value: None if rank and metric.endswith("_2m") else value)))
    assert [row.figure for row in found.rows if row.size == "2 MiB"] == ["no value"]
    assert [word for _, word in found.panels[1].across] == ["128 MiB", "8 GiB"]


@pytest.mark.parametrize("value", [-1.0, 1.7e308, True, "fast"])
def test_what_has_no_place_is_told_and_not_drawn(value):
    sized = {"nccl_sizes.all_reduce.busbw_2m": (value, "GB/s", 2**21), "nccl_sizes.all_reduce.busbw_128m": (0.0, "GB/s", 2**27)}
    (found,) = collectives(run(sizes_row(sized, ())))
    assert [word for _, word in found.panels[0].across] == ["128 MiB"]
    assert len(found.rows) == 2


def test_of_a_size_that_nobody_told_nothing_is_drawn():
    record = run(sizes_row({"nccl_sizes.all_reduce.busbw": (346.0, "GB/s")}))
    assert collectives(record) == ()
    assert 'id="sizes"' not in build_page(record)


def test_the_page_names_the_section_and_describes_each_panel():
    page = parse(build_page(run(sizes_row())))
    described = [one.attributes["aria-label"] for one in page.all("svg") if one.attributes.get("role") == "img"]
    assert [text for text in described if text.startswith(("Time in us.", "Bus bandwidth"))] == [
        panel.described for panel in collectives(run(sizes_row()))[0].panels
    ]
    assert "#sizes" in {one.attributes.get("href") for one in page.all("a")}


def test_what_a_unit_and_a_limit_say_is_text():
    row = sizes_row(ranks=2)
    nasty = '<script>alert(1)</script>"'
    figures = tuple(replace(one, unit=nasty) for one in row.attempts[0].ranks[0].figures)
    ranks = tuple(rank.model_copy(update={"figures": figures}) for rank in row.attempts[0].ranks)
    judgements = tuple(one.model_copy(update={"need": nasty, "asked": nasty}) for one in row.judgements)
    record = run(row.model_copy(update={"attempts": (Attempt(number=1, ranks=ranks),), "judgements": judgements}))
    page = parse(build_page(record))
    assert len(page.all("script")) == 1  # that of the page
    assert f"346 {nasty}" in {one.text.strip() for one in page.all("td")}
    assert [panel.bounds for panel in collectives(record)[0].panels] == [""]
