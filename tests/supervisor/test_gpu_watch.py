"""Counters and telemetry that a supervisor reads while a validation runs."""

import itertools
import select
import threading
import time

import pynvml
import pytest
from inventory.fake_nvml import COUNTERS, FIELDS, UUIDS, EventQueue, fields, install
from waiting import wait_until

from gpu_acceptance.inventory import counters as read_counters
from gpu_acceptance.inventory import gpu
from gpu_acceptance.inventory.answer import Missing, Why
from gpu_acceptance.inventory.telemetry import SOURCES, Point, Sample, Series, points, unread
from gpu_acceptance.record.gpu_telemetry import GpuSeries, GpuTelemetry
from gpu_acceptance.supervisor import gpu_watch
from gpu_acceptance.supervisor.gpu_watch import CounterWatch, TelemetryWatch, kept_series, telemetry_of

FIRST, SECOND = UUIDS
REPLAYS = frozenset({"counters.pcie.replays", "counters.xids"})


class Nvml:
    """Its PCIe replays and XIDs can be set, and it hangs on demand."""

    def __init__(self, monkeypatch):
        self.values = {**FIELDS, **COUNTERS}
        self.events = EventQueue()
        self.may_answer = threading.Event()
        self.may_answer.set()
        install(monkeypatch, nvmlDeviceGetFieldValues=self._fields, nvmlEventSetWait_v2=self.events.wait)

    def _fields(self, *arguments):
        assert self.may_answer.wait(60)
        return fields(self.values)(*arguments)

    def replay(self, number):
        self.values["NVML_FI_DEV_PCIE_REPLAY_COUNTER"] += number


@pytest.fixture
def nvml(monkeypatch):
    made = Nvml(monkeypatch)
    yield made
    made.may_answer.set()


def answer(watch):
    """As a supervisor waits: woken by the descriptor, or looking every now and then."""
    end = time.monotonic() + 60
    while (figures := watch.figures()) is None:
        assert time.monotonic() < end
        select.select([watch.wake_fd], [], [], 0.05)
    return {figure.metric.removeprefix("counters."): (figure.value, figure.detail or figure.anomaly) for figure in figures}


def ask(watch, uuid=FIRST):
    watch.ask(uuid, REPLAYS, each_link=False)
    return answer(watch)


def test_later_readings_are_compared_with_the_first(nvml):
    watch = CounterWatch(reads_ports=False)
    assert ask(watch) == {}
    assert ask(watch) == {"pcie.replays": (0, ""), "xids": (0, "")}
    nvml.replay(3)
    nvml.events.xids.append(79)
    assert ask(watch) == {"pcie.replays": (3, ""), "xids": (1, "XID 79, GPU has fallen off the bus: reboot the node")}
    assert ask(watch) == {"pcie.replays": (0, ""), "xids": (0, "")}


def test_of_no_gpu_there_is_nothing_to_wait_for():
    watch = CounterWatch(reads_ports=False)
    watch.ask("", REPLAYS, each_link=True)
    assert watch.figures() == ()


def test_of_another_gpu_there_is_nothing_to_compare_with(nvml):
    watch = CounterWatch(reads_ports=False)
    ask(watch, FIRST)
    nvml.replay(3)
    assert ask(watch, SECOND) == {}
    nvml.replay(1)
    assert ask(watch, SECOND)["pcie.replays"] == (1, "")


def test_a_driver_that_hangs_is_not_awaited_and_its_counters_come_later(nvml, monkeypatch):
    monkeypatch.setattr("gpu_acceptance.supervisor.gpu_watch.LONGEST_S", 0.2)
    late = "unreadable (NVML has not answered for 0.2 s)"
    watch = CounterWatch(reads_ports=False)
    ask(watch)
    nvml.may_answer.clear()
    assert ask(watch) == {"pcie.replays": (None, late), "xids": (None, late)}
    watch.ask(FIRST, REPLAYS, each_link=False)
    assert [figure.value for figure in watch.figures()] == [None, None]  # at once: it would wait behind the first
    nvml.replay(2)
    nvml.events.xids.append(31)
    nvml.may_answer.set()
    assert select.select([watch.wake_fd], [], [], 60)[0]
    watch.figures()  # the late answer, which nobody waits for
    nvml.events.xids.append(43)
    told = ask(watch)
    assert told["pcie.replays"] == (2, "")
    assert told["xids"][0] == 2


def test_a_counter_that_was_not_read_once_rises_with_the_next_reading(nvml):
    watch = CounterWatch(reads_ports=False)
    ask(watch)
    known = nvml.values.pop("NVML_FI_DEV_PCIE_REPLAY_COUNTER")
    assert ask(watch)["pcie.replays"] == (None, "not supported")
    nvml.values["NVML_FI_DEV_PCIE_REPLAY_COUNTER"] = known + 4
    assert ask(watch)["pcie.replays"] == (4, "")


