"""Scaling: groups by their number of ranks, the worst of those that ran at the same time, a band to the best, and the limit."""

import pytest

from gpu_acceptance.report.build import build_page
from gpu_acceptance.report.sizes import scaling
from tests.report import samples
from tests.report.pages import parse


def collective(rank):
    told = {"busbw_node": 350.0 - rank // 8, "busbw_all": 340.5, "efficiency": 340.5 / (350.0 - rank // 8)}
    return [
        samples.figure(
            f"nccl_scaling.all_reduce.{name}",
            value,
            "GB/s" if "busbw" in name else "relative",
            of="all_reduce",
            ranks=8 if name == "busbw_node" else 16,
            quantity=name.partition("_")[0],
        )
        for name, value in told.items()
    ]


def run(*rows):
    return samples.two_nodes().model_copy(update={"rows": rows})


def row(subject, figures, judgements=(), ranks=16):
    return samples.row(f"acceptance/test_{subject}.py::test_efficiency", figures, judgements, ranks)


def both():
    return run(samples.scaling_row(16), row("nccl_scaling", collective))


def test_groups_stand_by_their_number_of_ranks():
    trained, moved = scaling(both()).panels
    assert [word for _, word in trained.across] == ["2", "4", "8", "16"]
    assert [word for _, word in moved.across] == ["8", "16"]
    assert [line.label for line in (*trained.lines, *moved.lines)] == ["gpt2", "all_reduce"]


def test_drawn_is_the_worst_group_with_a_band_to_the_best_and_the_limit():
    trained, moved = scaling(both()).panels
    assert trained.described == (
        "Training: the part of the rate that communication leaves. gpt2: 0.983 at 2, 0.977 at 4, 0.97 at 8, 0.95 at 16."
    )
    assert trained.lines[0].band.endswith("Z")
    assert trained.bounds
    assert not moved.bounds
    rows = {(row.metric, row.num_ranks): (row.worst, row.best, row.need) for row in scaling(both()).rows}
    assert rows["ddp_scaling.gpt2.efficiency_2", 2] == ("0.983 relative", "0.99 relative", "–")
    assert rows["ddp_scaling.gpt2.efficiency_all", 16] == ("0.95 relative", "0.95 relative", ">= 0.9")
    assert rows["nccl_scaling.all_reduce.efficiency", 16] == ("0.9729 relative", "0.9756 relative", "–")


def test_a_line_without_a_band_where_all_are_alike():
    alike = row(
        "ddp_scaling",
        lambda rank: [samples.figure("ddp_scaling.gpt2.efficiency_all", 0.95, "relative", of="gpt2", ranks=16, quantity="efficiency")],
    )
    assert scaling(run(alike)).panels[0].lines[0].band == ""


@pytest.mark.parametrize("value", [None, "text", -0.5])
def test_what_has_no_place_is_not_drawn(value):
    assert (
        scaling(
            run(
                row(
                    "ddp_scaling",
                    lambda rank: [
                        samples.figure("ddp_scaling.gpt2.efficiency_2", value, "relative", of="gpt2", ranks=2, quantity="efficiency")
                    ],
                )
            )
        )
        is None
    )


def test_without_such_a_validation_there_is_no_section():
    assert scaling(samples.accepted()) is None
    assert 'id="scaling"' not in build_page(samples.accepted())


def test_the_page_has_every_digit():
    cells = {one.text.strip() for one in parse(build_page(both())).all("td")}
    assert {text for row in scaling(both()).rows for text in (row.worst, row.best)} <= cells
