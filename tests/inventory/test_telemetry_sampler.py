"""Samples of a GPU over a stand-in for the C library, and the thread that takes them."""

import ctypes
import itertools
import re
import threading
import time
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pynvml
import pytest
from inventory.fake_nvml import FIELDS, UUIDS, MiB, by, fails, fields, install, out
from waiting import wait_until

from gpu_acceptance.inventory import telemetry_sampler
from gpu_acceptance.inventory.answer import Missing, Why
from gpu_acceptance.inventory.telemetry import GAP_PERIODS, SOURCES
from gpu_acceptance.inventory.telemetry_sampler import RARE_S, Sampler, open_reader

NVLINK = ("NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX", "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX")
PCIE = ("NVML_FI_DEV_PCIE_COUNT_TX_BYTES", "NVML_FI_DEV_PCIE_COUNT_RX_BYTES")
NOT_SUPPORTED = Missing(Why.NOT_SUPPORTED)
FIRST, SECOND = UUIDS


class Clock:
    """Time passes only in a sleep, here or in the reader; every source is due again after `sleep(RARE_S)`."""

    def __init__(self):
        self.now_s = 1000.0

    def monotonic(self):
        return self.now_s

    def sleep(self, seconds):
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(telemetry_sampler, "time", clock)
    return clock


@pytest.fixture
def opened(monkeypatch, clock):
    """A reader over a library with these changes."""

    def make(uuid=FIRST, **changes):
        install(monkeypatch, **changes)
        return open_reader(uuid)

    return make


def test_one_sample_of_a_gpu_in_a_virtual_machine(opened):
    with opened() as reader:
        sample = reader.read()
    assert (sample.sm_clock_mhz, sample.memory_clock_mhz) == (345, 3201)
    assert (sample.gpu_temperature_c, sample.memory_temperature_c, sample.temperature_margin_c) == (34, 35, 53)
    assert (sample.utilisation_percent, sample.memory_used_bytes, sample.event_reasons) == (0, 616 * MiB, 0x1)
    assert sample.power_w == pytest.approx(79.94)  # of this moment, not the mean of 79.78
    assert (sample.nvlink_tx_gb_per_s, sample.nvlink_rx_gb_per_s) == (NOT_SUPPORTED,) * 2
    assert (sample.pcie_tx_gb_per_s, sample.pcie_rx_gb_per_s) == (NOT_SUPPORTED,) * 2
    assert reader.failures == {}
    assert reader.power_is_instant


def test_nvlink_is_a_rate_over_all_links(opened, clock):
    """350 GB/s out, in KiB on each of 18 links; what came in is less at the second reading than at the first."""
    began_s = clock.now_s

    def function(device, count, array):
        elapsed_s = clock.now_s - began_s
        sent_kib = round(350e9 / 1024 / 18 * elapsed_s)
        return fields({**FIELDS, **dict(zip(NVLINK, (sent_kib, 5 - round(50 * elapsed_s)), strict=True))})(device, count, array)

    with opened(nvmlDeviceGetFieldValues=function) as reader:
        sample = reader.read()
    assert sample.nvlink_tx_gb_per_s == pytest.approx(350, rel=1e-4)
    assert sample.nvlink_rx_gb_per_s == Missing(Why.UNREADABLE, "fell from 90 to 72: it was reset, or began again")


def rising(clock, begin, bytes_per_s):
    """Counters of PCIe that rise with time and begin again at 2**32, as on an H200."""
    began_s = clock.now_s

    def function(device, count, array):
        counts = [(one + round(rate * (clock.now_s - began_s))) % 2**32 for one, rate in zip(begin, bytes_per_s, strict=True)]
        return fields({**FIELDS, **dict(zip(PCIE, counts, strict=True))})(device, count, array)

    return function


def test_pcie_is_a_rate_over_a_moment_and_its_counters_may_begin_again_in_it(opened, clock):
    with opened(nvmlDeviceGetFieldValues=rising(clock, (2**32 - 10, 5), (55e9, 1e9))) as reader:
        sample = reader.read()
    assert sample.pcie_tx_gb_per_s == pytest.approx(55)
    assert sample.pcie_rx_gb_per_s == pytest.approx(1)


