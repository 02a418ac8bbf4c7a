"""One sample through nvidia-ml-py, over a stand-in for the C library: what is asked, and what happens where a source has no answer."""

import pynvml
import pytest
from inventory.fake_nvml import COUNTERS, FIELDS, MiB, fails, fields, install, out

from gpu_acceptance.inventory.answer import Missing, Why
from gpu_acceptance.inventory.nvml import NoNvmlError
from gpu_acceptance.telemetry.reader import open_reader
from gpu_acceptance.telemetry.sample import SOURCES, unread

UUID = "GPU-00000001-0000-4000-8000-000000000001"
TRAFFIC = {
    "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX": 1000,  # KiB of one link
    "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX": 2000,
    "NVML_FI_DEV_PCIE_COUNT_TX_BYTES": 77,
    "NVML_FI_DEV_PCIE_COUNT_RX_BYTES": 88,
}
NOT_SUPPORTED = Missing(Why.NOT_SUPPORTED)


@pytest.fixture
def opened(monkeypatch):
    """A reader over a library with these changes."""

    def make(uuid=UUID, reads_traffic=True, **changes):
        install(monkeypatch, **changes)
        return open_reader(uuid, reads_traffic=reads_traffic)

    return make


def test_one_sample_of_a_gpu_in_a_virtual_machine(opened):
    with opened() as reader:
        sample = reader.read()
    assert (sample.sm_clock_mhz, sample.memory_clock_mhz) == (345, 3201)
    assert (sample.gpu_temperature_c, sample.memory_temperature_c, sample.temperature_margin_c) == (34, 35, 53)
    assert (sample.utilisation_percent, sample.memory_used_bytes, sample.event_reasons) == (0, 616 * MiB, 0x1)
    assert sample.power_w == pytest.approx(79.94)  # of this moment, not the mean of 79.78
    assert (sample.nvlink_tx_bytes, sample.nvlink_rx_bytes, sample.pcie_tx_bytes, sample.pcie_rx_bytes) == (NOT_SUPPORTED,) * 4
    assert reader.failures == {}
    assert reader.power_is_instant


def test_traffic_is_bytes_over_all_links(opened):
    with opened(nvmlDeviceGetFieldValues=fields({**FIELDS, **TRAFFIC})) as reader:
        sample = reader.read()
    assert (sample.nvlink_tx_bytes, sample.nvlink_rx_bytes) == (18 * 1000 * 1024, 18 * 2000 * 1024)
    assert (sample.pcie_tx_bytes, sample.pcie_rx_bytes) == (77, 88)


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


def test_without_traffic_its_counters_are_never_asked(opened):
    calls = []
    with opened(reads_traffic=False, nvmlDeviceGetFieldValues=counted(calls, {**FIELDS, **TRAFFIC})) as reader:
        assert reader.read().nvlink_tx_bytes == Missing(Why.NOT_THERE, "traffic was not asked for")
        assert reader.failures == {}
    assert {field for call in calls for field in call} == {pynvml.NVML_FI_DEV_POWER_INSTANT, pynvml.NVML_FI_DEV_MEMORY_TEMP}


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
def test_a_source_that_fails_midway_is_missing_and_counted_and_the_others_go_on(opened, monkeypatch, function, lost):
    with opened() as reader:
        before = reader.read()
        install(monkeypatch, **{function: fails(pynvml.NVML_ERROR_UNKNOWN)})
        sick = [reader.read() for _ in range(3)]
        install(monkeypatch)
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
    assert not {*FIELDS, *COUNTERS} & set(TRAFFIC)
