"""Asks NVML for everything that gpu.py names. Opens no CUDA context, needs no privilege, changes nothing.

What NVML would not answer is `Missing` with NVML's own reason. Source: NVML API reference; field ids and constants from nvidia-ml-py.
"""

from dataclasses import replace
from typing import Any, TypeVar
from uuid import UUID

from gpu_acceptance.inventory.answer import Answer, Missing, Why, then
from gpu_acceptance.inventory.gpu import (
    Clocks,
    Ecc,
    EccCounts,
    Fabric,
    GpuReading,
    GpusReading,
    NvLink,
    Pcie,
    PeerLink,
    Power,
    RetiredPages,
    RowRemapping,
    Temperature,
    Throttling,
    event_reasons_of,
)
from gpu_acceptance.inventory.nvml import Asker, NoNvmlError, library, read_processes, text, word

T = TypeVar("T")
_FABRIC_STATES = {0: "not supported", 1: "not started", 2: "in progress", 3: "completed"}
_FABRIC_HEALTH = {0: "not supported", 1: "healthy", 2: "unhealthy", 3: "limited capacity"}
_REMOTES = {0: "gpu", 1: "npu", 2: "switch", 255: "unknown"}
_P2P = {
    0: "ok",
    1: "chipset not supported",
    2: "GPU not supported",
    3: "topology not supported",
    4: "disabled by regkey",
    5: "not supported",
}
_OF_LINK = (  # in the order of NvLink
    "NVML_FI_DEV_NVLINK_GET_SPEED",
    "NVML_FI_DEV_NVLINK_ERROR_DL_CRC",
    "NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY",
    "NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY",
)
_GRAPHICS, _SM, _MEMORY = 0, 1, 2  # clocks
_COMPUTE_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}
_VIRTUALIZATION = {0: "none", 1: "pass-through", 2: "vGPU", 3: "host vGPU", 4: "host vSGA"}
_RECOVERY = {
    0: "none",
    1: "reset the GPU",
    2: "reboot the node",
    3: "drain P2P",
    4: "drain and reset",
    5: "recover the IMEX domain",
    6: "reset the bus",
    7: "reboot the system",
}
_OTHERS = Missing(Why.NOT_THERE, "only this rank's GPU was asked")


def part(parts: Any, index: int) -> Any:
    """One of several values that came together, or why none came."""
    return parts if isinstance(parts, Missing) else parts[index]


def pcie_of(asker: Asker, handle: object) -> Pcie:
    return Pcie(
        generation=asker.integer("nvmlDeviceGetCurrPcieLinkGeneration", handle),
        width=asker.integer("nvmlDeviceGetCurrPcieLinkWidth", handle),
        max_generation=asker.integer("nvmlDeviceGetMaxPcieLinkGeneration", handle),
        max_width=asker.integer("nvmlDeviceGetMaxPcieLinkWidth", handle),
        max_device_generation=asker.integer("nvmlDeviceGetGpuMaxPcieLinkGeneration", handle),
        num_replays=asker.integer("nvmlDeviceGetPcieReplayCounter", handle),
    )


def nvlinks_of(asker: Asker, handle: object) -> Answer[tuple[NvLink, ...]]:
    count = asker.num_links(handle)
    if isinstance(count, Missing):
        return count
    answers = asker.fields(handle, [(field, link) for link in range(count) for field in _OF_LINK])
    return tuple(_nvlink(asker, handle, link, *answers[link * len(_OF_LINK) : (link + 1) * len(_OF_LINK)]) for link in range(count))


def _nvlink(asker: Asker, handle: object, link: int, *fields: Answer[int]) -> NvLink:
    speed_mb_per_s, num_crc_errors, num_replays, num_recoveries = fields
    return NvLink(
        index=link,
        is_active=asker.flag("nvmlDeviceGetNvLinkState", handle, link),
        speed_mb_per_s=speed_mb_per_s,
        remote=asker.word(_REMOTES, "nvmlDeviceGetNvLinkRemoteDeviceType", handle, link),
        num_crc_errors=num_crc_errors,
        num_replays=num_replays,
        num_recoveries=num_recoveries,
    )