def test_a_reading_that_fails_is_reported_and_the_next_one_counts(nvml, monkeypatch):
    monkeypatch.setattr(read_counters, "read_ports", lambda _devices: {("infiniband.link_downed", "mlx5_0 port 1"): 3})
    watch, limited = CounterWatch(reads_ports=True), REPLAYS | {"counters.infiniband.link_downed"}
    watch.ask(FIRST, limited, each_link=False)
    answer(watch)
    with monkeypatch.context() as patch:
        patch.setattr(read_counters, "read_ports", lambda _devices: [][0])
        watch.ask(FIRST, limited, each_link=False)
        why = "unreadable (IndexError while counters were read: list index out of range)"
        assert answer(watch) == {"pcie.replays": (None, why), "xids": (None, why), "infiniband.link_downed": (None, why)}
    nvml.replay(2)
    assert ask(watch)["pcie.replays"] == (2, "")


def test_a_machine_whose_nvml_is_gone_has_no_values(monkeypatch):
    install(monkeypatch, nvmlInitWithFlags=lambda _flags: pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
    watch = CounterWatch(reads_ports=False)
    ask(watch)
    why = "unreadable (NVML does not start: Driver Not Loaded)"
    assert ask(watch) == {"pcie.replays": (None, why), "xids": (None, why)}


def test_the_first_rank_of_a_node_also_reads_its_ports(nvml, tmp_path, monkeypatch):
    counters = tmp_path / "sys/class/infiniband/mlx5_0/ports/1/counters"
    counters.mkdir(parents=True)
    for name in ("link_downed", "link_error_recovery", "symbol_error", "port_rcv_errors", "port_xmit_discards"):
        (counters / name).write_text("3\n")
    real = read_counters.read_ports
    monkeypatch.setattr(read_counters, "read_ports", lambda devices: real(devices, tmp_path))
    watch, limited = CounterWatch(reads_ports=True), frozenset({"counters.infiniband.link_downed"})
    watch.ask(FIRST, limited, devices="mlx5_*", each_link=False)
    assert answer(watch) == {}
    (counters / "link_downed").write_text("4\n")
    watch.ask(FIRST, limited, devices="mlx5_*", each_link=False)
    assert answer(watch) == {"infiniband.link_downed": (1, "mlx5_0 port 1: 1")}
    watch.ask(FIRST, limited, devices="mlx4_*", each_link=False)
    assert answer(watch)["infiniband.link_downed"][0] is None


def poll(watch):
    watch.ask(FIRST, REPLAYS | {"counters.nvlink.replays"}, each_link=False, is_poll=True)
    return answer(watch)


def test_a_poll_is_nothing_to_compare_with(nvml):
    """Without the reading before the validation, a rise up to the poll would never be reported."""
    watch = CounterWatch(reads_ports=False)
    assert poll(watch) == {}
    nvml.replay(3)
    assert poll(watch) == {}
    assert ask(watch) == {}
    assert ask(watch) == {"pcie.replays": (0, ""), "xids": (0, "")}


def test_an_error_of_a_poll_leaves_neither_an_xid_nor_the_error_behind(nvml, monkeypatch):
    """The XID was heard before the error, and will not be reported again; without one, others may have been missed."""
    errors: list[int] = []

    def wait(*arguments):
        return errors.pop() if errors and not nvml.events.xids else nvml.events.wait(*arguments)

    install(monkeypatch, nvmlDeviceGetFieldValues=nvml._fields, nvmlEventSetWait_v2=wait)
    watch = CounterWatch(reads_ports=False)
    ask(watch)
    nvml.events.xids.append(48)
    errors.append(pynvml.NVML_ERROR_UNKNOWN)
    why = "unreadable (after 1 XIDs: nvmlEventSetWait_v2: Unknown Error)"
    told = {"pcie.replays": (0, ""), "xids": (1, f"XID 48, double bit ECC error: reset the GPU; perhaps others: {why}")}
    assert poll(watch).items() >= told.items()
    assert ask(watch) == told
    errors.append(pynvml.NVML_ERROR_UNKNOWN)
    why = "unreadable (after 0 XIDs: nvmlEventSetWait_v2: Unknown Error)"
    assert poll(watch)["xids"] == (None, why)
    assert ask(watch)["xids"] == (None, why)
    assert ask(watch)["xids"] == (0, "")


def test_an_xid_that_was_heard_counts_where_the_driver_hangs_afterwards(nvml, monkeypatch):
    monkeypatch.setattr("gpu_acceptance.supervisor.gpu_watch.LONGEST_S", 0.2)
    watch = CounterWatch(reads_ports=False)
    ask(watch)
    nvml.events.xids.append(79)
    poll(watch)
    nvml.may_answer.clear()
    assert ask(watch)["xids"][0] == 1
    nvml.may_answer.set()
    wait_until(lambda: select.select([watch.wake_fd], [], [], 0)[0])
    watch.figures()
    assert ask(watch)["xids"] == (0, "")


def test_counters_of_a_poll_are_reported_again_by_link(nvml, monkeypatch):
    links: dict[tuple[str, int], int] = {}
    monkeypatch.setattr(nvml, "_fields", lambda *arguments: fields(nvml.values, links)(*arguments))
    install(monkeypatch, nvmlDeviceGetFieldValues=lambda *arguments: nvml._fields(*arguments), nvmlEventSetWait_v2=nvml.events.wait)
    watch = CounterWatch(reads_ports=False)
    watch.ask(FIRST, REPLAYS, each_link=True)
    answer(watch)
    assert poll(watch) == {"pcie.replays": (0, ""), "nvlink.replays": (0, ""), "xids": (0, "")}
    links |= {("NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY", 5): 5, ("NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY", 0xFFFFFFFF): 39}
    nvml.replay(2)
    nvml.events.xids.append(79)
    seen = {
        "pcie.replays": (2, ""),
        "nvlink.replays": (3, "link 5: 3"),
        "xids": (1, "XID 79, GPU has fallen off the bus: reboot the node"),
    }
    assert poll(watch) == seen
    assert poll(watch) == seen
    assert ask(watch) == seen
    assert ask(watch) == {"pcie.replays": (0, ""), "xids": (0, "")}


@pytest.fixture
def watch(monkeypatch):
    install(monkeypatch)
    monkeypatch.setattr(gpu_watch, "LEAST_S", 0.0)
    made = TelemetryWatch()
    yield made
    made.end()


BEGAN_S = time.monotonic()


def so_far(watch):
    return watch.during(BEGAN_S, time.monotonic())


def wait_for_samples(watch, number):
    assert wait_until(lambda: so_far(watch).num_samples >= number)


def test_telemetry_of_a_window(watch):
    watch.watch(FIRST)
    wait_for_samples(watch, 1)
    begin_s = time.monotonic()
    wait_for_samples(watch, 4)
    found = watch.during(begin_s, time.monotonic())
    assert found.levels["sm_clock_mhz"].mean == found.mean("sm_clock_mhz") > 0
    assert found.seen_s <= found.length_s
    assert GpuTelemetry.model_validate_json(found.model_dump_json()) == found


def test_the_same_gpu_again_is_sampled_on_and_another_one_anew(watch):
    watch.watch(FIRST)
    wait_for_samples(watch, 3)
    watch.watch(FIRST)
    assert so_far(watch).num_samples >= 3
    second_s = time.monotonic()
    watch.watch(SECOND)
    wait_for_samples(watch, 1)
    first_to_second = watch.during(BEGAN_S, second_s)
    assert (first_to_second.num_samples, first_to_second.seen_s) == (0, 0.0)


def test_without_a_gpu_there_is_nothing(watch):
    watch.watch("")
    assert so_far(watch) is watch.series(0.0, 60.0) is None
    watch.watch(FIRST)
    watch.end()
    assert so_far(watch) is watch.series(0.0, 60.0) is None


def test_less_than_a_second_has_no_telemetry(watch, monkeypatch):
    watch.watch(FIRST)
    wait_for_samples(watch, 2)
    monkeypatch.setattr(gpu_watch, "LEAST_S", 1.0)
    now_s = time.monotonic()
    assert watch.during(now_s - 0.999, now_s) is None
    assert watch.during(now_s - 1.001, now_s) is not None


def test_without_nvml_the_values_are_missing(watch, monkeypatch):
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: (_ for _ in ()).throw(pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)))
    watch.watch(FIRST)
    assert wait_until(lambda: "Library Not Found" in str(so_far(watch).missing.get("sm_clock_mhz")))
    assert so_far(watch).levels == {}


