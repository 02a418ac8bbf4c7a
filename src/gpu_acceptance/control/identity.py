"""Who a rank is, read before any GPU is touched."""

import os
import sys
from pathlib import Path

from gpu_acceptance.control.allocation import allocated_nodes
from gpu_acceptance.control.rank import Rank
from gpu_acceptance.inventory import brief, host, needs, nvml, pcie, versions
from gpu_acceptance.record.job import RankIdentity

# For tests: a second /sys. It is read beside the real one, so it can show a GPU that is not there and never hide one that is.
EXTRA_SYSFS = "GPU_ACCEPTANCE_EXTRA_SYSFS"


def read_identity(place: Rank) -> RankIdentity:
    """What this node says of itself, as seen from one rank."""
    extra_root = os.environ.get(EXTRA_SYSFS)
    reading = nvml.read()
    bus = pcie.gpus_on_bus(Path(extra_root) if extra_root else None)
    num_gpus_on_bus = len(bus.gpus) + len(bus.unreadable)
    return RankIdentity(
        rank=place.rank,
        local_rank=place.local_rank,
        node=place.node,
        host=host.hostname(),
        local_world_size=place.local_world_size,
        world_size=place.world_size,
        gpus=reading.gpus,
        num_gpus_on_bus=num_gpus_on_bus,
        nvml_problem=reading.problem,
        versions={**versions.read(reading.driver_version), **versions.checkout()},
        environment=host.environment(),
        chassis_serial=host.chassis_serial(),
        lacks=needs.lacking(has_gpu=bool(reading.gpus or num_gpus_on_bus)),
        own_loopback_address=host.own_loopback_address(),
        allocated_nodes=allocated_nodes(),
        python=sys.executable,
        inventory=brief.read() if place.local_rank == 0 else {},
    )
