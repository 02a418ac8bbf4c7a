"""The network of a healthy node for snapshots: eight ConnectX-7, each below the same PCIe switch as its GPU; two sockets."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from inventory.rdma_trees import COUNTERS, HW_COUNTERS, NDR_PORT, ROCE_PORT, add_device, fill
from pydantic import TypeAdapter
from snapshots import NUM_GPUS, Plain, healthy_h200

from gpu_acceptance.inventory import infiniband
from gpu_acceptance.inventory.infiniband import InfiniBand
from gpu_acceptance.inventory.pci_topology import Place, nvml_bus_id, place

CLEAN = {"counters": dict.fromkeys(COUNTERS, 0), "hw_counters": dict.fromkeys(HW_COUNTERS, 0)}
GOOD_PORT = {**NDR_PORT, **CLEAN}
GOOD_ROCE_PORT = {**ROCE_PORT, **CLEAN, "rate": "400 Gb/sec (4X NDR)"}


def healthy_network(port: dict[str, Any] = GOOD_PORT) -> Plain:
    """The healthy node with a network. GPUDirect RDMA by DMA-BUF alone, as on the 8 H200 that were read."""
    plain = healthy_h200()
    with TemporaryDirectory() as name:
        root = Path(name)
        fill(root, {"proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04"})
        fill(root, {"proc/sys/kernel/osrelease": "6.8.0-45-generic", "sys/module/nvidia/version": "580.159.04"})
        places = [_add_pair(root, index, port) for index in range(NUM_GPUS)]
        plain["node"]["infiniband"] = _plain(InfiniBand, infiniband.read(root), root)
    plain["node"]["gpu_places"] = _plain(tuple[Place, ...], tuple(places), root)
    for gpu, where in zip(plain["node"]["gpus"]["gpus"], places, strict=True):
        gpu["pci_bus_id"] = where.pci_bus_id
    return plain


def _add_pair(root: Path, index: int, port: dict[str, Any]) -> Place:
    """A switch with a GPU and a network card."""
    numa, bus = index * 2 // NUM_GPUS, 0x10 * (index + 1)
    switch = f"pci0000:{bus:02x}/0000:{bus:02x}:01.0/0000:{bus + 1:02x}:00.0"
    address = f"0000:{bus + 3:02x}:00.0"
    gpu = f"{switch}/0000:{bus + 2:02x}:00.0/{address}"
    fill(root / "sys/devices" / gpu, {"numa_node": numa})
    add_device(root, f"mlx5_{index}", f"{switch}/0000:{bus + 2:02x}:01.0/0000:{bus + 4:02x}:00.0", ports={"1": port}, numa=numa)
    (root / "sys/bus/pci/devices" / address).symlink_to(root / "sys/devices" / gpu)
    return place(nvml_bus_id(address), root)


def _plain(kind: Any, reading: object, root: Path) -> Any:
    return json.loads(TypeAdapter(kind).dump_json(reading).decode().replace(str(root), ""))
