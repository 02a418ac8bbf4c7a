"""One sample through nvidia-ml-py, over a stand-in for the C library: what is asked, and what happens where a source has no answer."""

from collections import Counter
from dataclasses import replace

import pynvml
import pytest
from inventory.fake_nvml import COUNTERS, FIELDS, MiB, by, fails, fields, install, out

from gpu_acceptance.inventory import telemetry_sampler as reader_module
from gpu_acceptance.inventory.answer import Missing, Why
from gpu_acceptance.inventory.nvml import NoNvmlError
from gpu_acceptance.inventory.telemetry import SOURCES, unread
from gpu_acceptance.inventory.telemetry_sampler import RARE_S, open_reader

UUID = "GPU-00000001-0000-4000-8000-000000000001"
NVLINK = ("NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX", "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX")
PCIE = ("NVML_FI_DEV_PCIE_COUNT_TX_BYTES", "NVML_FI_DEV_PCIE_COUNT_RX_BYTES")
NOT_SUPPORTED = Missing(Why.NOT_SUPPORTED)


class Clock:
    """Time passes where somebody sleeps, here or in the reader; then every source is due again after `sleep(RARE_S)`."""

    def __init__(self):
        self.now_s = 1000.0

    def monotonic(self):
        return self.now_s

    def sleep(self, seconds):
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(reader_module, "time", clock)
    return clock


@pytest.fixture
def opened(monkeypatch, clock):
    """A reader over a library with these changes."""

    def make(uuid=UUID, **changes):
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


def test_what_moves_slowly_is_asked_less_often_and_stands_until_then(opened, clock):
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
        calls.append([one.fieldId for one in array._obj])
        return answer(device, count, array)

    return function


def test_all_fields_are_asked_in_one_call_and_what_is_not_supported_no_more(opened):
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


def test_of_a_gpu_that_is_not_there_every_source_is_missing(opened):
    with opened(nvmlDeviceGetHandleByUUID=fails(pynvml.NVML_ERROR_NOT_FOUND)) as reader:
        sample = reader.read()
    assert {getattr(sample, name) for name in SOURCES} == {Missing(Why.NOT_THERE, "nvmlDeviceGetHandleByUUID: Not Found")}
    assert reader.failures == dict.fromkeys(SOURCES, 1)


def test_without_a_driver_there_is_no_reader(opened):
    with (
        pytest.raises(NoNvmlError, match="NVML does not start: Driver Not Loaded"),
        opened(nvmlInitWithFlags=lambda _flags: pynvml.NVML_ERROR_DRIVER_NOT_LOADED),
    ):
        pass


def test_a_sample_of_nothing():
    sample = unread(7.0, "x" * 300)
    assert sample.at_s == 7.0
    assert {getattr(sample, name) for name in SOURCES} == {Missing(Why.UNREADABLE, "x" * 200)}


def test_the_stand_in_tells_no_traffic_of_its_own():
    assert not {*FIELDS, *COUNTERS} & {*NVLINK, *PCIE}
