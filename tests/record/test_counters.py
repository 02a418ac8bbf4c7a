"""Rises between two readings of a GPU's counters, and counters that give no value."""

import pytest

from gpu_acceptance.inventory.answer import Missing, Why
from gpu_acceptance.inventory.counters import GPU_NAMES, CountersReading, Heard, unread
from gpu_acceptance.inventory.infiniband import PortName
from gpu_acceptance.record.counters import risen

ALL = frozenset({"counters.xids", *(f"counters.{name}" for name in GPU_NAMES)})
LINKS = [f"link {number}" for number in range(3)]


def reading(xids=(), **changes):
    """All at 5, but for `nvlink_replays_2=7` or `pcie_replays=6`."""
    values = {(name, part): 5 for name in GPU_NAMES for part in (LINKS if name.startswith("nvlink") else [""])}
    for change, value in changes.items():
        kind, name, *link = change.replace("__", "-").split("_")
        values[f"{kind}.{name.replace('-', '_')}", f"link {link[0]}" if link else ""] = value
    return CountersReading(values, xids if isinstance(xids, Heard) else Heard(xids))


def figures(before, after, limited=ALL):
    return {figure.metric: figure for figure in risen(before, after, limited)}


def test_what_has_a_limit_has_a_figure_though_it_stood_still():
    found = figures(reading(), reading())
    assert found.keys() == ALL
    assert {(figure.value, figure.judged, figure.detail, figure.anomaly) for figure in found.values()} == {(0, True, "", "")}


def test_a_counter_without_a_limit_is_recorded_if_it_rose():
    assert risen(reading(), reading(), frozenset()) == ()
    (only,) = risen(reading(), reading(ecc_corrected=9), frozenset())
    assert (only.metric, only.value, only.unit, only.judged) == ("counters.ecc.corrected", 4, "count", False)


XID_43 = "XID 43, GPU stopped processing: no repair"


@pytest.mark.parametrize(
    ("changes", "metric", "value", "unit", "detail"),
    [
        ({"nvlink_replays_1": 7, "nvlink_replays_2": 6}, "nvlink.replays", 3, "count", "link 1: 2; link 2: 1"),
        ({"throttle_sw__power__cap": 1_500_000_005}, "throttle.sw_power_cap", 1.5, "s", ""),
        ({"xids": (79, 79, 43)}, "xids", 3, "count", f"XID 79, GPU has fallen off the bus: reboot the node; {XID_43}"),
    ],
    ids=["links are added up and named", "nanoseconds become seconds", "an XID has its meaning and remedy"],
)
def test_what_rose_has_its_value_and_parts(changes, metric, value, unit, detail):
    figure = figures(reading(), reading(**changes))[f"counters.{metric}"]
    assert (figure.value, figure.unit, figure.detail) == (value, unit, detail)


def test_many_are_counted():
    figure = figures(reading(), reading(xids=tuple(range(1, 12))))["counters.xids"]
    assert (figure.value, figure.detail.count("XID ")) == (11, 8)
    assert figure.detail.endswith("; 3 more")


def summed(number):
    """A reading of sums alone."""
    values = {(name, ""): 5 for name in GPU_NAMES if not name.startswith("nvlink")}
    return CountersReading({**values, **{(name, ""): number for name in GPU_NAMES if name.startswith("nvlink")}})


def with_sum(number, **changes):
    made = reading(**changes)
    return CountersReading({**made.values, ("nvlink.replays", ""): number})


def test_where_only_sums_were_read_they_are_compared():
    figure = figures(summed(15), summed(17))["counters.nvlink.replays"]
    assert (figure.value, figure.detail) == (2, "")


def test_links_and_their_sum_must_agree():
    figure = figures(with_sum(15), with_sum(17, nvlink_replays_2=7))["counters.nvlink.replays"]
    assert (figure.value, figure.detail) == (2, "link 2: 2")
    figure = figures(with_sum(15), with_sum(15, nvlink_replays_2=7))["counters.nvlink.replays"]
    assert figure.value is None
    assert figure.anomaly == "unreadable (the links add up to 17, but NVML reports a sum of 15)"


LOST, UNSUPPORTED = Missing(Why.UNREADABLE, "GPU is lost"), Missing(Why.NOT_SUPPORTED)


