"""Facts of GPUs through nvidia-ml-py, over a stand-in for the C library."""

import dataclasses

import pynvml
import pytest
from inventory.fake_nvml import FIELDS, UUIDS, MiB, by, driver_r595, fails, fields, fill, install, out, processes

from gpu_acceptance.inventory import gpu, gpu_health, gpu_reader
from gpu_acceptance.inventory.answer import Missing, Why
from gpu_acceptance.inventory.gpu import EVENT_REASONS, GpuProcess, NvLink, PeerLink, event_reasons_of

UNSUPPORTED = Missing(Why.NOT_SUPPORTED)


def missing_in(value, path=""):
    """Every answer that is missing, by its path."""
    if isinstance(value, Missing):
        return {path: value.missing}
    if dataclasses.is_dataclass(value):
        parts = ((f"{path}.{field.name}", getattr(value, field.name)) for field in dataclasses.fields(value))
    elif isinstance(value, tuple):
        parts = ((f"{path}[{index}]", one) for index, one in enumerate(value))
    else:
        return {}
    return {key: why for name, part in parts for key, why in missing_in(part, name).items()}


def read_gpu(monkeypatch, **changes):
    install(monkeypatch, **changes)
    return gpu_reader.read().gpus[0]


def test_a_healthy_h200_answers_all_but_what_it_does_not_have(monkeypatch):
    install(monkeypatch)
    reading = gpu_reader.read()
    assert (reading.driver, reading.cuda, len(reading.gpus)) == ("580.159.04", "13.0", 2)
    assert missing_in(reading.gpus[0]) == {
        ".retired_pages.num_single_bit": Why.NOT_SUPPORTED,
        ".retired_pages.num_double_bit": Why.NOT_SUPPORTED,
        ".retired_pages.is_pending": Why.NOT_SUPPORTED,
        ".fabric.health": Why.NOT_SUPPORTED,
    }


def test_the_values_are_those_of_nvml(monkeypatch):
    found = read_gpu(monkeypatch)
    assert (found.name, found.serial, found.pci_bus_id, found.module_id) == ("NVIDIA H200", "1653924100001", "00000000:00:06.0", 2)
    assert (found.total_bytes, found.used_bytes, found.free_bytes) == (143_771 * MiB, 616 * MiB, 143_155 * MiB)
    assert (found.ecc.is_on, found.ecc.aggregate.dram_uncorrected, found.ecc.sram_threshold_exceeded) == (True, 0, False)
    assert (found.remapping.is_pending, found.remapping.num_banks_full) == (False, 3072)
    assert (found.clocks.sm_mhz, found.clocks.max_sm_mhz, found.clocks.max_memory_mhz) == (345, 1980, 3201)
    assert (found.power.draw_w, found.power.limit_w, found.power.default_limit_w, found.power.max_limit_w) == (79.78, 700.0, 700.0, 700.0)
    assert (found.throttling.reasons, found.throttling.sw_power_cap_ns) == (("gpu idle",), 1_500_000_000)
    assert (found.temperature.gpu_c, found.temperature.memory_c, found.temperature.margin_c) == (34, 35, 53)
    assert (found.pcie.generation, found.pcie.width, found.pcie.num_replays) == (5, 16, 0)
    assert found.nvlinks[17] == NvLink(17, True, 26_562, "switch", 0, 2, 0)
    assert (found.fabric.state, found.fabric.status, found.fabric.cluster_uuid) == (
        "completed",
        "success",
        "00000000-0000-0000-0000-000000000000",
    )
    assert (found.virtualization, found.compute_mode, found.recovery_action, found.processes) == ("pass-through", "default", "none", ())


def test_every_counter_of_memory_errors_is_its_own(monkeypatch):
    """Error type, counter, place: as nvml.h numbers them."""
    counts = {(kind, counter, place): 100 * kind + 10 * counter + place for kind in (0, 1) for counter in (0, 1) for place in (2, 7)}
    ecc = read_gpu(monkeypatch, nvmlDeviceGetMemoryErrorCounter=by(*counts.items())).ecc
    assert dataclasses.astuple(ecc.volatile) == (7, 107, 2, 102)  # sram corrected, uncorrected; dram corrected, uncorrected
    assert dataclasses.astuple(ecc.aggregate) == (17, 117, 12, 112)


