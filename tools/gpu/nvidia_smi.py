"""The GPUs of a snapshot beside `nvidia-smi -q -x` of the same seconds, field by field.

nvidia-smi prints `N/A` for what NVML would not say: the snapshot must have no value there either. NVLink is not in `-q -x`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from gpu_acceptance.inventory.answer import Missing, Why
from gpu_acceptance.inventory.gpu import GpuProcess, GpuReading, GpusReading

MiB = 2**20
NO_VALUE = {"", "N/A"}
Agree = Callable[[Any, Any, bool], bool]  # nvidia-smi's value, ours, whether the GPU was idle


def same(theirs: Any, ours: Any, _idle: bool) -> bool:
    return type(theirs) is type(ours) and theirs == ours


def same_word(theirs: str, ours: str, _idle: bool) -> bool:
    """nvidia-smi writes `Exclusive_Process`, NVML's documentation has no spelling of its own."""
    return theirs.lower().replace("_", " ") == ours.lower()


def within(theirs: float, ours: float, _idle: bool, *, most: float) -> bool:
    return abs(theirs - ours) <= most


def moves(theirs: float, ours: float, idle: bool, *, at_rest: float, at_work: float) -> bool:
    """Two readings a second apart; under load they show at least that both are of the same kind and unit."""
    return abs(theirs - ours) <= (at_rest if idle else at_work)


def rises(theirs: int, ours: int, _idle: bool) -> bool:
    """A counter of ns, which nvidia-smi shows in whole us; ours is read a second or two later."""
    return 0 <= ours - theirs <= 5_000_000_000


def reasons(theirs: tuple[str, ...], ours: tuple[str, ...], idle: bool) -> bool:
    """Under load a GPU meets its power limit many times in a second."""
    comes_and_goes = set() if idle else {"gpu idle", "sw power cap"}
    return set(theirs) - comes_and_goes == set(ours) - comes_and_goes


def switch(text: str) -> bool:
    return {"Enabled": True, "Disabled": False, "Yes": True, "No": False, "Active": True, "Not Active": False}[text]


def recovery(text: str) -> str:
    """The words of NVIDIA GPU Memory Error Management, "Error Recovery and Response Flags"."""
    return {"Reset": "reset the GPU", "Reboot": "reboot the node"}.get(text, text)


def in_unit(unit: str, text: str, *, times: float = 1) -> Any:
    """`700.00 W`: a text in another unit is refused."""
    number, found = text.split(" ", 1)
    if found != unit:
        raise ValueError(f"{text!r} is not in {unit}")
    return float(number) * times if "." in number else int(int(number) * times)


def bytes_of(*texts: str) -> int:
    return sum(in_unit("MiB", text, times=MiB) for text in texts)


def total(*texts: str) -> int:
    return sum(int(text) for text in texts)


def width(text: str) -> int:
    return int(text.removesuffix("x"))


REASONS = {
    "gpu_idle": "gpu idle",
    "applications_clocks_setting": "application clocks setting",
    "sw_power_cap": "sw power cap",
    "hw_slowdown": "hw slowdown",
    "sync_boost": "sync boost",
    "sw_thermal_slowdown": "sw thermal slowdown",
    "hw_thermal_slowdown": "hw thermal slowdown",
    "hw_power_brake_slowdown": "hw power brake slowdown",
    "display_clocks_setting": "display clock setting",
}


def active(*texts: str) -> tuple[str, ...]:
    return tuple(name for name, text in zip(REASONS.values(), texts, strict=True) if switch(text))


@dataclass(frozen=True)
class Field:
    """One value that both show: where it stands in a GpuReading, and below <gpu>."""

    ours: str
    theirs: tuple[str, ...]
    make: Callable[..., Any]
    agree: Agree = same


def field(ours: str, theirs: str, make: Callable[..., Any] = str, agree: Agree = same) -> Field:
    return Field(ours, tuple(theirs.split()), make, agree)


mhz, watts, celsius, banks = (partial(in_unit, unit) for unit in ("MHz", "W", "C", "bank(s)"))
nanoseconds = partial(in_unit, "us", times=1000)
rounded = partial(within, most=2 * MiB)  # nvidia-smi rounds each of two values to whole MiB, the reserved one upwards
# Seen of 8 H200 a second apart: at rest 345 MHz, 1 C, 0.1 W. Under a GEMM and copies: 315 MHz, 10 C, 16 W.
sm_clock = partial(moves, at_rest=0, at_work=800)
degrees = partial(moves, at_rest=3, at_work=20)
draw = partial(moves, at_rest=5, at_work=150)

