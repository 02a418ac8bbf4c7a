"""A node in words, for the header of the report: what it is, by files alone. No GPU is opened, no NIC asked, no server waited for."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpu_acceptance.base.text import clip
from gpu_acceptance.inventory import allowances, cpu, dmi, gpudirect, infiniband, memory, mounts, system, virtualization
from gpu_acceptance.inventory.answer import Answer, Missing
from gpu_acceptance.inventory.drift import Fact, gpudirect_words, host_facts, rdma_words
from gpu_acceptance.inventory.mounts import Mount

_MOST_TEXT = 2_000  # characters of one fact


@dataclass(frozen=True)
class _Host:
    system: system.System
    dmi: dmi.Dmi
    virtualization: virtualization.Virtualization
    cpu: cpu.Cpu
    memory: memory.Memory
    allowances: allowances.Allowances


def read(root: Path = Path("/")) -> dict[str, str]:
    """Facts by name; those that `environment.node.*` compares have the same names and words."""
    host = _Host(system.read(root), dmi.read(root), virtualization.read(root), cpu.read(root), memory.read(root), allowances.read(root))
    return {name: clip(str(what), _MOST_TEXT) for name, what in _facts(host, root)}


def _facts(host: _Host, root: Path) -> Iterator[Fact]:
    yield "product_serial", str(host.dmi.product_serial)
    yield "chassis_serial", str(host.dmi.chassis_serial)
    yield from host_facts(host)
    yield "gpudirect", gpudirect_words(gpudirect.read(root))
    yield "rdma_devices", rdma_words(infiniband.read_cards(root))
    yield "mounts", _mounts(mounts.read(root).mounts)


def _mounts(found: Answer[tuple[Mount, ...]]) -> str:
    if isinstance(found, Missing):
        return str(found.missing)
    return "; ".join(f"{mount.mount_point} {mount.fs_type}{' read only' if mount.read_only else ''}" for mount in found) or "none"
