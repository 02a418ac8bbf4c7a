"""What the ports of this node's RDMA devices have sent and received, as sysfs shows it. A sick device answers late or never.

Sources: Linux Documentation/ABI/stable/sysfs-class-infiniband (octets divided by 4); drivers/infiniband/core/sysfs.c (their widths).
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpu_acceptance.inventory.answer import Answer, Missing, Why, names_in, read_int
from gpu_acceptance.inventory.infiniband import PortName

_OCTETS = 4  # that one count stands for
_HIGHEST = (2**32 - 1, 2**64 - 1)  # where a counter stops; of 32 bits where the device has no PortCountersExtended


@dataclass(frozen=True)
class PortTraffic:
    """Bytes since the counters were reset."""

    at_s: float  # time.monotonic()
    tx_bytes: Answer[int]
    rx_bytes: Answer[int]


def read(root: Path = Path("/")) -> Mapping[str, PortTraffic]:
    """By port, `mlx5_3 port 1`; empty where there is no RDMA device, or none that shows its ports."""
    folder = root / "sys/class/infiniband"
    traffic: dict[str, PortTraffic] = {}
    for device in _names(folder):
        for port in _names(folder / device / "ports"):
            files = folder / device / "ports" / port / "counters"
            at_s = time.monotonic()
            traffic[PortName(device, port)] = PortTraffic(at_s, read_bytes(files / "port_xmit_data"), read_bytes(files / "port_rcv_data"))
    return traffic


def _names(folder: Path) -> tuple[str, ...]:
    names = names_in(folder)
    return () if isinstance(names, Missing) else names


def read_bytes(path: Path) -> Answer[int]:
    """A counter of octets divided by 4, as `port_xmit_data` is."""
    count = read_int(path)
    if not isinstance(count, Missing) and count in _HIGHEST:
        return Missing(Why.UNREADABLE, f"it stands at its highest value, {count}, until somebody resets it")
    return count if isinstance(count, Missing) else count * _OCTETS