FIELDS = (
    field("name", "product_name"),
    field("uuid", "uuid"),
    field("serial", "serial"),
    field("part_number", "board_part_number"),
    field("vbios", "vbios_version"),
    field("inforom", "inforom_version/img_version"),
    field("gsp_firmware", "gsp_firmware_version"),
    field("pci_bus_id", "pci/pci_bus_id"),
    field("module_id", "platformInfo/module_id", int),
    field("virtualization", "gpu_virtualization_mode/virtualization_mode", str, same_word),
    field("total_bytes", "fb_memory_usage/total", bytes_of, rounded),
    field("used_bytes", "fb_memory_usage/used fb_memory_usage/reserved", bytes_of, rounded),  # NVML's first version counts both as used
    field("free_bytes", "fb_memory_usage/free", bytes_of, rounded),
    field("mig_is_on", "mig_mode/current_mig", switch),
    field("mig_is_on_after_reset", "mig_mode/pending_mig", switch),
    field("persistence_is_on", "persistence_mode", switch),
    field("compute_mode", "compute_mode", str, same_word),
    field("recovery_action", "gpu_recovery_action", recovery, same_word),
    field("channel_repair_is_pending", "ecc_errors/channel_repair_pending", switch),
    field("tpc_repair_is_pending", "ecc_errors/tpc_repair_pending", switch),
    field("has_unrepairable_memory", "ecc_errors/unrepairable_memory", switch),
    field("ecc.is_on", "ecc_mode/current_ecc", switch),
    field("ecc.is_on_after_reboot", "ecc_mode/pending_ecc", switch),
    *(
        field(f"ecc.{counter}.{ours}", " ".join(f"ecc_errors/{counter}/{one}" for one in theirs.split()), total)
        for counter in ("volatile", "aggregate")
        for ours, theirs in (
            ("sram_corrected", "sram_correctable"),
            ("sram_uncorrected", "sram_uncorrectable_parity sram_uncorrectable_secded"),
            ("dram_corrected", "dram_correctable"),
            ("dram_uncorrected", "dram_uncorrectable"),
        )
    ),
    field("ecc.sram_threshold_exceeded", "ecc_errors/aggregate/sram_threshold_exceeded", switch),
    field("remapping.num_corrected_rows", "remapped_rows/remapped_row_corr", int),
    field("remapping.num_uncorrected_rows", "remapped_rows/remapped_row_unc", int),
    field("remapping.is_pending", "remapped_rows/remapped_row_pending", switch),
    field("remapping.has_failed", "remapped_rows/remapped_row_failure", switch),
    *(
        field(f"remapping.num_banks_{ours}", f"remapped_rows/row_remapper_histogram/row_remapper_histogram_{theirs}", banks)
        for ours, theirs in (("full", "max"), ("high", "high"), ("partial", "partial"), ("low", "low"), ("none", "none"))
    ),
    field("retired_pages.num_single_bit", "retired_pages/multiple_single_bit_retirement/retired_count", int),
    field("retired_pages.num_double_bit", "retired_pages/double_bit_retirement/retired_count", int),
    field("retired_pages.is_pending", "retired_pages/pending_retirement", switch),
    field("clocks.sm_mhz", "clocks/sm_clock", mhz, sm_clock),
    field("clocks.memory_mhz", "clocks/mem_clock", mhz),
    field("clocks.max_sm_mhz", "max_clocks/sm_clock", mhz),
    field("clocks.max_memory_mhz", "max_clocks/mem_clock", mhz),
    field("clocks.application_sm_mhz", "applications_clocks/graphics_clock", mhz),
    field("clocks.default_application_sm_mhz", "default_applications_clocks/graphics_clock", mhz),
    field("power.draw_w", "gpu_power_readings/average_power_draw", watts, draw),
    field("power.limit_w", "gpu_power_readings/requested_power_limit", watts),
    field("power.enforced_limit_w", "gpu_power_readings/current_power_limit", watts),
    field("power.default_limit_w", "gpu_power_readings/default_power_limit", watts),
    field("power.max_limit_w", "gpu_power_readings/max_power_limit", watts),
    field("throttling.reasons", " ".join(f"clocks_event_reasons/clocks_event_reason_{name}" for name in REASONS), active, reasons),
    *(
        field(f"throttling.{ours}_ns", f"clocks_event_reasons_counters/clocks_event_reasons_counters_{theirs}", nanoseconds, rises)
        for ours, theirs in (
            ("sw_power_cap", "sw_power_cap"),
            ("sw_thermal", "sw_therm_slowdown"),
            ("hw_thermal", "hw_therm_slowdown"),
            ("hw_power_brake", "hw_power_brake"),
            ("sync_boost", "sync_boost"),
        )
    ),
    field("temperature.gpu_c", "temperature/gpu_temp", celsius, degrees),
    field("temperature.memory_c", "temperature/memory_temp", celsius, degrees),
    field("temperature.margin_c", "temperature/gpu_temp_tlimit", celsius, degrees),
    field("pcie.generation", "pci/pci_gpu_link_info/pcie_gen/current_link_gen", int),
    field("pcie.width", "pci/pci_gpu_link_info/link_widths/current_link_width", width),
    field("pcie.max_generation", "pci/pci_gpu_link_info/pcie_gen/max_link_gen", int),
    field("pcie.max_width", "pci/pci_gpu_link_info/link_widths/max_link_width", width),
    field("pcie.max_device_generation", "pci/pci_gpu_link_info/pcie_gen/max_device_link_gen", int),
    field("pcie.num_replays", "pci/replay_counter", int),
    field("fabric.state", "fabric/state", str, same_word),
    field("fabric.status", "fabric/status", str, same_word),
    field("fabric.clique_id", "fabric/cliqueId", int),
    field("fabric.cluster_uuid", "fabric/clusterUuid"),
    field("fabric.health", "fabric/health/summary", str, same_word),
)

