"""Facts of a GPU as NVML gives them, each with the call that gives it; a missing answer has its reason."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from operator import attrgetter, itemgetter
from typing import Annotated, Any

from gpu_acceptance.base.model import Index, Model
from gpu_acceptance.inventory.answer import Answer, Missing, Why

_GRAPHICS, _SM, _MEMORY = 0, 1, 2  # clocks
GPU_IDLE, SW_POWER_CAP, HW_SLOWDOWN, SW_THERMAL, HW_THERMAL, HW_POWER_BRAKE = 0x1, 0x4, 0x8, 0x20, 0x40, 0x80
EVENT_REASONS = {
    GPU_IDLE: "gpu idle",
    0x2: "application clocks setting",
    SW_POWER_CAP: "sw power cap",  # healthy under load: the GPU works at its power limit
    HW_SLOWDOWN: "hw slowdown",
    0x10: "sync boost",
    SW_THERMAL: "sw thermal slowdown",
    HW_THERMAL: "hw thermal slowdown",
    HW_POWER_BRAKE: "hw power brake slowdown",
    0x100: "display clock setting",
}
_COMPUTE_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}
_VIRTUALIZATION = {0: "none", 1: "pass-through", 2: "vGPU", 3: "host vGPU", 4: "host vSGA"}
_NVLINK_ENDS = {0: "gpu", 1: "npu", 2: "switch"}
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


def event_reasons_of(mask: int) -> tuple[str, ...]:
    """Return the reasons that are set; unknown bits of a later NVML come last, as `bits 0x200`."""
    known = [name for bit, name in EVENT_REASONS.items() if mask & bit]
    rest = mask & ~sum(EVENT_REASONS)
    return (*known, *([f"bits {rest:#x}"] if rest else []))


def text(value: str | bytes) -> str:
    """Return a text of NVML, which some versions of nvidia-ml-py give as bytes."""
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def watts(milliwatts: float) -> float:
    """Return NVML's milliwatts in watts."""
    return milliwatts / 1000


def word(words: Mapping[int, str], value: int) -> str:
    """Return the word for a number of an enumeration; `unknown (9)` for one of a later NVML."""
    return words.get(int(value), f"unknown ({value})")


def nvlink_end(kind: int) -> str:
    """Return the word for what an NVLink leads to, an nvmlIntNvLinkDeviceType_t."""
    return word(_NVLINK_ENDS, kind)


def common_end(ends: Iterable[Answer[str]]) -> str:
    """Return what all NVLinks lead to that tell it: gpu, switch or npu; empty where none does, or not all to the same."""
    told = {end for end in ends if end in _NVLINK_ENDS.values()}
    return str(told.pop()) if len(told) == 1 else ""


def _flag(place: int) -> Callable[[Any], bool]:
    return lambda values: bool(values[place])


@dataclass(frozen=True)
class Call:
    """NVML's function, or field id (NVML_FI_...), that gives a value of a GPU; `gpu_reader` calls it with the GPU and the arguments.

    A function that gives several values is called once for all of them.
    """

    name: str
    arguments: tuple[int, ...] = ()
    make: Callable[[Any], object] = int


@dataclass(frozen=True)
class EccCounts:
    """Corrected and uncorrected errors by the place of the memory."""

    sram_corrected: Answer[int]
    sram_uncorrected: Answer[int]
    dram_corrected: Answer[int]
    dram_uncorrected: Answer[int]


@dataclass(frozen=True)
class Ecc:
    is_on: Annotated[Answer[bool], Call("nvmlDeviceGetEccMode", make=_flag(0))]
    is_on_after_reboot: Annotated[Answer[bool], Call("nvmlDeviceGetEccMode", make=_flag(1))]
    volatile: EccCounts  # since the driver was loaded, or the GPU was reset
    aggregate: EccCounts  # over the life of the board
    sram_threshold_exceeded: Answer[bool]  # NVIDIA's own condition for a replacement


