"""The GPUs that the PCI bus shows: whatever a driver, a container or an environment variable hides from NVML is still here."""

from dataclasses import dataclass
from pathlib import Path

SYS = Path("/sys")

_NVIDIA, _AMD = 0x10DE, 0x1002
_DISPLAY = 0x03  # base class: VGA and 3D controllers
_AMD_ACCELERATORS = {0x0380, 0x1200}  # display controller (other), processing accelerator


@dataclass(frozen=True)
class BusReading:
    """`unreadable`: devices, or the whole bus, that could not be asked. Each may be a GPU."""

    gpus: tuple[str, ...]  # PCI addresses
    unreadable: tuple[str, ...]


def gpus_on_bus(extra_root: Path | None = None) -> BusReading:
    """NVIDIA GPUs and AMD accelerators under /sys, and those under `extra_root`, which can only add: it never hides one."""
    readings = [_scan(root) for root in (SYS, extra_root) if root is not None]
    return BusReading(
        gpus=tuple(sorted({address for reading in readings for address in reading.gpus})),
        unreadable=tuple(sorted({name for reading in readings for name in reading.unreadable})),
    )


def _scan(root: Path) -> BusReading:
    devices = root / "bus" / "pci" / "devices"
    try:
        addresses = sorted(device.name for device in devices.iterdir())
    except FileNotFoundError:
        # A kernel with a bus folder and no PCI in it has no PCI bus. Without the folder, nothing was seen at all.
        return BusReading((), () if (root / "bus").is_dir() and not (root / "bus" / "pci").exists() else (str(devices),))
    except OSError:
        return BusReading((), (str(devices),))
    verdicts = {address: _is_gpu(devices / address) for address in addresses}
    return BusReading(
        gpus=tuple(address for address, verdict in verdicts.items() if verdict),
        unreadable=tuple(address for address, verdict in verdicts.items() if verdict is None),
    )


def _is_gpu(device: Path) -> bool | None:
    """None: the device would not say."""
    try:
        vendor = int((device / "vendor").read_text(encoding="ascii"), 16)
        pci_class = int((device / "class").read_text(encoding="ascii"), 16)  # 24 bits: base class, subclass, interface
    except (OSError, ValueError):
        return None
    if vendor == _NVIDIA:
        return pci_class >> 16 == _DISPLAY
    return vendor == _AMD and pci_class >> 8 in _AMD_ACCELERATORS
