"""Why the clocks of a GPU are not higher: the bits of NVML's clocks event reasons, in words. Pure.

Source: NVML API reference, nvmlClocksEventReasons.
"""

GPU_IDLE = 0x1
APPLICATION_CLOCKS = 0x2
SW_POWER_CAP = 0x4  # healthy under load: the GPU works at its power limit
HW_SLOWDOWN = 0x8
SYNC_BOOST = 0x10
SW_THERMAL = 0x20
HW_THERMAL = 0x40
HW_POWER_BRAKE = 0x80
DISPLAY_CLOCKS = 0x100

NAMES = {
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


def names_of(mask: int) -> tuple[str, ...]:
    """The reasons that are set; bits that a later NVML may bring come last, as `bits 0x200`."""
    known = [name for bit, name in NAMES.items() if mask & bit]
    rest = mask & ~sum(NAMES)
    return (*known, *([f"bits {rest:#x}"] if rest else []))