@dataclass(frozen=True)
class RowRemapping:
    """Rows of HBM replaced by spare ones (Ampere and later). A pending one waits for a reset of the GPU."""

    num_corrected_rows: Annotated[Answer[int], Call("nvmlDeviceGetRemappedRows", make=itemgetter(0))]
    num_uncorrected_rows: Annotated[Answer[int], Call("nvmlDeviceGetRemappedRows", make=itemgetter(1))]
    is_pending: Annotated[Answer[bool], Call("nvmlDeviceGetRemappedRows", make=_flag(2))]
    has_failed: Annotated[Answer[bool], Call("nvmlDeviceGetRemappedRows", make=_flag(3))]
    # Banks with all, most, some or no spare rows left.
    num_banks_full: Annotated[Answer[int], Call("nvmlDeviceGetRowRemapperHistogram", make=attrgetter("max"))]
    num_banks_high: Annotated[Answer[int], Call("nvmlDeviceGetRowRemapperHistogram", make=attrgetter("high"))]
    num_banks_partial: Annotated[Answer[int], Call("nvmlDeviceGetRowRemapperHistogram", make=attrgetter("partial"))]
    num_banks_low: Annotated[Answer[int], Call("nvmlDeviceGetRowRemapperHistogram", make=attrgetter("low"))]
    num_banks_none: Annotated[Answer[int], Call("nvmlDeviceGetRowRemapperHistogram", make=attrgetter("none"))]


@dataclass(frozen=True)
class RetiredPages:
    """Pages of memory taken out of use (GPUs before Ampere)."""

    num_single_bit: Annotated[Answer[int], Call("nvmlDeviceGetRetiredPages", (0,), make=len)]  # cause 0: several single-bit errors
    num_double_bit: Annotated[Answer[int], Call("nvmlDeviceGetRetiredPages", (1,), make=len)]  # cause 1: one double-bit error
    is_pending: Annotated[Answer[bool], Call("nvmlDeviceGetRetiredPagesPendingStatus", make=bool)]


@dataclass(frozen=True)
class Clocks:
    sm_mhz: Annotated[Answer[int], Call("nvmlDeviceGetClockInfo", (_SM,))]
    memory_mhz: Annotated[Answer[int], Call("nvmlDeviceGetClockInfo", (_MEMORY,))]
    max_sm_mhz: Annotated[Answer[int], Call("nvmlDeviceGetMaxClockInfo", (_SM,))]
    max_memory_mhz: Annotated[Answer[int], Call("nvmlDeviceGetMaxClockInfo", (_MEMORY,))]
    application_sm_mhz: Annotated[Answer[int], Call("nvmlDeviceGetApplicationsClock", (_GRAPHICS,))]  # as set by a user
    default_application_sm_mhz: Annotated[Answer[int], Call("nvmlDeviceGetDefaultApplicationsClock", (_GRAPHICS,))]


@dataclass(frozen=True)
class Power:
    draw_w: Annotated[Answer[float], Call("nvmlDeviceGetPowerUsage", make=watts)]
    limit_w: Annotated[Answer[float], Call("nvmlDeviceGetPowerManagementLimit", make=watts)]
    enforced_limit_w: Annotated[Answer[float], Call("nvmlDeviceGetEnforcedPowerLimit", make=watts)]  # lowest of all, chassis included
    default_limit_w: Annotated[Answer[float], Call("nvmlDeviceGetPowerManagementDefaultLimit", make=watts)]
    max_limit_w: Annotated[Answer[float], Call("nvmlDeviceGetPowerManagementLimitConstraints", make=lambda both: watts(both[1]))]


@dataclass(frozen=True)
class Throttling:
    """Reasons for clocks below their maximum now, and the time of each since the driver was loaded."""

    reasons: Annotated[Answer[tuple[str, ...]], Call("nvmlDeviceGetCurrentClocksEventReasons", make=event_reasons_of)]
    sw_power_cap_ns: Annotated[Answer[int], Call("NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP")]  # healthy under load
    sw_thermal_ns: Annotated[Answer[int], Call("NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN")]
    hw_thermal_ns: Annotated[Answer[int], Call("NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN")]
    hw_power_brake_ns: Annotated[Answer[int], Call("NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN")]
    sync_boost_ns: Annotated[Answer[int], Call("NVML_FI_DEV_CLOCKS_EVENT_REASON_SYNC_BOOST")]