@pytest.mark.parametrize(
    ("begin_s", "end_s"), [(2.0, 1.0), (-1.0, 1.0), (float("nan"), 1.0), (1.0, float("inf")), (1.0, 1e12), ("1", 2.0), (None, 2.0)]
)
def test_moments_that_are_none(watch, begin_s, end_s):
    watch.watch(FIRST)
    with pytest.raises(ValueError, match=r"^telemetry from .* to .*: expected two past moments of time.monotonic\(\), the earlier"):
        watch.during(begin_s, end_s)


def series(*samples):
    made = Series(0.05)
    for sample in samples:
        made.add(sample)
    return made


def sample(number, **changes):
    return Sample(0.05 * number, **{**dict.fromkeys(SOURCES, 1), **changes})


def test_throttling_has_its_reason_and_a_missing_value_its_channel():
    braked = itertools.chain((gpu.HW_POWER_BRAKE | 0x4000,) * 20, (0,) * 21)
    lacks = Missing(Why.NOT_SUPPORTED, "Not Supported")
    window = series(*(sample(number, event_reasons=mask, power_w=lacks) for number, mask in enumerate(braked))).window(0.0, 2.0)
    found = telemetry_of(window)
    assert found.throttled_s == {"hw power brake slowdown": pytest.approx(1.0), "bits 0x4000": pytest.approx(1.0)}
    assert found.missing == {"power_w": str(lacks)}
    assert (found.reasons_held_s, found.levels["sm_clock_mhz"].held_s) == (pytest.approx(2.0), pytest.approx(2.0))
    assert (found.length_s, found.seen_s, found.num_samples) == (2.0, pytest.approx(2.0), 40)


