"""What rose between two readings of a GPU's counters, and what cannot be said to have risen."""

import pytest

from gpu_acceptance.counters import risen
from gpu_acceptance.inventory.answer import Missing, Why
from gpu_acceptance.inventory.gpu_counters import NAMES, CountersReading, unread

ALL = frozenset({"counters.xids", *(f"counters.{name}" for name in NAMES)})
LINKS = range(3)


def reading(xids=(), **changes):
    """All at 5, but for `nvlink_replays_2=7` or `pcie_replays=6`."""
    values = {(name, link): 5 for name in NAMES for link in (LINKS if name.startswith("nvlink") else [None])}
    for change, value in changes.items():
        kind, name, *link = change.replace("__", "-").split("_")
        values[f"{kind}.{name.replace('-', '_')}", int(link[0]) if link else None] = value
    return CountersReading(values, xids)


def figures(before, after, limited=ALL):
    return {figure.metric: figure for figure in risen(before, after, limited)}


def test_what_has_a_limit_has_a_figure_though_it_stood_still():
    found = figures(reading(), reading())
    assert found.keys() == ALL
    assert {(figure.value, figure.judged, figure.detail, figure.anomaly) for figure in found.values()} == {(0, True, "", "")}


def test_what_has_no_limit_is_told_where_it_rose():
    assert risen(reading(), reading(), frozenset()) == ()
    (only,) = risen(reading(), reading(ecc_corrected=9), frozenset())
    assert (only.metric, only.value, only.unit, only.judged) == ("counters.ecc.corrected", 4, "count", False)


def test_links_are_added_up_and_named():
    figure = figures(reading(), reading(nvlink_replays_1=7, nvlink_replays_2=6))["counters.nvlink.replays"]
    assert (figure.value, figure.detail) == (3, "link 1: 2; link 2: 1")


def test_nanoseconds_become_seconds():
    figure = figures(reading(), reading(throttle_sw__power__cap=1_500_000_005))["counters.throttle.sw_power_cap"]
    assert (figure.value, figure.unit) == (1.5, "s")


def test_an_xid_is_told_with_its_meaning_and_remedy():
    figure = figures(reading(), reading(xids=(79, 79, 43)))["counters.xids"]
    assert figure.value == 3
    assert figure.detail == "XID 79, GPU has fallen off the bus: reboot the node; XID 43, GPU stopped processing: no repair"


def test_many_are_counted():
    figure = figures(reading(), reading(xids=tuple(range(1, 12))))["counters.xids"]
    assert (figure.value, figure.detail.count("XID ")) == (11, 8)
    assert figure.detail.endswith("; 3 more")


@pytest.mark.parametrize(
    ("before", "after", "anomaly"),
    [
        (
            reading(nvlink_replays_2=7),
            reading(nvlink_replays_2=3),
            "unreadable (link 2: fell from 7 to 3: the GPU was reset, or the counter began again)",
        ),
        (
            reading(),
            reading(nvlink_replays_2=Missing(Why.UNREADABLE, "GPU is lost")),
            "unreadable (link 2: GPU is lost)",
        ),
        (
            reading(nvlink_replays_2=Missing(Why.NOT_SUPPORTED)),
            reading(),
            "not supported (link 2)",
        ),
        (
            reading(),
            reading(nvlink_replays_3=5),
            "not there (link 3: no counter before the validation)",
        ),
        (
            reading(nvlink_replays_3=5),
            reading(),
            "not there (link 3: no counter after the validation)",
        ),
    ],
)
def test_what_cannot_be_compared_is_no_value_and_never_0(before, after, anomaly):
    found = figures(before, after)
    assert (found["counters.nvlink.replays"].value, found["counters.nvlink.replays"].anomaly) == (None, anomaly)
    assert all(figure.value == 0 for metric, figure in found.items() if metric != "counters.nvlink.replays")


def test_xids_that_nobody_may_hear_are_no_value():
    figure = figures(reading(), reading(xids=Missing(Why.NOT_PERMITTED, "nvmlDeviceRegisterEvents: Insufficient Permissions")))[
        "counters.xids"
    ]
    assert figure.value is None
    assert figure.anomaly == "not permitted (nvmlDeviceRegisterEvents: Insufficient Permissions)"


def test_where_nothing_was_read_each_limit_has_a_figure_without_a_value():
    found = figures(unread("NVML is gone"), unread("NVML is gone"))
    assert found.keys() == ALL
    assert {(figure.value, figure.anomaly) for figure in found.values()} == {(None, "unreadable (NVML is gone)")}