@dataclass(frozen=True)
class Temperature:
    gpu_c: Annotated[Answer[int], Call("nvmlDeviceGetTemperature", (0,))]
    memory_c: Annotated[Answer[int], Call("NVML_FI_DEV_MEMORY_TEMP")]
    margin_c: Annotated[Answer[int], Call("nvmlDeviceGetMarginTemperature")]  # to the nearest slowdown (T.limit of Hopper and later)


@dataclass(frozen=True)
class Pcie:
    """PCIe link. An idle link may train down to save power: generation and width count only under load."""

    generation: Annotated[Answer[int], Call("nvmlDeviceGetCurrPcieLinkGeneration")]
    width: Annotated[Answer[int], Call("nvmlDeviceGetCurrPcieLinkWidth")]
    max_generation: Annotated[Answer[int], Call("nvmlDeviceGetMaxPcieLinkGeneration")]  # of this GPU in this slot
    max_width: Annotated[Answer[int], Call("nvmlDeviceGetMaxPcieLinkWidth")]
    max_device_generation: Annotated[Answer[int], Call("nvmlDeviceGetGpuMaxPcieLinkGeneration")]  # of this GPU in any slot
    num_replays: Annotated[Answer[int], Call("nvmlDeviceGetPcieReplayCounter")]


@dataclass(frozen=True)
class NvLink:
    index: Index
    is_active: Answer[bool]
    speed_mb_per_s: Answer[int]  # MB = 1e6 bytes
    remote: Answer[str]  # the other end: gpu, switch, npu
    num_crc_errors: Answer[int]
    num_replays: Answer[int]
    num_recoveries: Answer[int]


@dataclass(frozen=True)
class Fabric:
    """State of this GPU in the NVLink fabric, from the fabric manager."""

    state: Answer[str]
    status: Answer[str]
    clique_id: Answer[int]
    cluster_uuid: Answer[str]
    health: Answer[str]  # `healthy`, or what is wrong; not all drivers and GPUs tell


@dataclass(frozen=True)
class GpuProcess:
    """A process with a context on this GPU; in a container NVML gives the pids of the host."""

    pid: int
    used_bytes: Answer[int]


def processes_of(found: list[Any]) -> tuple[GpuProcess, ...]:
    """Return NVML's processes by pid. It does not know the memory of one under some driver models, and in a container."""
    unknown = Missing(Why.NOT_SUPPORTED)
    used = {int(one.pid): unknown if one.usedGpuMemory is None else int(one.usedGpuMemory) for one in found}
    return tuple(GpuProcess(pid, used[pid]) for pid in sorted(used))


@dataclass(frozen=True)
class GpuUse:
    """Processes on a GPU, and its memory in use."""

    processes: Answer[tuple[GpuProcess, ...]]
    used_bytes: Answer[int]  # the driver's own memory included


