"""Collectives by message size and scaling by ranks: the worst is drawn, a limit stands at its place, and a table has the values."""

import pytest

from gpu_acceptance.record.row import Attempt
from gpu_acceptance.report.build import build_page
from gpu_acceptance.report.charts import PANEL
from gpu_acceptance.report.sizes import collectives, scaling, size_text
from tests.report import sample_rows, samples
from tests.report.pages import described, labels, line, parse, ticks
from tests.report.sample_rows import sizes_row


def run(*rows, **parameters):
    record = samples.with_rows(samples.accepted(), *rows)
    record.plan.profile.parameters.update(parameters)
    return record


def places(panel):
    return [word for _, word in ticks(panel.svg, "across")]


@pytest.mark.parametrize(
    ("num_bytes", "text"), [(8, "8 B"), (2**15, "32 KiB"), (2**27, "128 MiB"), (2**33, "8 GiB"), (2**20 + 1, "1048577 B")]
)
def test_a_size_is_written_in_the_largest_unit_that_is_exact(num_bytes, text):
    assert size_text(num_bytes) == text


def test_short_messages_have_a_time_and_long_ones_a_rate_against_the_limit_of_their_size():
    (found,) = collectives(run(sizes_row()))
    time, rate = found.panels
    assert (found.name, time.title, rate.title) == ("all_reduce", "Time in us", "Bus bandwidth in GB/s")
    assert places(time) == ["8 B", "32 KiB"]
    assert places(rate) == ["2 MiB", "128 MiB", "8 GiB"]
    assert labels(time) == ["nccl_sizes"]
    drawn = line(rate)
    assert drawn == sorted(drawn)
    assert [y for _, y in drawn] == sorted((y for _, y in drawn), reverse=True)  # up is nearer to the top
    assert all(PANEL.left < x < PANEL.width and 0 < y < PANEL.floor for x, y in drawn)
    ((x, y),) = line(rate, "limit")
    assert x + 16 == pytest.approx(drawn[-1][0])
    assert y > drawn[-1][1]  # 326 lies below 346
    assert described(rate.svg) == "Bus bandwidth in GB/s. nccl_sizes: 45.22 at 2 MiB, 285.1 at 128 MiB, 346 at 8 GiB."


REFERENCE = "all_reduce 8 64m 318.8 4g 365.4 all_reduce 4 4g 362.8 all_gather 8 4g 354.7"


@pytest.mark.parametrize(
    ("parameter", "reference", "number", "told"),
    [
        ("nccl_sizes.reference", REFERENCE, 1, [("64 MiB", "318.8 GB/s"), ("4 GiB", "365.4 GB/s")]),
        ("nccl.latency_reference", "all_reduce 8 8b 7.75 32k 10.36 all_reduce 4 8b 1", 0, [("8 B", "7.75 us"), ("32 KiB", "10.36 us")]),
    ],
)
def test_the_rates_and_times_of_a_sound_node_of_as_many_gpus_are_drawn_beside_them(parameter, reference, number, told):
    (found,) = collectives(run(sizes_row(), **{parameter: reference}))
    panel, other = found.panels[number], found.panels[1 - number]
    assert labels(other) == (["nccl_sizes"] if other is found.panels[0] else ["nccl_sizes", "limit, where it is judged"])
    assert labels(panel)[:2] == ["nccl_sizes", "sound run (profile)"]
    assert len(line(panel, "reference")) == 2
    at = ", ".join(f"{figure.split()[0]} at {size}" for size, figure in told)
    assert described(panel.svg).endswith(f"sound run (profile): {at}.")
    assert [(size, figure) for size, metric, figure, _ in found.rows if metric == "sound run (profile)"] == told


@pytest.mark.parametrize("reference", ["none", "all_reduce 4 4g 362.8", "all_reduce 8", 7])
def test_without_rates_of_as_many_gpus_nothing_is_drawn_beside_them(reference):
    (found,) = collectives(run(sizes_row(), **{"nccl_sizes.reference": reference}))
    assert [label for panel in found.panels for label in labels(panel)] == ["nccl_sizes", "nccl_sizes", "limit, where it is judged"]


def test_on_several_nodes_there_is_no_such_rate():
    record = samples.two_nodes().model_copy(update={"rows": (sizes_row(ranks=16),)})
    record.plan.profile.parameters.update({"nccl_sizes.reference": REFERENCE})
    (found,) = collectives(record)
    assert "sound run (profile)" not in [label for panel in found.panels for label in labels(panel)]


def test_the_table_has_each_figure_and_what_is_needed():
    (found,) = collectives(run(sizes_row()))
    assert [(size, figure, need) for size, _, figure, need in found.rows] == [
        ("8 B", "54.54 us", "–"),
        ("32 KiB", "63.32 us", "–"),
        ("2 MiB", "45.22 GB/s", "–"),
        ("128 MiB", "285.1 GB/s", "–"),
        ("8 GiB", "346 GB/s", ">= 326"),
    ]
    page = parse(build_page(run(sizes_row())))
    cells = {element.text.strip() for element in page.all("td")}
    assert {row[2] for row in found.rows} <= cells