@pytest.mark.parametrize(
    ("begin", "pause_s", "detail"),
    [
        (0, 0.05, "from 0 to 70000000 in 0.070 s: wanted are two below 2**32 and at most 0.03 s apart"),
        (2**33, 0.0, "from 8589934592 to 8609934592 in 0.020 s: wanted are two below 2**32 and at most 0.03 s apart"),
    ],
)
def test_a_counter_of_pcie_that_may_have_begun_again_more_often_tells_nothing(opened, clock, monkeypatch, begin, pause_s, detail):
    def late(device, count, array):
        clock.now_s += pause_s
        counts = dict.fromkeys(PCIE, begin + round(1e9 * (clock.now_s - began_s)))
        return fields({**FIELDS, **counts})(device, count, array)

    with opened(nvmlDeviceGetFieldValues=fields({**FIELDS, **dict.fromkeys(PCIE, 1)})) as reader:
        began_s = clock.now_s + 2 * pause_s  # the fields of each sample are asked first
        install(monkeypatch, nvmlDeviceGetFieldValues=late)
        sample = reader.read()
    assert sample.pcie_tx_gb_per_s == Missing(Why.UNREADABLE, detail)


def test_slow_values_are_read_less_often_and_stand_until_then(opened, clock):
    asked = []
    counting = {name: noting(asked, name) for name in ("nvmlDeviceGetTemperature", "nvmlDeviceGetMarginTemperature")}
    with opened(nvmlDeviceGetClockInfo=noting(asked, "clock", by(((1,), 345), ((2,), 3201))), **counting) as reader:
        for _ in range(76):  # nearly four seconds
            assert reader.read() == replace(reader.read(), at_s=clock.now_s)
            clock.sleep(0.05)
    assert Counter(asked) == {"clock": 152 + 16, "nvmlDeviceGetTemperature": 16, "nvmlDeviceGetMarginTemperature": 2}


def noting(asked, name, answer=None):
    def function(*arguments):
        asked.append(name)
        return (answer or out(53))(*arguments)

    return function


def test_a_gpu_without_instant_power_tells_its_mean(opened):
    lacking = {name: value for name, value in FIELDS.items() if name != "NVML_FI_DEV_POWER_INSTANT"}
    with opened(nvmlDeviceGetFieldValues=fields(lacking)) as reader:
        assert reader.read().power_w == pytest.approx(79.78)
        assert not reader.power_is_instant


def counted(calls, values=FIELDS):
    answer = fields(values)

    def function(device, count, array):
        calls.append([one.fieldId for one in array._obj[: count.value]])
        return answer(device, count, array)

    return function


def test_all_fields_are_read_in_one_call_and_unsupported_ones_no_more(opened):
    calls = []
    with opened(nvmlDeviceGetFieldValues=counted(calls)) as reader:
        assert len(calls) == 1
        assert len(calls.pop()) == 6
        reader.read()
        reader.read()
    assert calls == [[pynvml.NVML_FI_DEV_POWER_INSTANT, pynvml.NVML_FI_DEV_MEMORY_TEMP]] * 2


@pytest.mark.parametrize(
    ("function", "lost"),
    [
        ("nvmlDeviceGetClockInfo", {"sm_clock_mhz", "memory_clock_mhz"}),
        ("nvmlDeviceGetTemperature", {"gpu_temperature_c"}),
        ("nvmlDeviceGetCurrentClocksEventReasons", {"event_reasons"}),
        ("nvmlDeviceGetUtilizationRates", {"utilisation_percent"}),
        ("nvmlDeviceGetMemoryInfo", {"memory_used_bytes"}),
        ("nvmlDeviceGetFieldValues", {"power_w", "memory_temperature_c"}),
    ],
)
def test_a_source_that_fails_midway_is_missing_and_counted_and_the_others_go_on(opened, clock, monkeypatch, function, lost):
    with opened() as reader:
        before = reader.read()
        install(monkeypatch, **{function: fails(pynvml.NVML_ERROR_UNKNOWN)})
        sick = []
        for _ in range(3):
            clock.sleep(RARE_S)
            sick.append(reader.read())
        install(monkeypatch)
        clock.sleep(RARE_S)
        well = reader.read()
    assert reader.failures == dict.fromkeys(lost, 3)
    for sample in sick:
        assert {name for name in SOURCES if getattr(sample, name) != getattr(before, name)} == lost
        assert {getattr(sample, name) for name in lost} == {Missing(Why.UNREADABLE, f"{function}: Unknown Error")}
    assert [getattr(well, name) for name in SOURCES] == [getattr(before, name) for name in SOURCES]


