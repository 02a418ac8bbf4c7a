"""Snapshots for tests: two of a real node with 8 H200, one of a healthy server, and what becomes of them when one value changes."""

import copy
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from host_root import x86_node
from inventory.fake_nvml import install, out

from gpu_acceptance.cli.snapshot_file import Snapshot, decode, encode
from gpu_acceptance.inventory import node
from gpu_acceptance.inventory.pci_topology import BusReading

NUM_GPUS = 8
REAL = Path(__file__).with_name("snapshots")  # see its README
REAL_NAMES = ("h200x8-idle", "h200x8-loaded")
Plain = dict[str, Any]


def real(name: str = "h200x8-idle") -> Plain:
    return json.loads((REAL / f"{name}.json").read_text(encoding="utf-8"))


def healthy_h200() -> Plain:
    """As `gpu-acceptance snapshot` writes it, of the stand-in for NVML and of a folder that looks like a server."""
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as root:
        install(patch, nvmlDeviceGetCount_v2=out(NUM_GPUS))
        patch.setattr("gpu_acceptance.inventory.pci_topology.gpus_on_bus", lambda _root: BusReading((), ()))
        patch.setattr("gpu_acceptance.inventory.system.hostname", lambda: "node-07")
        x86_node(Path(root))
        reading = node.read(Path(root))
        return json.loads(encode(Snapshot(1, "2026-11-20T12:00:00+00:00", reading)).replace(root, ""))


def changed(plain: Plain, path: str, value: object) -> Plain:
    """Replace one value by its path: `node.gpus.gpus.3.pcie.width`."""
    plain = copy.deepcopy(plain)
    holder, key = holder_of(plain, path)
    holder[key] = value
    return plain


def without(plain: Plain, path: str) -> Plain:
    plain = copy.deepcopy(plain)
    holder, key = holder_of(plain, path)
    del holder[key]
    return plain


def value_at(plain: Plain, path: str) -> Any:
    holder, key = holder_of(plain, path)
    return holder[key]


def holder_of(plain: Any, path: str) -> tuple[Any, Any]:
    *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    for part in parents:
        plain = plain[part]
    return plain, last


def leaves(plain: Any, path: str = "") -> dict[str, Any]:
    """Every value by its path; what is missing, and an empty list, is one."""
    if isinstance(plain, dict) and plain and "missing" not in plain:
        items: Any = plain.items()
    elif isinstance(plain, list) and plain and isinstance(plain[0], dict):
        items = enumerate(plain)
    else:
        return {path: plain}
    return {name: leaf for key, part in items for name, leaf in leaves(part, f"{path}.{key}" if path else str(key)).items()}


def snapshot_of(plain: Plain) -> Snapshot:
    return decode(json.dumps(plain))
