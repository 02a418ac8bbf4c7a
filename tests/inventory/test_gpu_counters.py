"""The counters of one GPU through nvidia-ml-py, over a stand-in for the C library."""

import threading

import pynvml
import pytest
from inventory.fake_nvml import COUNTERS, FIELDS, EventQueue, fails, fields, install

from gpu_acceptance.inventory.answer import Missing, Why
from gpu_acceptance.inventory.counters import GPU_NAMES, GpuCounters, unread
from gpu_acceptance.inventory.nvml import Asker

UUID = "GPU-00000001-0000-4000-8000-000000000001"


def opened(monkeypatch, **changes):
    install(monkeypatch, **changes)
    return GpuCounters(pynvml, UUID)


def read(monkeypatch, each_link=False, **changes):
    return opened(monkeypatch, **changes).read(each_link=each_link)


def test_a_healthy_gpu_tells_all_of_them(monkeypatch):
    reading = read(monkeypatch)
    assert {name for name, _ in reading.values} == set(GPU_NAMES)
    assert not [counter for counter, value in reading.values.items() if isinstance(value, Missing)]
    assert links_of(reading) == [f"link {number}" for number in range(18)]
    assert reading.values["nvlink.replays", "link 17"] == FIELDS["NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY"]
    assert reading.values["nvlink.replays", ""] == 18 * FIELDS["NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY"]
    assert reading.values["throttle.sw_power_cap", ""] == FIELDS["NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP"]
    assert reading.values["ecc.corrected", ""] == COUNTERS["NVML_FI_DEV_ECC_SBE_VOL_TOTAL"]
    assert reading.xids == ()


def links_of(reading):
    return [part for name, part in reading.values if name == "nvlink.replays" and part]


def test_links_are_read_again_where_their_sum_has_changed_or_somebody_asks(monkeypatch):
    counters = opened(monkeypatch)
    assert links_of(counters.read(each_link=False)) == [f"link {number}" for number in range(18)]
    assert links_of(counters.read(each_link=False)) == []
    assert links_of(counters.read(each_link=True)) == [f"link {number}" for number in range(18)]
    risen = {("NVML_FI_DEV_NVLINK_ERROR_DL_CRC", 0xFFFFFFFF): 1, ("NVML_FI_DEV_NVLINK_ERROR_DL_CRC", 7): 1}
    install(monkeypatch, nvmlDeviceGetFieldValues=fields({**FIELDS, **COUNTERS}, risen))
    reading = counters.read(each_link=False)
    assert [key for key, value in reading.values.items() if key[0] == "nvlink.crc_errors" and value] == [
        ("nvlink.crc_errors", "link 7"),
        ("nvlink.crc_errors", ""),
    ]
    assert links_of(counters.read(each_link=False)) == []


def test_each_xid_is_told_once(monkeypatch):
    events = EventQueue()
    counters = opened(monkeypatch, nvmlEventSetWait_v2=events.wait)
    assert counters.read(each_link=False).xids == ()
    events.xids += [79, 31]
    assert counters.read(each_link=False).xids == (79, 31)
    assert counters.read(each_link=False).xids == ()


def test_a_gpu_that_reports_without_end_does_not_keep_its_reader(monkeypatch):
    events = EventQueue()
    events.xids += [79] * 5_000
    assert len(read(monkeypatch, nvmlEventSetWait_v2=events.wait).xids) == 1_000


def test_a_gpu_without_nvlink_has_no_links_to_count(monkeypatch):
    without = {name: value for name, value in {**FIELDS, **COUNTERS}.items() if "NVLINK" not in name}
    reading = read(monkeypatch, nvmlDeviceGetFieldValues=fields(without))
    assert reading.values["nvlink.replays", ""] == Missing(Why.NOT_SUPPORTED)
    assert reading.values["pcie.replays", ""] == 0


class Busy:
    """Fields of which those of NVLinks are not supported the next `num_times` times."""

    def __init__(self):
        self.num_times, self.num_calls = 0, 0

    def fields(self, device, count, array):
        self.num_calls += 1
        is_busy = self.num_times > 0
        self.num_times -= is_busy
        known = {name: value for name, value in {**FIELDS, **COUNTERS}.items() if not (is_busy and "NVLINK_ERROR" in name)}
        return fields(known)(device, count, array)


def not_told(reading):
    return {name for (name, _), value in reading.values.items() if isinstance(value, Missing)}


def test_links_that_are_not_told_for_a_while_are_not_known_and_later_they_are_again(monkeypatch):
    busy = Busy()
    counters = opened(monkeypatch, nvmlDeviceGetFieldValues=busy.fields)
    assert not_told(counters.read(each_link=False)) == set()
    busy.num_times = 1000
    assert not_told(counters.read(each_link=False)) == {"nvlink.crc_errors", "nvlink.replays", "nvlink.recoveries"}
    busy.num_times = 0
    assert not_told(counters.read(each_link=False)) == set()