def test_an_instant_power_that_fails_is_not_replaced_by_a_mean(opened, monkeypatch):
    """It would be another quantity, in the middle of a series."""
    with opened() as reader:
        install(monkeypatch, nvmlDeviceGetFieldValues=fails(pynvml.NVML_ERROR_UNKNOWN), nvmlDeviceGetPowerUsage=out(1))
        assert isinstance(reader.read().power_w, Missing)


def test_without_the_gpu_every_source_is_missing(opened):
    with opened(nvmlDeviceGetHandleByUUID=fails(pynvml.NVML_ERROR_NOT_FOUND)) as reader:
        sample = reader.read()
    assert {getattr(sample, name) for name in SOURCES} == {Missing(Why.NOT_THERE, "nvmlDeviceGetHandleByUUID: Not Found")}
    assert reader.failures == dict.fromkeys(SOURCES, 1)


PERIOD_S = 0.01


class Nvml:
    """It hangs and breaks on demand; `asked` counts the samples."""

    def __init__(self, monkeypatch):
        self.asked = 0
        self.error = None
        self.may_answer = threading.Event()
        self.may_answer.set()
        install(monkeypatch, nvmlDeviceGetFieldValues=self._fields)

    def _fields(self, *arguments):
        self.asked += 1
        assert self.may_answer.wait(60)
        if self.error:
            raise self.error
        return fields(FIELDS)(*arguments)


@pytest.fixture
def nvml(monkeypatch):
    made = Nvml(monkeypatch)
    yield made
    made.may_answer.set()


@pytest.fixture
def started(nvml):
    """Samplers that are stopped at the end, whatever happens."""
    made = []

    def start(uuid=FIRST, period_s=PERIOD_S):
        sampler = Sampler(uuid, period_s=period_s)
        sampler.start()
        made.append(sampler)
        return sampler

    yield start
    nvml.may_answer.set()
    for sampler in made:
        sampler.stop(60)


def num_samples(sampler):
    return sampler.window(0.0, time.monotonic() + 60).num_samples


def test_a_sampler_samples_until_it_is_stopped(started):
    begin_s = time.monotonic()
    sampler = started()
    assert wait_until(lambda: num_samples(sampler) >= 20)
    sampled = sampler.stop(60)
    end_s = time.monotonic()
    window = sampled.series.window(begin_s, end_s)
    assert (sampled.problem, sampled.failures) == ("", {})
    assert 20 <= sampled.series.num_samples <= (end_s - begin_s) / PERIOD_S + 1
    assert window.spans["sm_clock_mhz"].mean == 345
    assert 0 < sampled.cpu_s < end_s - begin_s
    assert not sampler._thread.is_alive()


class SlowClock:
    """Time passes in waits, and while NVML answers: `reading_s` each, by turns. It ends after a second."""

    def __init__(self, nvml, monkeypatch, reading_s):
        self.now_s, self.reading_s = 0.0, itertools.cycle(reading_s)
        clock = SimpleNamespace(monotonic=lambda: self.now_s, thread_time=time.thread_time, sleep=time.sleep)
        monkeypatch.setattr(telemetry_sampler, "time", clock)
        answer = nvml._fields
        install(monkeypatch, nvmlDeviceGetFieldValues=lambda *arguments: self._read(answer, *arguments))

    def _read(self, answer, *arguments):
        self.now_s += next(self.reading_s)
        return answer(*arguments)

    def wait(self, seconds):
        self.now_s += seconds
        return self.now_s >= 1.0


def times_of(nvml, monkeypatch, reading_s):
    clock = SlowClock(nvml, monkeypatch, reading_s)
    sampler = Sampler(FIRST, period_s=0.05)
    sampler._should_stop = clock
    sampler._run()
    times = [one.begin_s for one in sampler._series.bins()]
    return [round(at_s - times[0], 6) for at_s in times]


