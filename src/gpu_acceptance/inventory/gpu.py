"""What a GPU says of itself, as NVML answers it; an answer that is missing says why."""

from dataclasses import dataclass

from gpu_acceptance.base.model import Model
from gpu_acceptance.inventory.answer import Answer

GPU_IDLE = 0x1
APPLICATION_CLOCKS = 0x2
SW_POWER_CAP = 0x4  # healthy under load: the GPU works at its power limit
HW_SLOWDOWN = 0x8
SYNC_BOOST = 0x10
SW_THERMAL = 0x20
HW_THERMAL = 0x40
HW_POWER_BRAKE = 0x80
DISPLAY_CLOCKS = 0x100

EVENT_REASONS = {
    GPU_IDLE: "gpu idle",
    APPLICATION_CLOCKS: "application clocks setting",
    SW_POWER_CAP: "sw power cap",
    HW_SLOWDOWN: "hw slowdown",
    SYNC_BOOST: "sync boost",
    SW_THERMAL: "sw thermal slowdown",
    HW_THERMAL: "hw thermal slowdown",
    HW_POWER_BRAKE: "hw power brake slowdown",
    DISPLAY_CLOCKS: "display clock setting",
}


def event_reasons_of(mask: int) -> tuple[str, ...]:
    """The reasons that are set; bits that a later NVML may bring come last, as `bits 0x200`."""
    known = [name for bit, name in EVENT_REASONS.items() if mask & bit]
    rest = mask & ~sum(EVENT_REASONS)
    return (*known, *([f"bits {rest:#x}"] if rest else []))


@dataclass(frozen=True)
class EccCounts:
    """Errors that were corrected, and that were not, by where the memory lies."""

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
    """Pages of memory taken out of use (before Ampere)."""

    num_single_bit: Answer[int]
    num_double_bit: Answer[int]
    is_pending: Answer[bool]


@dataclass(frozen=True)
class Clocks:
    sm_mhz: Answer[int]
    memory_mhz: Answer[int]
    max_sm_mhz: Answer[int]
    max_memory_mhz: Answer[int]
    application_sm_mhz: Answer[int]  # what somebody has set
    default_application_sm_mhz: Answer[int]


@dataclass(frozen=True)
class Power:
    draw_w: Answer[float]
    limit_w: Answer[float]
    enforced_limit_w: Answer[float]  # the lowest of all limits, of the chassis too
    default_limit_w: Answer[float]
    max_limit_w: Answer[float]


@dataclass(frozen=True)
class Throttling:
    """Why clocks are below their maximum now, and for how long that has been so since the driver was loaded."""

    reasons: Answer[tuple[str, ...]]
    sw_power_cap_ns: Answer[int]  # healthy under load: the GPU works at its power limit
    sw_thermal_ns: Answer[int]
    hw_thermal_ns: Answer[int]
    hw_power_brake_ns: Answer[int]
    sync_boost_ns: Answer[int]


@dataclass(frozen=True)
class Temperature:
    gpu_c: Answer[int]
    memory_c: Answer[int]
    margin_c: Answer[int]  # to the nearest slowdown (T.limit of Hopper and later)


@dataclass(frozen=True)
class Pcie:
    """An idle link may train down to save power: generation and width mean something under load only."""

    generation: Answer[int]
    width: Answer[int]
    max_generation: Answer[int]  # of this GPU in this slot
    max_width: Answer[int]
    max_device_generation: Answer[int]  # of this GPU in any slot
    num_replays: Answer[int]


@dataclass(frozen=True)
class NvLink:
    index: int
    is_active: Answer[bool]
    speed_mb_per_s: Answer[int]  # MB = 1e6 bytes
    remote: Answer[str]  # gpu, switch, npu: what is at the other end
    num_crc_errors: Answer[int]
    num_replays: Answer[int]
    num_recoveries: Answer[int]


@dataclass(frozen=True)
class Fabric:
    """The NVLink fabric as its manager has set this GPU up."""

    state: Answer[str]
    status: Answer[str]
    clique_id: Answer[int]
    cluster_uuid: Answer[str]
    health: Answer[str]  # summary; of drivers and GPUs that tell


@dataclass(frozen=True)
class GpuProcess:
    """A process that holds a context on this GPU; inside a container NVML gives the pids of the host."""

    pid: int
    used_bytes: Answer[int]


@dataclass(frozen=True)
class GpuUse:
    """Who is on a GPU, and how much of its memory is in use."""

    processes: Answer[tuple[GpuProcess, ...]]
    used_bytes: Answer[int]  # with what the driver keeps for itself


@dataclass(frozen=True)
class GpuReading:
    """One GPU at one moment. `index` is NVML's, which CUDA_VISIBLE_DEVICES does not change."""

    index: int
    name: Answer[str]
    uuid: Answer[str]
    serial: Answer[str]
    part_number: Answer[str]
    vbios: Answer[str]
    inforom: Answer[str]
    gsp_firmware: Answer[str]
    pci_bus_id: Answer[str]
    module_id: Answer[int]  # of the slot on the baseboard
    virtualization: Answer[str]
    total_bytes: Answer[int]
    used_bytes: Answer[int]  # with what the driver keeps for itself, which nvidia-smi shows as reserved
    free_bytes: Answer[int]
    mig_is_on: Answer[bool]
    mig_is_on_after_reset: Answer[bool]
    persistence_is_on: Answer[bool]
    compute_mode: Answer[str]
    recovery_action: Answer[str]  # what the driver itself asks for: none, reset, reboot, ...
    channel_repair_is_pending: Answer[bool]
    tpc_repair_is_pending: Answer[bool]
    has_unrepairable_memory: Answer[bool]
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
    """What NVML says of peer-to-peer access from one GPU to another: `ok`, or why not."""

    source: int
    target: int
    read: Answer[str]
    write: Answer[str]
    nvlink: Answer[str]


@dataclass(frozen=True)
class GpusReading:
    """All GPUs of a node as NVML shows them."""

    driver: Answer[str]
    cuda: Answer[str]
    gpus: Answer[tuple[GpuReading, ...]]
    peers: tuple[PeerLink, ...]


class Gpu(Model):
    """One GPU as NVML names it. A text NVML would not give is empty, never invented."""

    index: int
    name: str
    uuid: str = ""
    serial: str = ""
    pci_bus_id: str = ""
    part_number: str = ""
    vbios: str = ""
    memory_bytes: int = 0
    use: GpuUse | None = None  # when its node was first asked: before this run put anything on it

    @property
    def label(self) -> str:
        """`GPU 5, serial 1653924100006`."""
        return f"GPU {self.index}, {f'serial {self.serial}' if self.serial else f'UUID {self.uuid}'}"