def test_numbers_of_enumerations_are_words(monkeypatch):
    assert read_gpu(monkeypatch, nvmlDeviceGetComputeMode=out(9)).compute_mode == "unknown (9)"
    recovery = fields({**FIELDS, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION": 1})
    found = read_gpu(monkeypatch, nvmlDeviceGetFieldValues=recovery, nvmlDeviceGetCurrentClocksEventReasons=out(0x1044))
    assert found.recovery_action == "reset the GPU"
    assert found.throttling.reasons == ("sw power cap", "hw thermal slowdown", "bits 0x1000")


def test_processes_come_with_their_memory(monkeypatch):
    unknown = pynvml.NVML_VALUE_NOT_AVAILABLE_ulonglong.value
    found = read_gpu(monkeypatch, nvmlDeviceGetComputeRunningProcesses_v3=processes((900, 3 * MiB), (17, unknown)))
    assert found.processes == (GpuProcess(17, UNSUPPORTED), GpuProcess(900, 3 * MiB))


def test_peers_are_asked_in_both_directions(monkeypatch):
    install(monkeypatch, nvmlDeviceGetP2PStatus=out(3))
    text = "topology not supported"
    assert gpu_reader.read().peers == (PeerLink(0, 1, text, text, text), PeerLink(1, 0, text, text, text))


_NOT_TOLD = {3, 13, 22, 24, 25, 26, 30}  # this driver or board does not tell it, or no longer
_NOT_PERMITTED, _NOT_THERE = {4, 17}, {6, 21, 28}
_CODES = sorted(value for name, value in vars(pynvml).items() if name.startswith("NVML_ERROR_"))


@pytest.mark.parametrize("code", [*_CODES, 31, 998])
def test_an_error_of_nvml_is_a_reason_and_leaves_the_other_values(monkeypatch, code):
    """Every code of nvml.h, and two that nobody knows yet, through a function and through a field."""
    whys = {Why.NOT_SUPPORTED: _NOT_TOLD, Why.NOT_PERMITTED: _NOT_PERMITTED, Why.NOT_THERE: _NOT_THERE}
    why = next((one for one, codes in whys.items() if code in codes), Why.UNREADABLE)
    refused = fields(FIELDS, refused={"NVML_FI_DEV_MEMORY_TEMP": code})
    found = read_gpu(monkeypatch, nvmlDeviceGetPcieReplayCounter=fails(code), nvmlDeviceGetFieldValues=refused)
    words = "" if code == pynvml.NVML_ERROR_NOT_SUPPORTED else str(pynvml.NVMLError(code))
    assert (found.pcie.num_replays, found.pcie.width) == (Missing(why, words and f"nvmlDeviceGetPcieReplayCounter: {words}"), 16)
    assert found.temperature.memory_c == Missing(why, words and f"NVML_FI_DEV_MEMORY_TEMP: {words}")
    assert found.recovery_action == "none"


def test_the_word_of_a_driver_that_dropped_a_function_is_told(monkeypatch):
    """A name that an older nvidia-ml-py does not know: the driver has words for its own codes."""
    monkeypatch.delattr(pynvml, "NVML_ERROR_DEPRECATED")
    monkeypatch.setattr(pynvml.NVMLError, "_errcode_to_string", dict(pynvml.NVMLError._errcode_to_string))
    words = "nvmlDeviceGetPcieReplayCounter: Requested functionality has been deprecated"
    found = read_gpu(monkeypatch, nvmlDeviceGetPcieReplayCounter=fails(26))
    assert found.pcie.num_replays == Missing(Why.NOT_SUPPORTED, words)


def test_a_function_that_has_another_name_on_this_driver_is_asked_by_that(monkeypatch):
    found = read_gpu(monkeypatch, **driver_r595())
    assert (found.temperature.gpu_c, found.temperature.margin_c) == (34, 53)
    assert {path for path, why in missing_in(found).items() if why is Why.NOT_SUPPORTED and path.startswith(".clocks")} == {
        ".clocks.application_sm_mhz",
        ".clocks.default_application_sm_mhz",
    }
    old = {"nvmlDeviceGetCurrentClocksEventReasons": None, "nvmlDeviceGetCurrentClocksThrottleReasons": out(0x1)}
    assert read_gpu(monkeypatch, **old).throttling.reasons == ("gpu idle",)


@pytest.mark.parametrize(
    ("clock_mhz", "reasons", "lowered"), [(345, 0x1, 0), (1980, 0, 0), (1200, 0, 780), (1200, 0x2, 780), (1200, 0x4, 0)]
)
def test_a_locked_clock_is_seen_without_application_clocks(monkeypatch, clock_mhz, reasons, lowered):
    clocks = by(((1,), clock_mhz), ((2,), 3201))
    locked = {"nvmlDeviceGetClockInfo": clocks, "nvmlDeviceGetCurrentClocksEventReasons": out(reasons)}
    found = read_gpu(monkeypatch, **driver_r595(), **locked)
    values = {metric: value for metric, value, *_ in gpu_health.clocks(found)}
    assert values == {"gpu_health.clocks.max_sm": 1980, "gpu_health.clocks.max_memory": 3201, "gpu_health.clocks.lowered": lowered}


def test_values_that_come_together_are_asked_once_and_missing_together(monkeypatch):
    asked = []

    def unknown(device, *_modes):
        asked.append(device)
        return pynvml.NVML_ERROR_UNKNOWN

    gone = missing_in(read_gpu(monkeypatch, nvmlDeviceGetMigMode=unknown))
    assert len(asked) == 2  # GPUs
    assert [path for path, why in gone.items() if why is Why.UNREADABLE] == [".mig_is_on", ".mig_is_on_after_reset"]


def test_functions_that_an_older_driver_lacks_are_not_supported(monkeypatch):
    old = dict.fromkeys(("nvmlDeviceGetRepairStatus", "nvmlDeviceGetUnrepairableMemoryFlag_v1", "nvmlDeviceGetMarginTemperature"))
    found = read_gpu(monkeypatch, **old)
    lacking = (found.channel_repair_is_pending, found.has_unrepairable_memory, found.temperature.margin_c)
    assert {one.missing for one in lacking} == {Why.NOT_SUPPORTED}
    assert found.temperature.margin_c.detail == "nvmlDeviceGetMarginTemperature: Function Not Found"


def test_functions_that_an_older_nvidia_ml_py_lacks_are_not_supported(monkeypatch):
    for name in ("nvmlDeviceGetRepairStatus", "NVML_FI_DEV_MEMORY_TEMP", "c_nvmlEccSramErrorStatus_v1_t"):
        monkeypatch.delattr(pynvml, name)
    found = read_gpu(monkeypatch)
    assert found.tpc_repair_is_pending == Missing(Why.NOT_SUPPORTED, "this nvidia-ml-py has no nvmlDeviceGetRepairStatus")
    assert found.temperature.memory_c == Missing(Why.NOT_SUPPORTED, "this nvidia-ml-py has no NVML_FI_DEV_MEMORY_TEMP")
    assert found.ecc.sram_threshold_exceeded == Missing(Why.NOT_SUPPORTED, "this nvidia-ml-py has no c_nvmlEccSramErrorStatus_v1_t")


def test_a_gpu_that_does_not_answer_at_all_is_listed_with_nothing(monkeypatch):
    install(monkeypatch, nvmlDeviceGetHandleByIndex_v2=fails(pynvml.NVML_ERROR_GPU_IS_LOST))
    reading = gpu_reader.read()
    assert len(reading.gpus) == 2
    found = reading.gpus[1]
    assert found.index == 1
    assert found.name == Missing(Why.UNREADABLE, "nvmlDeviceGetHandleByIndex: GPU is lost")
    assert set(missing_in(found).values()) == {Why.UNREADABLE}


def test_without_nvml_everything_is_not_there(monkeypatch):
    install(monkeypatch, nvmlInitWithFlags=lambda _flags: pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
    reading = gpu_reader.read()
    assert reading.gpus == reading.driver == Missing(Why.NOT_THERE, "NVML does not start: Driver Not Loaded")


def test_an_unreadable_number_of_gpus_is_missing(monkeypatch):
    install(monkeypatch, nvmlDeviceGetCount_v2=fails(pynvml.NVML_ERROR_UNKNOWN))
    reading = gpu_reader.read()
    assert reading.gpus == Missing(Why.UNREADABLE, "nvmlDeviceGetCount: Unknown Error")
    assert reading.driver == "580.159.04"


def test_a_fabric_that_is_not_ready_says_so(monkeypatch):
    info = fill(state=2, status=pynvml.NVML_ERROR_NOT_READY, cliqueId=0, healthMask=0, healthSummary=2)
    fabric = read_gpu(monkeypatch, nvmlDeviceGetGpuFabricInfoV=info).fabric
    assert (fabric.state, fabric.health) == ("in progress", "unhealthy")
    assert fabric.status != "success"


def test_a_gpu_without_a_fabric_tells_nothing_of_one(monkeypatch):
    """As on a virtual machine with one GPU of a larger board (driver 580): neither that it is set up nor that it is not."""
    info = fill(state=0, status=0, cliqueId=0, healthMask=0, healthSummary=0)
    fabric = read_gpu(monkeypatch, nvmlDeviceGetGpuFabricInfoV=info).fabric
    assert {fabric.state, fabric.status, fabric.health} == {Missing(Why.NOT_SUPPORTED, "NVML knows no fabric here")}


@pytest.mark.parametrize(
    ("told", "health"),
    [
        ({"healthSummary": 1}, "healthy"),
        ({"healthSummary": 2, "healthMask": 0b010101}, "unhealthy, degraded bandwidth, route recovery, route unhealthy"),
        ({"healthSummary": 3}, "limited capacity"),
        ({"healthSummary": 9}, "unknown (9)"),
        ({"healthSummary": 1, "healthMask": 0b01}, "degraded bandwidth"),
        ({"healthSummary": 0, "healthMask": 0b10101010}, "healthy"),
        ({"healthSummary": 0, "healthMask": 0b01000000}, "access timeout recovery"),
        ({"healthSummary": 0, "healthMask": 0x100}, "healthy"),
        ({"healthSummary": 0, "healthMask": 0x500}, "incorrect configuration (5)"),
        ({"healthSummary": 0, "healthMask": 0}, "not supported"),
    ],
)
def test_the_health_in_the_fabric_is_a_figure_whichever_part_of_it_tells(told, health, monkeypatch):
    info = fill(**{"state": 3, "status": 0, "cliqueId": 0, "healthMask": 0, **told})
    found = read_gpu(monkeypatch, nvmlDeviceGetGpuFabricInfoV=info)
    assert {metric: value for metric, value, _ in gpu_health.fabric(found)} == {
        "gpu_health.fabric.state": "completed",
        "gpu_health.fabric.status": "success",
        "gpu_health.fabric.health": health,
    }


def test_only_the_names_of_other_ranks_gpus_are_read(monkeypatch):
    install(monkeypatch)
    whole, own = gpu_reader.read(), gpu_reader.read(UUIDS[1])
    assert own.gpus[1] == whole.gpus[1]
    other = own.gpus[0]
    assert [other.uuid, other.serial, other.pci_bus_id] == [UUIDS[0], "1653924100001", "00000000:00:06.0"]
    assert other.ecc.is_on == Missing(Why.NOT_THERE, "only this rank's GPU was asked")
    assert own.peers == (PeerLink(1, 0, "ok", "ok", "ok"),)


def test_the_link_of_one_gpu_is_read_alone(monkeypatch):
    install(monkeypatch)
    assert gpu_reader.read_pcie(UUIDS[1]) == gpu_reader.read().gpus[1].pcie
    install(monkeypatch, nvmlInitWithFlags=fails(pynvml.NVML_ERROR_DRIVER_NOT_LOADED))
    assert gpu_reader.read_pcie(UUIDS[1]).generation == Missing(Why.NOT_THERE, "NVML does not start: Driver Not Loaded")


def test_the_clocks_of_one_gpu_are_read_alone_with_what_holds_them_down(monkeypatch):
    install(monkeypatch)
    whole = gpu_reader.read().gpus[1]
    assert gpu_reader.read_clocks(UUIDS[1]) == (whole.clocks, whole.throttling.reasons)
    install(monkeypatch, nvmlInitWithFlags=fails(pynvml.NVML_ERROR_DRIVER_NOT_LOADED))
    gone = Missing(Why.NOT_THERE, "NVML does not start: Driver Not Loaded")
    clocks, reasons = gpu_reader.read_clocks(UUIDS[1])
    assert {*vars(clocks).values(), reasons} == {gone}


def test_the_bits_of_event_reasons_are_those_of_nvidia_ml_py():
    names = ("GpuIdle", "ApplicationsClocksSetting", "SwPowerCap", "HwSlowdown", "SyncBoost", "SwThermalSlowdown", "HwThermalSlowdown")
    names += ("HwPowerBrakeSlowdown", "DisplayClockSetting")
    bits = [getattr(pynvml, f"nvmlClocksEventReason{name}") for name in names]
    assert list(EVENT_REASONS) == bits
    named = [gpu.GPU_IDLE, gpu.SW_POWER_CAP, gpu.HW_SLOWDOWN, gpu.SW_THERMAL, gpu.HW_THERMAL, gpu.HW_POWER_BRAKE]
    assert [event_reasons_of(bit) for bit in named] == [
        *(("gpu idle",), ("sw power cap",), ("hw slowdown",)),
        *(("sw thermal slowdown",), ("hw thermal slowdown",), ("hw power brake slowdown",)),
    ]
    assert event_reasons_of(0) == ()
    assert event_reasons_of(0x1 | 0x600) == ("gpu idle", "bits 0x600")