def test_a_window_without_samples_has_no_level():
    found = telemetry_of(series(*(unread(0.05 * number, "x" * 1000) for number in range(21))).window(0.0, 1.0))
    assert found.levels == found.throttled_s == {}
    assert set(found.missing) >= {"sm_clock_mhz", "event_reasons"}
    assert found.mean("sm_clock_mhz") == Missing(Why.NOT_THERE, found.missing["sm_clock_mhz"])
    assert str(found.mean("fan")) == "not there (no channel fan)"


def test_a_mean_that_is_known_of_a_part_of_the_time_is_none():
    known = [sample(number) for number in range(16)]
    found = telemetry_of(series(*known, *(unread(0.05 * number, "gone") for number in range(16, 21))).window(0.0, 1.0))
    assert found.seen_s == pytest.approx(1.0)
    assert found.mean("sm_clock_mhz") == Missing(Why.UNREADABLE, "sm_clock_mhz is known for 0.8 of 1.0 s")
    assert telemetry_of(series(*known).window(0.0, 0.75)).mean("sm_clock_mhz") == 1.0


def minute(**changes):
    """A minute at 20 Hz, of which `changes` gives the values by second."""
    by_second = {name: [change(second) for second in range(60)] for name, change in changes.items()}
    made = series(*(sample(n, **{name: values[n // 20] for name, values in by_second.items()}) for n in range(1200)))
    return points(made.bins(), 0.0, 60.0, 60, ("sm_clock_mhz", "power_w"))


def test_a_minute_in_points():
    found = minute(sm_clock_mhz=lambda second: 1000 + second, event_reasons=lambda second: 0x40 if second == 7 else 0x4)
    assert [point.means["sm_clock_mhz"] for point in found] == pytest.approx([1000 + second for second in range(60)], abs=0.1)
    assert [number for number, point in enumerate(found) if point.reasons & 0x40] == [7]
    assert {point.length_s for point in found} == {1.0}


def test_times_without_samples_have_no_point():
    gone = Missing(Why.UNREADABLE, "gone")
    assert [point.means["power_w"] for point in minute(power_w=lambda second: gone if second < 59 else 700)] == [*[None] * 59, 700]
    made = series(*(sample(number) for number in (*range(40), *range(800, 1200))))
    found = points(made.bins(), 0.0, 60.0, 60, ("power_w",))
    assert [number for number, point in enumerate(found) if point.means["power_w"] is None] == list(range(2, 40))
    assert [point.means for point in points((), 0.0, 60.0, 2, ("power_w",))] == [{"power_w": None}] * 2


def test_a_minute_or_longer_has_a_series(watch):
    watch.watch(FIRST)
    wait_for_samples(watch, 3)
    now_s = time.monotonic()
    assert watch.series(now_s - 59.9, now_s) is None
    kept = watch.series(now_s - 60.0, now_s)
    assert (kept.point_s, {len(values) for values in kept.levels.values()}) == (pytest.approx(0.25), {240})
    assert kept.levels["sm_clock_mhz"][0] is None
    assert GpuSeries.model_validate_json(kept.model_dump_json()) == kept
    assert len(kept.model_dump_json()) < 16_000


def test_a_series_names_throttle_reasons_but_not_those_of_a_healthy_gpu():
    reasons = (gpu.GPU_IDLE, gpu.SW_POWER_CAP, gpu.HW_THERMAL | 0x4000, gpu.HW_THERMAL)
    means = dict.fromkeys(("sm_clock_mhz", "power_w", "gpu_temperature_c", "memory_temperature_c", "utilisation_percent"), 1.0)
    kept = kept_series([Point(15.0, means, one) for one in reasons])
    assert kept.throttled == {"hw thermal slowdown": (2, 3), "bits 0x4000": (2,)}


@pytest.mark.parametrize("wrong", [{"throttled": {"a": (240,)}}, {"levels": {"a": (1.0,) * 241}}, {"levels": {"a": (float("nan"),)}}])
def test_a_series_that_cannot_be(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        GpuSeries.model_validate({"point_s": 1.0, "levels": {}, "throttled": {}, **wrong})
