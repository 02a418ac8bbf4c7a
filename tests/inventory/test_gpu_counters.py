"""The counters of one GPU through nvidia-ml-py, over a stand-in for the C library."""

import pynvml
import pytest
from inventory.fake_nvml import COUNTERS, FIELDS, EventQueue, fails, fields, install

from gpu_acceptance.inventory.answer import Missing, Why
from gpu_acceptance.inventory.gpu_counters import NAMES, GpuCounters, unread

UUID = "GPU-00000001-0000-4000-8000-000000000001"


def opened(monkeypatch, **changes):
    install(monkeypatch, **changes)
    return GpuCounters(pynvml, UUID)


def test_a_healthy_gpu_tells_all_of_them(monkeypatch):
    reading = opened(monkeypatch).read()
    assert {name for name, _ in reading.values} == set(NAMES)
    assert not [counter for counter, value in reading.values.items() if isinstance(value, Missing)]
    assert sorted(link for name, link in reading.values if name == "nvlink.replays") == list(range(18))
    assert reading.values["nvlink.replays", 17] == FIELDS["NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY"]
    assert reading.values["throttle.sw_power_cap", None] == FIELDS["NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP"]
    assert reading.values["ecc.corrected", None] == COUNTERS["NVML_FI_DEV_ECC_SBE_VOL_TOTAL"]
    assert reading.xids == ()


def test_each_xid_is_told_once(monkeypatch):
    events = EventQueue()
    counters = opened(monkeypatch, nvmlEventSetWait_v2=events.wait)
    assert counters.read().xids == ()
    events.xids += [79, 31]
    assert counters.read().xids == (79, 31)
    assert counters.read().xids == ()


def test_a_gpu_that_reports_without_end_does_not_keep_its_reader(monkeypatch):
    events = EventQueue()
    events.xids += [79] * 5_000
    assert len(opened(monkeypatch, nvmlEventSetWait_v2=events.wait).read().xids) == 1_000


def test_a_gpu_without_nvlink_has_no_links_to_count(monkeypatch):
    without = {name: value for name, value in {**FIELDS, **COUNTERS}.items() if "NVLINK" not in name}
    reading = opened(monkeypatch, nvmlDeviceGetFieldValues=fields(without)).read()
    assert reading.values["nvlink.replays", None] == Missing(Why.NOT_SUPPORTED)
    assert reading.values["pcie.replays", None] == 0


def test_one_field_that_is_not_told_leaves_the_others(monkeypatch):
    without = {name: value for name, value in {**FIELDS, **COUNTERS}.items() if name != "NVML_FI_DEV_PCIE_REPLAY_COUNTER"}
    reading = opened(monkeypatch, nvmlDeviceGetFieldValues=fields(without)).read()
    assert [counter for counter, value in reading.values.items() if isinstance(value, Missing)] == [("pcie.replays", None)]


def test_a_gpu_that_fell_off_the_bus_has_no_counters(monkeypatch):
    counters = opened(monkeypatch)
    install(
        monkeypatch,
        nvmlDeviceGetFieldValues=fails(pynvml.NVML_ERROR_GPU_IS_LOST),
        nvmlEventSetWait_v2=fails(pynvml.NVML_ERROR_GPU_IS_LOST),
    )
    reading = counters.read()
    assert {value.detail for value in reading.values.values()} == {"nvmlDeviceGetFieldValues: GPU is lost"}
    assert reading.xids == Missing(Why.UNREADABLE, "after 0 XIDs, nvmlEventSetWait_v2: GPU is lost")


@pytest.mark.parametrize("function", ["nvmlEventSetCreate", "nvmlDeviceRegisterEvents", "nvmlDeviceGetHandleByUUID"])
def test_events_that_cannot_be_asked_for_are_not_told(monkeypatch, function):
    reading = opened(monkeypatch, **{function: fails(pynvml.NVML_ERROR_NO_PERMISSION)}).read()
    assert reading.xids == Missing(Why.NOT_PERMITTED, f"{function}: Insufficient Permissions")


def test_of_nothing_that_was_read_every_counter_is_missing():
    reading = unread("why")
    assert {name for name, _ in reading.values} == set(NAMES)
    assert {*reading.values.values(), reading.xids} == {Missing(Why.UNREADABLE, "why")}