@pytest.mark.parametrize(
    ("before", "after", "anomaly"),
    [
        ({}, {"nvlink_replays_2": LOST}, "unreadable (link 2: GPU is lost)"),
        ({"nvlink_replays_2": UNSUPPORTED}, {}, "not supported (link 2)"),
        ({}, {"nvlink_replays_3": 5}, "not there (link 3: no counter before the validation)"),
        ({"nvlink_replays_3": 5}, {}, "not there (link 3: no counter after the validation)"),
    ],
)
def test_what_cannot_be_compared_is_no_value_and_never_0(before, after, anomaly):
    found = figures(reading(**before), reading(**after))
    assert (found["counters.nvlink.replays"].value, found["counters.nvlink.replays"].anomaly) == (None, anomaly)
    assert all(figure.value == 0 for metric, figure in found.items() if metric != "counters.nvlink.replays")


LOST_BEFORE = "it was reset or began again, and what it counted before that is not known"
H100_NS = 68_240_131_200, 68_187_678_816  # sw_thermal, before and after a validation of some seconds


@pytest.mark.parametrize(
    ("before", "after", "metric", "value", "detail"),
    [
        ({"nvlink_replays_2": 7}, {"nvlink_replays_2": 3}, "nvlink.replays", 3, f"link 2: 3; link 2: fell from 7 to 3: {LOST_BEFORE}"),
        ({"pcie_replays": 65_530}, {"pcie_replays": 0}, "pcie.replays", 0, f"fell from 65530 to 0: {LOST_BEFORE}"),
        (
            {"throttle_sw__thermal": H100_NS[0]},
            {"throttle_sw__thermal": H100_NS[1]},
            *("throttle.sw_thermal", 0, "fell from 68.24 s to 68.19 s, and what was added meanwhile is not known"),
        ),
    ],
)
def test_a_counter_that_fell_rose_by_what_it_shows_or_more(before, after, metric, value, detail):
    figure = figures(reading(**before), reading(**after))[f"counters.{metric}"]
    assert (figure.value, figure.detail, figure.anomaly, figure.is_least) == (value, detail, "", True)


def test_a_sum_over_links_that_fell_shows_nothing_since():
    figure = figures(summed(17), summed(15))["counters.nvlink.replays"]
    assert (figure.value, figure.is_least) == (0, True)


def test_xids_without_permission_are_no_value():
    heard = Heard(unread=Missing(Why.NOT_PERMITTED, "nvmlDeviceRegisterEvents: Insufficient Permissions"))
    figure = figures(reading(), reading(xids=heard))["counters.xids"]
    assert figure.value is None
    assert figure.anomaly == "not permitted (nvmlDeviceRegisterEvents: Insufficient Permissions)"


def test_an_xid_that_was_heard_counts_whatever_could_not_be_heard_after_it():
    figure = figures(reading(), reading(xids=Heard((79,), Missing(Why.UNREADABLE, "GPU is lost"))))["counters.xids"]
    assert (figure.value, figure.is_least) == (1, True)
    assert figure.detail == "XID 79, GPU has fallen off the bus: reboot the node; perhaps others: unreadable (GPU is lost)"


def test_where_nothing_was_read_each_limit_has_a_figure_without_a_value():
    found = figures(unread("NVML is gone"), unread("NVML is gone"))
    assert found.keys() == ALL
    assert {(figure.value, figure.anomaly) for figure in found.values()} == {(None, "unreadable (NVML is gone)")}


def test_ports_are_added_up_and_named():
    def counted(*numbers):
        names = [PortName(f"mlx5_{device}", 1) for device in range(len(numbers))]
        return CountersReading({("infiniband.link_downed", name): number for name, number in zip(names, numbers, strict=True)})

    limited = frozenset({"counters.infiniband.link_downed"})
    (figure,) = [one for one in risen(counted(1, 0), counted(1, 2), limited, ["infiniband.link_downed"]) if "infiniband" in one.metric]
    assert (figure.value, figure.detail, figure.labels) == (2, "mlx5_1 port 1: 2", {"device": "mlx5_1", "port": "1"})


def test_the_reason_is_given_if_all_ports_are_gone():
    name, gone = "infiniband.link_downed", Missing(Why.NOT_THERE, "/sys/class/infiniband")
    before, after = CountersReading({(name, "mlx5_0 port 1"): 0}), CountersReading({(name, ""): gone})
    (figure,) = risen(before, after, frozenset({f"counters.{name}"}), [name])
    assert (figure.value, figure.anomaly) == (None, "not there (/sys/class/infiniband)")


def test_bytes_of_ports_have_the_unit_bytes():
    before, after = (CountersReading({("infiniband.sent_bytes", "mlx5_0 port 1"): count}) for count in (1000, 5000))
    (figure,) = risen(before, after, frozenset(), ["infiniband.sent_bytes"])
    assert (figure.value, figure.unit, figure.detail, figure.judged) == (4000, "bytes", "mlx5_0 port 1: 4000", False)
