"""Facts of a GPU as NVML gives them; a missing answer has its reason."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from gpu_acceptance.base.model import Model
from gpu_acceptance.inventory.answer import Answer

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


@dataclass(frozen=True)
class Call:
    """NVML's function, or field id (NVML_FI_...), that gives a value of a GPU; `gpu_reader` calls it with the GPU and the arguments."""

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
    is_on: Answer[bool]
    is_on_after_reboot: Answer[bool]
    volatile: EccCounts  # since the driver was loaded, or the GPU was reset
    aggregate: EccCounts  # over the life of the board
    sram_threshold_exceeded: Answer[bool]  # NVIDIA's own condition for a replacement


@dataclass(frozen=True)
class RowRemapping:
    """Rows of HBM replaced by spare ones (Ampere and later). A pending one waits for a reset of the GPU."""

    num_corrected_rows: Answer[int]
    num_uncorrected_rows: Answer[int]
    is_pending: Answer[bool]
    has_failed: Answer[bool]
    num_banks_full: Answer[int]  # banks with all, most, some or no spare rows left: NVML's max, high, partial, low, none
    num_banks_high: Answer[int]
    num_banks_partial: Answer[int]
    num_banks_low: Answer[int]
    num_banks_none: Answer[int]


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
    index: int
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
    health: Answer[str]  # a summary, which not all drivers and GPUs give


@dataclass(frozen=True)
class GpuProcess:
    """A process with a context on this GPU; in a container NVML gives the pids of the host."""

    pid: int
    used_bytes: Answer[int]


@dataclass(frozen=True)
class GpuUse:
    """Processes on a GPU, and its memory in use."""

    processes: Answer[tuple[GpuProcess, ...]]
    used_bytes: Answer[int]  # the driver's own memory included


@dataclass(frozen=True)
class GpuReading:
    """One GPU at one moment. `index` is NVML's, which CUDA_VISIBLE_DEVICES does not change."""

    index: int
    name: Annotated[Answer[str], Call("nvmlDeviceGetName", make=text)]
    uuid: Annotated[Answer[str], Call("nvmlDeviceGetUUID", make=text)]
    serial: Annotated[Answer[str], Call("nvmlDeviceGetSerial", make=text)]
    part_number: Annotated[Answer[str], Call("nvmlDeviceGetBoardPartNumber", make=text)]
    vbios: Annotated[Answer[str], Call("nvmlDeviceGetVbiosVersion", make=text)]
    inforom: Annotated[Answer[str], Call("nvmlDeviceGetInforomImageVersion", make=text)]
    gsp_firmware: Annotated[Answer[str], Call("nvmlDeviceGetGspFirmwareVersion", make=text)]
    pci_bus_id: Answer[str]
    module_id: Annotated[Answer[int], Call("nvmlDeviceGetModuleId")]  # of the slot on the baseboard
    virtualization: Answer[str]
    total_bytes: Answer[int]
    used_bytes: Answer[int]  # the driver's own memory included, which nvidia-smi shows as reserved
    free_bytes: Answer[int]
    mig_is_on: Answer[bool]
    mig_is_on_after_reset: Answer[bool]
    persistence_is_on: Annotated[Answer[bool], Call("nvmlDeviceGetPersistenceMode", make=bool)]
    compute_mode: Answer[str]
    recovery_action: Answer[str]  # asked for by the driver: none, reset, reboot, ...
    channel_repair_is_pending: Answer[bool]
    tpc_repair_is_pending: Answer[bool]
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
    processes: Answer[tuple[GpuProcess, ...]]


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

    index: int
    name: str
    uuid: str = ""
    serial: str = ""
    pci_bus_id: str = ""
    part_number: str = ""
    vbios: str = ""
    memory_bytes: int = 0
    nvlink_domain: str = ""  # cluster and clique of an NVLink network between nodes; empty without one
    use: GpuUse | None = None  # before this run put anything on it

    @property
    def label(self) -> str:
        """Return `GPU 5, serial 1653924100006`."""
        return f"GPU {self.index}, {f'serial {self.serial}' if self.serial else f'UUID {self.uuid}'}"