def fabric_of(asker: Asker, handle: object) -> Fabric:
    info = asker.structure("c_nvmlGpuFabricInfo_v3_t", "nvmlDeviceGetGpuFabricInfoV", handle)
    if isinstance(info, Missing):  # an older driver
        info = asker.structure("c_nvmlGpuFabricInfo_v2_t", "nvmlDeviceGetGpuFabricInfoV", handle)
    return Fabric(
        state=then(info, lambda info: word(_FABRIC_STATES, info.state)),
        status=then(info, lambda info: "success" if info.status == 0 else str(asker.pynvml.NVMLError(info.status))),
        clique_id=then(info, lambda info: int(info.cliqueId)),
        cluster_uuid=then(info, lambda info: str(UUID(bytes=bytes(info.clusterUuid)))),
        health=then(info, _health),
    )


def _health(info: Any) -> Answer[str]:
    summary = getattr(info, "healthSummary", 0)
    return word(_FABRIC_HEALTH, summary) if summary else Missing(Why.NOT_SUPPORTED)


def peer_link(asker: Asker, source: int, target: int, handles: list[object]) -> PeerLink:
    read, write, nvlink = (
        asker.word(_P2P, "nvmlDeviceGetP2PStatus", handles[source], handles[target], capability) for capability in (0, 1, 2)
    )
    return PeerLink(source, target, read, write, nvlink)


def clocks_of(asker: Asker, handle: object) -> Clocks:
    return Clocks(
        sm_mhz=asker.integer("nvmlDeviceGetClockInfo", handle, _SM),
        memory_mhz=asker.integer("nvmlDeviceGetClockInfo", handle, _MEMORY),
        max_sm_mhz=asker.integer("nvmlDeviceGetMaxClockInfo", handle, _SM),
        max_memory_mhz=asker.integer("nvmlDeviceGetMaxClockInfo", handle, _MEMORY),
        application_sm_mhz=asker.integer("nvmlDeviceGetApplicationsClock", handle, _GRAPHICS),
        default_application_sm_mhz=asker.integer("nvmlDeviceGetDefaultApplicationsClock", handle, _GRAPHICS),
    )


def power_of(asker: Asker, handle: object) -> Power:
    return Power(
        draw_w=asker.watts("nvmlDeviceGetPowerUsage", handle),
        limit_w=asker.watts("nvmlDeviceGetPowerManagementLimit", handle),
        enforced_limit_w=asker.watts("nvmlDeviceGetEnforcedPowerLimit", handle),
        default_limit_w=asker.watts("nvmlDeviceGetPowerManagementDefaultLimit", handle),
        max_limit_w=asker.ask("nvmlDeviceGetPowerManagementLimitConstraints", handle, make=lambda both: both[1] / 1000),
    )


def throttling_of(asker: Asker, handle: object) -> Throttling:
    return Throttling(
        reasons=asker.ask("nvmlDeviceGetCurrentClocksEventReasons", handle, make=event_reasons_of),
        sw_power_cap_ns=asker.field(handle, "NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP"),
        sw_thermal_ns=asker.field(handle, "NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN"),
        hw_thermal_ns=asker.field(handle, "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN"),
        hw_power_brake_ns=asker.field(handle, "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN"),
        sync_boost_ns=asker.field(handle, "NVML_FI_DEV_CLOCKS_EVENT_REASON_SYNC_BOOST"),
    )


def temperature_of(asker: Asker, handle: object) -> Temperature:
    return Temperature(
        gpu_c=asker.integer("nvmlDeviceGetTemperature", handle, 0),
        memory_c=asker.field(handle, "NVML_FI_DEV_MEMORY_TEMP"),
        margin_c=asker.integer("nvmlDeviceGetMarginTemperature", handle),
    )