NOT_SHOWN = {  # of a GpuReading
    "index": "nvidia-smi lists GPUs in this order; both are compared by their place",
    "nvlinks": "NVLink is not in `-q -x`",
}
PROCESSES = "processes/process_info"
COMPARED = {path for one in FIELDS for path in one.theirs} | {f"{PROCESSES}/{leaf}" for leaf in ("pid", "type", "used_memory")}
NOT_COMPARED = {  # why -> what of a <gpu>, with all below it
    "part of a value that is compared, or one that always goes with it": (
        *("pci/pci_bus", "pci/pci_device", "pci/pci_domain", "ecc_errors/aggregate_uncorrectable_sram_sources"),
        *("clocks/graphics_clock", "max_clocks/graphics_clock", "applications_clocks/mem_clock", "default_applications_clocks/mem_clock"),
    ),
    "what a GPU does at the moment, which no limit is set for": (
        *("utilization", "encoder_stats", "fbc_stats", "pci/tx_util", "pci/rx_util", "clocks/video_clock", "bar1_memory_usage"),
        *("cc_protected_memory_usage", "gpu_memory_power_readings", "fan_speed", "accounted_processes", "performance_state"),
        *("gpu_power_readings/instant_power_draw", "gpu_power_readings/power_state"),
        *(f"{PROCESSES}/{leaf}" for leaf in ("process_name", "gpu_instance_id", "compute_instance_id")),
    ),
    "what a model can do, or how it may be set, which no limit is set for": (
        *("product_brand", "product_architecture", "pci/pci_base_class", "pci/pci_sub_class", "pci/pci_device_id", "pci/pci_sub_system_id"),
        *("pci/pci_bridge_chip", "pci/atomic_caps_outbound", "pci/atomic_caps_inbound", "supported_clocks", "supported_gpu_target_temp"),
        *("max_clocks/video_clock", "max_customer_boost_clocks", "gpu_power_readings/min_power_limit", "module_power_readings"),
        *("power_smoothing", "power_profiles", "deferred_clocks", "clock_policy", "capabilities", "sparse_operation_mode", "c2c_mode"),
        *("display_mode", "display_attached", "display_active", "addressing_mode", "accounting_mode", "accounting_mode_buffer_size"),
        *("driver_model", "gpu_operation_mode", "dram_encryption_mode", "ibmnpu", "mig_devices", "gpu_virtualization_mode/host_vgpu_mode"),
        *("gpu_virtualization_mode/vgpu_heterogeneous_mode", "pci/pci_gpu_link_info/pcie_gen/max_host_link_gen"),
        *(f"temperature/gpu_temp_{kind}_tlimit_threshold" for kind in ("max", "slow", "max_gpu", "max_mem")),
        "temperature/gpu_target_temperature",
    ),
    "names of the board and its place beside those that the snapshot has": (
        *("pdi", "minor_number", "multigpu_board", "board_id", "gpu_part_number", "gpu_fru_part_number", "inforom_bbx_flush"),
        *(f"platformInfo/{leaf}" for leaf in ("chassis_serial_number", "slot_number", "tray_index", "host_id", "peer_type")),
        *("platformInfo/gpu_fabric_guid", "inforom_version/oem_object", "inforom_version/ecc_object", "inforom_version/pwr_object"),
    ),
    "not read yet": (
        *("remapped_rows/remapped_row_corr_inactive", "remapped_rows/remapped_row_unc_inactive", "pci/replay_rollover_counter"),
        *("retired_pages/multiple_single_bit_retirement/retired_pagelist", "retired_pages/double_bit_retirement/retired_pagelist"),
        *("retired_pages/pending_blacklist", "pci/pci_gpu_link_info/pcie_gen/device_current_link_gen"),
        *(f"fabric/health/{leaf}" for leaf in ("bandwidth", "route_recovery_in_progress", "route_unhealthy", "access_timeout_recovery")),
        *("fabric/health/incorrect_configuration", "fabric/health/partition_assigned"),
    ),
}


