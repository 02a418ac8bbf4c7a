"""Asks NVML how a GPU works: clocks, power, heat, and why it is slower than it could be."""

from gpu_acceptance.inventory.event_reasons import names_of
from gpu_acceptance.inventory.gpu import Clocks, Power, Temperature, Throttling
from gpu_acceptance.inventory.nvml_asker import Asker

_GRAPHICS, _SM, _MEMORY = 0, 1, 2  # clocks


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
        reasons=asker.ask("nvmlDeviceGetCurrentClocksEventReasons", handle, make=names_of),
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