def ecc_of(asker: Asker, handle: object) -> Ecc:
    mode = asker.flags("nvmlDeviceGetEccMode", handle)
    sram = asker.structure("c_nvmlEccSramErrorStatus_v1_t", "nvmlDeviceGetSramEccErrorStatus", handle)
    return Ecc(
        is_on=part(mode, 0),
        is_on_after_reboot=part(mode, 1),
        volatile=_ecc_counts(asker, handle, 0),
        aggregate=_ecc_counts(asker, handle, 1),
        sram_threshold_exceeded=then(sram, lambda status: bool(status.bThresholdExceeded)),
    )


def _ecc_counts(asker: Asker, handle: object, counter: int) -> EccCounts:
    """`counter`: 0 volatile, 1 aggregate. Error types: 0 corrected, 1 uncorrected. Places: 7 SRAM, 2 DRAM (NVML's device memory)."""
    sram_corrected, sram_uncorrected, dram_corrected, dram_uncorrected = (
        asker.integer("nvmlDeviceGetMemoryErrorCounter", handle, kind, counter, place) for place in (7, 2) for kind in (0, 1)
    )
    return EccCounts(sram_corrected, sram_uncorrected, dram_corrected, dram_uncorrected)


def remapping_of(asker: Asker, handle: object) -> RowRemapping:
    rows = asker.ask("nvmlDeviceGetRemappedRows", handle, make=lambda four: (int(four[0]), int(four[1]), bool(four[2]), bool(four[3])))
    histogram = asker.ask(
        "nvmlDeviceGetRowRemapperHistogram",
        handle,
        make=lambda banks: tuple(int(getattr(banks, name)) for name in ("max", "high", "partial", "low", "none")),
    )
    return RowRemapping(
        num_corrected_rows=part(rows, 0),
        num_uncorrected_rows=part(rows, 1),
        is_pending=part(rows, 2),
        has_failed=part(rows, 3),
        num_banks_full=part(histogram, 0),
        num_banks_high=part(histogram, 1),
        num_banks_partial=part(histogram, 2),
        num_banks_low=part(histogram, 3),
        num_banks_none=part(histogram, 4),
    )


def retired_pages_of(asker: Asker, handle: object) -> RetiredPages:
    return RetiredPages(  # causes: 0 several single-bit errors, 1 one double-bit error
        num_single_bit=asker.ask("nvmlDeviceGetRetiredPages", handle, 0, make=len),
        num_double_bit=asker.ask("nvmlDeviceGetRetiredPages", handle, 1, make=len),
        is_pending=asker.flag("nvmlDeviceGetRetiredPagesPendingStatus", handle),
    )


def read(uuid: str = "") -> GpusReading:
    """All GPUs of this node. With a `uuid` all of that one and its peers, of the others their names alone: 8 ranks ask at once."""
    try:
        with library() as pynvml:
            return _read(Asker(pynvml), uuid)
    except NoNvmlError as error:
        return not_read(Missing(Why.NOT_THERE, str(error)))


def read_pcie(uuid: str) -> Pcie:
    """The link of one GPU alone: it takes no longer than a copy that keeps the link awake."""
    try:
        with library() as pynvml:
            asker = Asker(pynvml)
            return pcie_of(asker, asker.ask("nvmlDeviceGetHandleByUUID", uuid, make=lambda handle: handle))
    except NoNvmlError as error:
        missing = Missing(Why.NOT_THERE, str(error))
        return Pcie(missing, missing, missing, missing, missing, missing)


def not_read(why: Missing) -> GpusReading:
    return GpusReading(why, why, why, ())