@dataclass(frozen=True)
class GpuReading:
    """One GPU at one moment. `index` is NVML's, which CUDA_VISIBLE_DEVICES does not change."""

    index: Index
    name: Annotated[Answer[str], Call("nvmlDeviceGetName", make=text)]
    uuid: Annotated[Answer[str], Call("nvmlDeviceGetUUID", make=text)]
    serial: Annotated[Answer[str], Call("nvmlDeviceGetSerial", make=text)]
    part_number: Annotated[Answer[str], Call("nvmlDeviceGetBoardPartNumber", make=text)]
    vbios: Annotated[Answer[str], Call("nvmlDeviceGetVbiosVersion", make=text)]
    inforom: Annotated[Answer[str], Call("nvmlDeviceGetInforomImageVersion", make=text)]
    gsp_firmware: Annotated[Answer[str], Call("nvmlDeviceGetGspFirmwareVersion", make=text)]
    pci_bus_id: Annotated[Answer[str], Call("nvmlDeviceGetPciInfo", make=lambda info: text(info.busId))]
    module_id: Annotated[Answer[int], Call("nvmlDeviceGetModuleId")]  # of the slot on the baseboard
    virtualization: Annotated[Answer[str], Call("nvmlDeviceGetVirtualizationMode", make=partial(word, _VIRTUALIZATION))]
    total_bytes: Annotated[Answer[int], Call("nvmlDeviceGetMemoryInfo", make=attrgetter("total"))]
    # The driver's own memory included, which nvidia-smi shows as reserved.
    used_bytes: Annotated[Answer[int], Call("nvmlDeviceGetMemoryInfo", make=attrgetter("used"))]
    free_bytes: Annotated[Answer[int], Call("nvmlDeviceGetMemoryInfo", make=attrgetter("free"))]
    mig_is_on: Annotated[Answer[bool], Call("nvmlDeviceGetMigMode", make=_flag(0))]
    mig_is_on_after_reset: Annotated[Answer[bool], Call("nvmlDeviceGetMigMode", make=_flag(1))]
    persistence_is_on: Annotated[Answer[bool], Call("nvmlDeviceGetPersistenceMode", make=bool)]
    compute_mode: Annotated[Answer[str], Call("nvmlDeviceGetComputeMode", make=partial(word, _COMPUTE_MODES))]
    recovery_action: Annotated[Answer[str], Call("NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", make=partial(word, _RECOVERY))]  # by the driver
    channel_repair_is_pending: Annotated[Answer[bool], Call("nvmlDeviceGetRepairStatus", make=_flag(0))]
    tpc_repair_is_pending: Annotated[Answer[bool], Call("nvmlDeviceGetRepairStatus", make=_flag(1))]
    has_unrepairable_memory: Annotated[Answer[bool], Call("nvmlDeviceGetUnrepairableMemoryFlag_v1", make=bool)]
    ecc: Ecc
    remapping: RowRemapping
    retired_pages: RetiredPages
    clocks: Clocks
    power: Power
    throttling: Throttling
    temperature: Temperature
    pcie: Pcie
    nvlinks: Answer[tuple[NvLink, ...]]
    fabric: Fabric
    processes: Annotated[Answer[tuple[GpuProcess, ...]], Call("nvmlDeviceGetComputeRunningProcesses", make=processes_of)]

    @property
    def nvlink_to(self) -> str:
        """Return what all its NVLinks lead to: gpu, switch, npu; empty where that is not known."""
        return "" if isinstance(self.nvlinks, Missing) else common_end(link.remote for link in self.nvlinks)


@dataclass(frozen=True)
class PeerLink:
    """Peer-to-peer access from one GPU to another: `ok`, or NVML's reason."""

    source: int
    target: int
    read: Answer[str]
    write: Answer[str]
    nvlink: Answer[str]


@dataclass(frozen=True)
class GpusReading:
    """All GPUs of a node."""

    driver: Answer[str]
    cuda: Answer[str]
    gpus: Answer[tuple[GpuReading, ...]]
    peers: tuple[PeerLink, ...]


class Gpu(Model):
    """Names of one GPU. A text that NVML does not give is empty."""

    index: Index
    name: str
    uuid: str = ""
    serial: str = ""
    pci_bus_id: str = ""
    part_number: str = ""
    vbios: str = ""
    memory_bytes: int = 0
    nvlink_domain: str = ""  # cluster and clique of an NVLink network between nodes; empty without one
    nvlink_to: str = ""  # what all its NVLinks lead to: gpu, switch, npu; empty where that is not known
    use: GpuUse | None = None  # before this run put anything on it

    @property
    def label(self) -> str:
        """Return `GPU 5, serial 1653924100006`; of a GPU that others measured, `GPU 5`."""
        name = f"serial {self.serial}" if self.serial else self.uuid and f"UUID {self.uuid}"
        return ", ".join(filter(None, (f"GPU {self.index}", name)))