def test_what_a_gpu_never_tells_of_its_links_is_asked_no_more(monkeypatch):
    busy = Busy()
    counters = opened(monkeypatch, nvmlDeviceGetFieldValues=busy.fields)
    busy.num_times = 1000
    reading = counters.read(each_link=False)
    assert not_told(reading) == {"nvlink.crc_errors", "nvlink.replays", "nvlink.recoveries"}
    assert reading.values["nvlink.replays", "link 7"] == Missing(Why.NOT_SUPPORTED)
    busy.num_calls = 0
    assert counters.read(each_link=False).values == reading.values
    assert busy.num_calls == 1  # for what is no link's


def test_two_threads_never_ask_for_fields_at_once(monkeypatch):
    """NVML says that NVLink errors are not supported while another thread reads the traffic."""
    inside, together = [], []

    def slow(device, count, array):
        inside.append(1)
        together.append(len(inside))
        threading.Event().wait(0.002)
        inside.pop()
        return fields({**FIELDS, **COUNTERS})(device, count, array)

    one, other = opened(monkeypatch, nvmlDeviceGetFieldValues=slow), GpuCounters(pynvml, UUID)
    threads = [threading.Thread(target=lambda counters=counters: counters.read(each_link=True)) for counters in (one, other) * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(together) == {1}


def test_one_field_that_is_not_told_leaves_the_others(monkeypatch):
    without = {name: value for name, value in {**FIELDS, **COUNTERS}.items() if name != "NVML_FI_DEV_PCIE_REPLAY_COUNTER"}
    reading = read(monkeypatch, nvmlDeviceGetFieldValues=fields(without))
    assert [counter for counter, value in reading.values.items() if isinstance(value, Missing)] == [("pcie.replays", "")]


def test_a_gpu_that_fell_off_the_bus_has_no_counters(monkeypatch):
    counters = opened(monkeypatch)
    install(
        monkeypatch,
        nvmlDeviceGetFieldValues=fails(pynvml.NVML_ERROR_GPU_IS_LOST),
        nvmlEventSetWait_v2=fails(pynvml.NVML_ERROR_GPU_IS_LOST),
    )
    reading = counters.read(each_link=False)
    assert {value.detail for value in reading.values.values()} == {"nvmlDeviceGetFieldValues: GPU is lost"}
    assert reading.xids == Missing(Why.UNREADABLE, "after 0 XIDs, nvmlEventSetWait_v2: GPU is lost")


@pytest.mark.parametrize("function", ["nvmlEventSetCreate", "nvmlDeviceRegisterEvents", "nvmlDeviceGetHandleByUUID"])
def test_events_that_cannot_be_asked_for_are_not_told(monkeypatch, function):
    reading = read(monkeypatch, **{function: fails(pynvml.NVML_ERROR_NO_PERMISSION)})
    assert reading.xids == Missing(Why.NOT_PERMITTED, f"{function}: Insufficient Permissions")


def test_of_nothing_that_was_read_every_counter_is_missing():
    reading = unread("why")
    assert {name for name, _ in reading.values} == set(GPU_NAMES)
    assert {*reading.values.values(), reading.xids} == {Missing(Why.UNREADABLE, "why")}


@pytest.mark.parametrize("number", [65, 2**32])
def test_more_links_than_any_gpu_has_are_no_number(monkeypatch, number):
    told = fields({**FIELDS, **COUNTERS, "NVML_FI_DEV_NVLINK_LINK_COUNT": number})
    install(monkeypatch, nvmlDeviceGetFieldValues=told)
    links = Asker(pynvml).num_links(pynvml.nvmlDeviceGetHandleByUUID(UUID))
    assert links == Missing(Why.UNREADABLE, f"NVML_FI_DEV_NVLINK_LINK_COUNT: {number} links, more than any GPU has")
    assert links_of(read(monkeypatch, nvmlDeviceGetFieldValues=told)) == []


def test_a_value_of_a_type_that_nobody_knows_is_no_value(monkeypatch):
    def odd(device, count, array):
        fields(FIELDS)(device, count, array)
        array._obj[0].valueType = 99
        return 0

    install(monkeypatch, nvmlDeviceGetFieldValues=odd)
    value = Asker(pynvml).field(pynvml.nvmlDeviceGetHandleByUUID(UUID), "NVML_FI_DEV_MEMORY_TEMP")
    assert value == Missing(Why.UNREADABLE, "NVML_FI_DEV_MEMORY_TEMP: a value of type 99")
