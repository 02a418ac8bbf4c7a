"""The PCI tree: GPUs on the bus, and the distance between two devices."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from itertools import takewhile
from pathlib import Path, PurePath

from gpu_acceptance.inventory.answer import Answer, Missing, Why, combine, missing_over, names_in, parser, read_value, then

SYS = Path("/sys")

_NVIDIA, _AMD = 0x10DE, 0x1002
_DISPLAY = 0x03  # base class: VGA and 3D controllers
_AMD_ACCELERATORS = {0x0380, 0x1200}  # display controller (other), processing accelerator
_ADDRESS = re.compile(r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])")
_node = parser(r"(-?[0-9]{1,4})", int)
_HOST_BRIDGE = re.compile(r"pci[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}")


@dataclass(frozen=True)
class BusReading:
    """GPUs on the PCI bus. `unreadable`: devices, or the whole bus, that could not be read; each may be a GPU."""

    gpus: tuple[str, ...]  # PCI addresses
    unreadable: tuple[str, ...]


def gpus_on_bus(extra_root: Path | None = None) -> BusReading:
    """Return NVIDIA GPUs and AMD accelerators under /sys, and those under `extra_root`, which can only add GPUs."""
    readings = [_scan(root) for root in (SYS, extra_root) if root is not None]
    return BusReading(
        gpus=tuple(sorted({address for reading in readings for address in reading.gpus})),
        unreadable=tuple(sorted({name for reading in readings for name in reading.unreadable})),
    )


def _scan(root: Path) -> BusReading:
    devices = root / "bus" / "pci" / "devices"
    addresses = names_in(devices)
    if isinstance(addresses, Missing):
        # A kernel with a bus folder without PCI has no PCI bus. Without the folder, nothing was read at all.
        has_no_bus = addresses.missing is Why.NOT_THERE and (root / "bus").is_dir() and not (root / "bus" / "pci").exists()
        return BusReading((), () if has_no_bus else (str(devices),))
    verdicts = {address: _is_gpu(devices / address) for address in addresses}
    return BusReading(
        gpus=tuple(address for address, verdict in verdicts.items() if verdict),
        unreadable=tuple(address for address, verdict in verdicts.items() if verdict is None),
    )


def _is_gpu(device: Path) -> bool | None:
    """Return None for an unreadable device."""
    vendor, pci_class = (read_value(device / name, partial(int, base=16)) for name in ("vendor", "class"))
    if isinstance(vendor, Missing) or isinstance(pci_class, Missing):
        return None
    if vendor == _NVIDIA:
        return pci_class >> 16 == _DISPLAY  # 24 bits: base class, subclass, interface
    return vendor == _AMD and pci_class >> 8 in _AMD_ACCELERATORS


class Distance(StrEnum):
    """Distance of two devices, nearest first, in the words of `nvidia-smi topo -m`."""

    PIX = "PIX"  # at most a single PCIe bridge or switch between them
    PXB = "PXB"  # several bridges, none of them a host bridge
    PHB = "PHB"  # through one PCIe host bridge, typically the CPU
    NODE = "NODE"  # through several host bridges of one NUMA node
    SYS = "SYS"  # through the interconnect between NUMA nodes


_ORDER = tuple(Distance)


@dataclass(frozen=True)
class Place:
    """Place of one PCI device, from /sys/bus/pci/devices, its links and `numa_node`."""

    pci_bus_id: str  # in the spelling of the question
    pci_path: Answer[str]  # the bridges above it, for `distance`
    numa_node: Answer[int]


def nvml_bus_id(address: str) -> str:
    """Return `0000:3b:00.0` as NVML writes it, `00000000:3B:00.0`. Raises ValueError over any other text."""
    domain, bus, device, function = _parts(address)
    return f"{domain:08X}:{bus:02X}:{device:02X}.{function}"


def sysfs_address(address: str) -> str:
    """Return `00000000:3B:00.0` as sysfs writes it, `0000:3b:00.0`. Raises ValueError over any other text."""
    domain, bus, device, function = _parts(address)
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function}"


def place(address: str, root: Path = Path("/")) -> Place:
    """Return the place of a device, given its address in either spelling."""
    try:
        device = root / "sys" / "bus" / "pci" / "devices" / sysfs_address(address)
    except ValueError as error:
        unknown = Missing(Why.UNREADABLE, str(error))
        return Place(address, unknown, unknown)
    path = path_behind(device)
    return Place(address, path, path if isinstance(path, Missing) else numa_node(device))


def path_behind(link: Path) -> Answer[str]:
    """Return the chain above a device of sysfs or a link to one, from its host bridge down to itself, with slashes."""
    try:
        return chain_of(PurePath(os.path.realpath(link, strict=True)))
    except OSError as error:
        return missing_over(error, link)


def chain_of(real: PurePath) -> Answer[str]:
    """Return the part of a real path of sysfs that names PCI devices, from the last host bridge on."""
    names = list(real.parts)
    start = max((index for index, name in enumerate(names) if _HOST_BRIDGE.fullmatch(name)), default=len(names))
    chain = names[start : start + 1]
    for name in names[start + 1 :]:
        if not _ADDRESS.fullmatch(name):
            break
        chain.append(name)
    return "/".join(chain) if len(chain) > 1 else Missing(Why.UNREADABLE, f"no PCI device in {str(real)[:120]}")


def numa_node(device: Path) -> Answer[int]:
    """Return the NUMA node of a PCI device's folder in sysfs, where -1 means that the firmware has not set one (sysfs-bus-pci)."""
    unknown = Missing(Why.NOT_SUPPORTED, f"{device.name}: the kernel knows no NUMA node of it")
    return then(read_value(device / "numa_node", _node), lambda node: unknown if node == -1 else node)


def distance(path_a: str, path_b: str, numa_a: Answer[int], numa_b: Answer[int]) -> Answer[Distance]:
    """Return the distance by the chains above two devices. The NUMA nodes count only where the host bridges differ."""
    (bridge_a, *chain_a), (bridge_b, *chain_b) = path_a.split("/"), path_b.split("/")
    if bridge_a != bridge_b:
        return combine(lambda a, b: Distance.NODE if a == b else Distance.SYS, numa_a, numa_b)
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(chain_a, chain_b, strict=False)))
    if shared == 0:
        return Distance.PHB
    # Below a switch's upstream port each device has the downstream port and itself; two functions of one slot only themselves.
    longest = max(len(chain_a), len(chain_b)) - shared
    return Distance.PIX if longest <= 2 else Distance.PXB


def nearest(distances: Mapping[str, Answer[Distance]]) -> Answer[tuple[str, ...]]:
    """Return the names at the least distance. An unknown distance does not count where another device has the same host bridge."""
    known = {name: _ORDER.index(far) for name, far in distances.items() if not isinstance(far, Missing)}
    unknown = next((far for far in distances.values() if isinstance(far, Missing)), None)
    least = min(known.values(), default=len(_ORDER))
    if unknown is not None and least > _ORDER.index(Distance.PHB):
        return unknown
    return tuple(sorted(name for name, far in known.items() if far == least))


def _parts(address: str) -> tuple[int, int, int, int]:
    match = _ADDRESS.fullmatch(address)
    if match is None:
        raise ValueError(f"no PCI address: {address!r:.80}; allowed: 0000:3b:00.0 or 00000000:3B:00.0")
    domain, bus, device, function = (int(part, 16) for part in match.groups())
    return domain, bus, device, function