def _read(asker: Asker, only: str) -> GpusReading:
    count = asker.integer("nvmlDeviceGetCount")
    driver = asker.text("nvmlSystemGetDriverVersion")
    cuda = asker.ask("nvmlSystemGetCudaDriverVersion_v2", make=lambda version: f"{version // 1000}.{version % 1000 // 10}")
    if isinstance(count, Missing):
        return GpusReading(driver, cuda, count, ())
    handles = [asker.ask("nvmlDeviceGetHandleByIndex", index, make=lambda handle: handle) for index in range(count)]
    asked = [not only or asker.text("nvmlDeviceGetUUID", handle) == only for handle in handles]
    gpus = tuple((_gpu if asked[index] else _named)(asker, index, handle) for index, handle in enumerate(handles))
    pairs = [(source, target) for source in range(count) for target in range(count) if source != target and asked[source]]
    return GpusReading(driver, cuda, gpus, tuple(peer_link(asker, source, target, handles) for source, target in pairs))


def _gpu(asker: Asker, index: int, handle: object) -> GpuReading:
    memory = asker.ask("nvmlDeviceGetMemoryInfo", handle, make=lambda info: (int(info.total), int(info.used), int(info.free)))
    mig = asker.flags("nvmlDeviceGetMigMode", handle)
    repair = asker.flags("nvmlDeviceGetRepairStatus", handle)
    return GpuReading(
        index=index,
        name=asker.text("nvmlDeviceGetName", handle),
        uuid=asker.text("nvmlDeviceGetUUID", handle),
        serial=asker.text("nvmlDeviceGetSerial", handle),
        part_number=asker.text("nvmlDeviceGetBoardPartNumber", handle),
        vbios=asker.text("nvmlDeviceGetVbiosVersion", handle),
        inforom=asker.text("nvmlDeviceGetInforomImageVersion", handle),
        gsp_firmware=asker.text("nvmlDeviceGetGspFirmwareVersion", handle),
        pci_bus_id=_pci_bus_id(asker, handle),
        module_id=asker.integer("nvmlDeviceGetModuleId", handle),
        virtualization=asker.word(_VIRTUALIZATION, "nvmlDeviceGetVirtualizationMode", handle),
        total_bytes=part(memory, 0),
        used_bytes=part(memory, 1),
        free_bytes=part(memory, 2),
        mig_is_on=part(mig, 0),
        mig_is_on_after_reset=part(mig, 1),
        persistence_is_on=asker.flag("nvmlDeviceGetPersistenceMode", handle),
        compute_mode=asker.word(_COMPUTE_MODES, "nvmlDeviceGetComputeMode", handle),
        recovery_action=then(asker.field(handle, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION"), lambda value: word(_RECOVERY, value)),
        channel_repair_is_pending=part(repair, 0),
        tpc_repair_is_pending=part(repair, 1),
        has_unrepairable_memory=asker.flag("nvmlDeviceGetUnrepairableMemoryFlag_v1", handle),
        ecc=ecc_of(asker, handle),
        remapping=remapping_of(asker, handle),
        retired_pages=retired_pages_of(asker, handle),
        clocks=clocks_of(asker, handle),
        power=power_of(asker, handle),
        throttling=throttling_of(asker, handle),
        temperature=temperature_of(asker, handle),
        pcie=pcie_of(asker, handle),
        nvlinks=nvlinks_of(asker, handle),
        fabric=fabric_of(asker, handle),
        processes=read_processes(asker, handle),
    )


def _named(asker: Asker, index: int, handle: object) -> GpuReading:
    """Of a GPU that another rank asks."""
    return replace(
        _gpu(asker, index, _OTHERS),
        name=asker.text("nvmlDeviceGetName", handle),
        uuid=asker.text("nvmlDeviceGetUUID", handle),
        serial=asker.text("nvmlDeviceGetSerial", handle),
        pci_bus_id=_pci_bus_id(asker, handle),
    )


def _pci_bus_id(asker: Asker, handle: object) -> Answer[str]:
    return asker.ask("nvmlDeviceGetPciInfo", handle, make=lambda info: text(info.busId))