def differences(reading: GpusReading, xml: str) -> list[str]:
    """Each as `GPU 3, pcie.width: nvidia-smi says 16, the snapshot 8`; empty where the two agree."""
    root = ElementTree.fromstring(xml)
    found = [
        _differ("the node, driver", root.findtext("driver_version"), reading.driver),
        _differ("the node, cuda", root.findtext("cuda_version"), reading.cuda),
    ]
    shown = root.findall("gpu")
    if isinstance(reading.gpus, Missing) or len(shown) != len(reading.gpus):
        ours = reading.gpus if isinstance(reading.gpus, Missing) else len(reading.gpus)
        return [*filter(None, found), _differ("the node, number of GPUs", len(shown), ours)]
    for gpu, element in zip(reading.gpus, shown, strict=True):
        found += _of_gpu(gpu, element)
    return [*filter(None, found)]


def _of_gpu(gpu: GpuReading, element: Element) -> Iterator[str]:
    idle = element.findtext("clocks_event_reasons/clocks_event_reason_gpu_idle") == "Active"
    for one in FIELDS:
        theirs, ours = _value(one, element), attrgetter(one.ours)(gpu)
        yield _differ(f"GPU {gpu.index}, {one.ours}", theirs, ours, one.agree, idle)
    yield _differ(f"GPU {gpu.index}, processes", _processes(element), gpu.processes, _same_processes)


def _value(one: Field, element: Element) -> Any:
    """None where nvidia-smi has no value, or an older one no such element."""
    texts = [(element.findtext(path) or "").strip() for path in one.theirs]
    return None if NO_VALUE & set(texts) else one.make(*texts)


def _differ(where: str, theirs: Any, ours: Any, agree: Agree = same, idle: bool = False) -> str:
    """Return a message for two values that do not agree, else an empty text."""
    they_have, we_have = theirs is not None, not isinstance(ours, Missing)
    agreed = agree(theirs, ours, idle) if they_have and we_have else they_have == we_have
    return "" if agreed else f"{where}: nvidia-smi says {theirs if they_have else 'nothing'}, the snapshot {ours}"


def _processes(element: Element) -> tuple[GpuProcess, ...]:
    """Those that compute; `C+G` also draws."""
    found = [process for process in element.findall(PROCESSES) if "C" in (process.findtext("type") or "")]
    return tuple(sorted((_process(process) for process in found), key=lambda one: one.pid))


def _process(element: Element) -> GpuProcess:
    used = element.findtext("used_memory") or ""
    return GpuProcess(int(element.findtext("pid") or ""), Missing(Why.NOT_SUPPORTED) if used in NO_VALUE else bytes_of(used))


def _same_processes(theirs: tuple[GpuProcess, ...], ours: tuple[GpuProcess, ...], _idle: bool) -> bool:
    return [one.pid for one in theirs] == [one.pid for one in ours] and all(map(_same_use, theirs, ours))


def _same_use(theirs: GpuProcess, ours: GpuProcess) -> bool:
    if isinstance(theirs.used_bytes, Missing) or isinstance(ours.used_bytes, Missing):
        return isinstance(theirs.used_bytes, Missing) and isinstance(ours.used_bytes, Missing)
    return rounded(theirs.used_bytes, ours.used_bytes, True)