def test_drawn_is_the_worst_of_all_ranks_and_attempts():
    """A time is worse when longer, a rate when lower."""
    first = sizes_row(value_of=lambda metric, rank, value: value + rank)
    later = sizes_row(value_of=lambda metric, rank, value: value - 3)
    both = first.model_copy(update={"attempts": (*first.attempts, Attempt(number=2, ranks=later.attempts[0].ranks))})
    figures = {row[1]: row[2] for row in collectives(run(both))[0].rows}
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
    assert [labels(panel) for panel in found.panels] == [
        ["nccl_sizes", "nccl, called one by one", "nccl, called in a CUDA graph"],
        ["nccl_sizes", "nccl", "limit, where it is judged"],
    ]
    assert places(found.panels[1]) == ["2 MiB", "128 MiB", "", "8 GiB"]  # no room for 4 GiB beside 8
    assert not any("native" in row[1] or "wrong" in row[1] for row in found.rows)


def test_a_picture_of_many_ranks_is_as_small_as_one_of_two():
    assert collectives(run(sizes_row(ranks=64))) == collectives(run(sizes_row(ranks=2)))


def test_what_is_no_value_is_the_worst_and_is_not_drawn():
    (found,) = collectives(run(sizes_row(value_of=lambda metric, rank, value: None if rank and metric.endswith("_2m") else value)))
    assert [row[2] for row in found.rows if row[0] == "2 MiB"] == ["no value"]
    assert places(found.panels[1]) == ["128 MiB", "8 GiB"]


@pytest.mark.parametrize("value", [-1.0, 1.7e308, True, "fast"])
def test_what_has_no_place_is_told_and_not_drawn(value):
    sized = {"nccl_sizes.all_reduce.busbw_2m": (value, "GB/s", 2**21), "nccl_sizes.all_reduce.busbw_128m": (0.0, "GB/s", 2**27)}
    (found,) = collectives(run(sizes_row(sized, ())))
    assert places(found.panels[0]) == ["128 MiB"]
    assert len(found.rows) == 2


def test_of_a_size_that_nobody_told_nothing_is_drawn():
    record = run(sizes_row({"nccl_sizes.all_reduce.busbw": (346.0, "GB/s")}))
    assert collectives(record) == ()
    assert 'id="sizes"' not in build_page(record)


def test_the_page_names_the_section_and_describes_each_panel():
    page = parse(build_page(run(sizes_row())))
    told = [one.attributes["aria-label"] for one in page.all("svg") if one.attributes.get("role") == "img"]
    assert [text for text in told if text.startswith(("Time in us.", "Bus bandwidth"))] == [
        described(panel.svg) for panel in collectives(run(sizes_row()))[0].panels
    ]
    assert "#sizes" in {one.attributes.get("href") for one in page.all("a")}


# --- scaling --------------------------------------------------------------------------------------------------------------------


def scaled(rank):
    told = {"busbw_node": 350.0 - rank // 8, "busbw_all": 340.5, "efficiency": 340.5 / (350.0 - rank // 8)}
    return [
        sample_rows.figure(
            f"nccl_scaling.all_reduce.{name}",
            value,
            "GB/s" if "busbw" in name else "relative",
            of="all_reduce",
            ranks=8 if name == "busbw_node" else 16,
            quantity=name.partition("_")[0],
        )
        for name, value in told.items()
    ]


def scaling_of(*rows):
    return scaling(samples.with_rows(samples.two_nodes(), *rows))


def efficiency(value):
    labels = {"of": "gpt2", "ranks": 16, "quantity": "efficiency"}
    figures = [sample_rows.figure("ddp_scaling.gpt2.efficiency_all", value, "relative", **labels)]
    return sample_rows.row("acceptance/test_ddp_scaling.py::test_efficiency", lambda rank: figures, (), 16)


BOTH = (sample_rows.scaling_row(16), sample_rows.row("acceptance/test_nccl_scaling.py::test_efficiency", scaled, (), 16))


def test_groups_stand_by_their_number_of_ranks():
    trained, moved = scaling_of(*BOTH).panels
    assert (places(trained), places(moved)) == (["2", "4", "8", "16"], ["8", "16"])
    assert (labels(trained), labels(moved)) == (["gpt2", "limit, where it is judged"], ["all_reduce"])


def test_the_worst_group_is_drawn_with_a_band_to_the_best_and_the_limit():
    found = scaling_of(*BOTH)
    trained, moved = found.panels
    assert described(trained.svg) == (
        "Training: the part of the rate that communication leaves. gpt2: 0.983 at 2, 0.977 at 4, 0.97 at 8, 0.95 at 16."
    )
    assert line(trained, "band first")
    assert line(trained, "limit")
    assert not line(moved, "limit")
    assert {
        ("2", "ddp_scaling.gpt2.efficiency_2", "0.983 relative", "0.99 relative", "–"),
        ("16", "ddp_scaling.gpt2.efficiency_all", "0.95 relative", "0.95 relative", ">= 0.9"),
        ("16", "nccl_scaling.all_reduce.efficiency", "0.9729 relative", "0.9756 relative", "–"),
    } <= set(found.rows)
    record = samples.with_rows(samples.two_nodes(), *BOTH)
    cells = {one.text.strip() for one in parse(build_page(record)).all("td")}
    assert {text for row in found.rows for text in row[2:4]} <= cells


def test_a_line_has_no_band_where_all_groups_are_alike():
    assert line(scaling_of(efficiency(0.95)).panels[0], "band first") == []


@pytest.mark.parametrize("value", [None, "text", -0.5])
def test_without_a_value_that_has_a_place_there_is_no_section(value):
    assert scaling_of(efficiency(value)) is None
    assert scaling(samples.accepted()) is None
    assert 'id="scaling"' not in build_page(samples.accepted())