@pytest.mark.parametrize(
    ("reading_s", "times"),
    [
        ([0.03], [round(number * 0.05, 6) for number in range(20)]),  # a slow reading delays none after it
        ([0.0, 0.12, 0.0], [0.0, 0.15, 0.2, 0.25, 0.4]),  # in turns 0.12 s, none, none: samples that it ran over are left out
    ],
)
def test_samples_keep_to_the_clock(nvml, monkeypatch, reading_s, times):
    assert times_of(nvml, monkeypatch, reading_s)[: len(times)] == times


def test_each_sampler_reads_its_own_gpu(started, monkeypatch):
    def temperature(device, _sensor, target):
        return out(40 + ctypes.cast(device, ctypes.c_void_p).value)(device, target)

    install(monkeypatch, nvmlDeviceGetTemperature=temperature)
    one, other = started(FIRST), started(SECOND)
    assert wait_until(lambda: one.latest() and other.latest())
    assert [sampler.latest().gpu_temperature_c for sampler in (one, other)] == [41, 42]


def hanging(started, nvml):
    """A sampler whose question the driver does not answer."""
    sampler = started()
    assert wait_until(lambda: num_samples(sampler) >= 2)
    nvml.may_answer.clear()
    asked = nvml.asked
    assert wait_until(lambda: nvml.asked > asked)
    return sampler


def test_a_driver_that_hangs_is_not_waited_for(started, nvml):
    sampler = hanging(started, nvml)
    before = num_samples(sampler)
    time.sleep(GAP_PERIODS * PERIOD_S * 2)
    now = time.monotonic()
    assert sampler.window(now - GAP_PERIODS * PERIOD_S * 2, now).longest_pause.length_s > GAP_PERIODS * PERIOD_S
    sampled = sampler.stop(patience_s=0.2)
    said = re.fullmatch(r"NVML has not answered for (\d+\.\d) s: the thread that asked is left behind", sampled.problem)
    assert said
    assert float(said[1]) >= 0.2
    nvml.may_answer.set()
    sampler._thread.join(60)
    assert sampled.series.num_samples == before  # what came late is not added to what was given away


def test_a_driver_that_hangs_for_a_while_leaves_a_gap(started, nvml):
    sampler = hanging(started, nvml)
    time.sleep(0.2)
    nvml.may_answer.set()
    before = num_samples(sampler)
    assert wait_until(lambda: num_samples(sampler) > before + 5)
    assert max(one.longest_pause.length_s for one in sampler.stop(60).series.bins()) >= 0.2


def test_a_reading_that_breaks_is_counted_and_the_next_one_counts(started, nvml):
    sampler = started()
    assert wait_until(sampler.latest)
    nvml.error = RuntimeError("no such thing")
    why = Missing(Why.UNREADABLE, "RuntimeError while a sample was read: no such thing")
    assert wait_until(lambda: sampler.latest() and sampler.latest().sm_clock_mhz == why)
    nvml.error = None
    assert wait_until(lambda: sampler.latest() and sampler.latest().sm_clock_mhz == 345)
    assert sampler.stop(60).failures["sample"] >= 1


def test_without_a_driver_the_samples_have_the_reason(started, monkeypatch):
    install(monkeypatch, nvmlInitWithFlags=lambda _flags: pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
    sampler = started()
    assert wait_until(sampler.latest)
    assert sampler.stop(60).problem == "NVML does not start: Driver Not Loaded"
    assert sampler.latest().sm_clock_mhz == Missing(Why.UNREADABLE, "NVML does not start: Driver Not Loaded")


@pytest.mark.parametrize("period_s", [0.0, -1.0, float("nan"), float("inf")])
def test_a_period_that_cannot_be(period_s):
    with pytest.raises(ValueError, match=r"period_s=.*: a finite number of seconds above 0"):
        Sampler(FIRST, period_s=period_s)


def test_an_error_before_the_first_sample_is_reported(started, monkeypatch):
    def breaks(*_, **__):
        raise KeyError("a bug")

    monkeypatch.setattr(telemetry_sampler, "open_reader", breaks)
    sampler = started()
    assert wait_until(lambda: sampler.latest())
    sampled = sampler.stop(60)
    assert sampled.problem == "KeyError when the GPU was opened: 'a bug'"
    assert sampler.latest().sm_clock_mhz == Missing(Why.UNREADABLE, sampled.problem)
