"""The identity of a rank: its node, GPUs and versions at the start, and how many nodes its scheduler allocated to the job."""

import json
import os
import re
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Literal

from gpu_acceptance.base.model import Model
from gpu_acceptance.base.strict_yaml import parse
from gpu_acceptance.control.rank import Rank
from gpu_acceptance.inventory import fabric_reader, needs, node, nvml, pci_topology, system, versions
from gpu_acceptance.inventory.answer import MOST_FILE_BYTES, Missing, read_text
from gpu_acceptance.record.job import RankIdentity

_MOST_CHARACTERS = 1_000_000  # of a variable
# For tests: a second /sys. It is read beside the real one, so it can show a GPU that is not there and never hide one that is.
EXTRA_SYSFS = "GPU_ACCEPTANCE_EXTRA_SYSFS"


class Scheduler(Model):
    """An entry of schedulers.yaml: how the number of nodes is read from the first of its variables that has one."""

    count: Literal["number", "sum_of", "largest_of", "names", "names_in_file", "names_in_json", "index", "lsf_hosts"]
    variables: list[str]
    where: str = ""  # a variable that must be set as well
    below: str = ""  # a key of a JSON object
    source: str


@cache
def schedulers() -> dict[str, Scheduler]:
    """Return the schedulers that are known, by name."""
    document = parse(Path(__file__).with_name("schedulers.yaml").read_bytes())
    return {str(name): Scheduler.model_validate(entry) for name, entry in document.data.items()}


def allocated_nodes(environ: Mapping[str, str] = os.environ) -> dict[str, int]:
    """Return the number of allocated nodes by the name of each scheduler that tells one."""
    counts = {name: _count(one, environ) for name, one in schedulers().items() if not one.where or one.where in environ}
    return {name: number for name, number in counts.items() if number > 0}


def _count(scheduler: Scheduler, environ: Mapping[str, str]) -> int:
    if scheduler.count in {"sum_of", "largest_of"}:
        numbers = [_whole(value) for name, value in environ.items() if re.fullmatch(scheduler.variables[0], name, re.ASCII)]
        # Tasks of other kinds than the largest, such as one that only launches, need no node of their own.
        return sum(numbers) if scheduler.count == "sum_of" else max(numbers, default=0)
    values = (environ[name] for name in scheduler.variables if environ.get(name))
    return next((number for value in values if (number := _read(scheduler, value, environ))), 0)


def _read(scheduler: Scheduler, value: str, environ: Mapping[str, str]) -> int:
    match scheduler.count:
        case "names":
            return len(set(filter(None, value.split(";"))))
        case "names_in_file":  # a line for each slot, which begins with its host
            text = read_text(Path(value), MOST_FILE_BYTES)
            return 0 if isinstance(text, Missing) else len({line.split()[0] for line in text.splitlines() if line.strip()})
        case "names_in_json":
            return _names_in_json(value, scheduler.below)
        case "index":
            return _whole(value) + 1  # the last node, if not an earlier one
        case "lsf_hosts":  # a number follows each host; where jsrun starts the tasks, the first host only runs the batch script
            num_hosts = len(set(value.split()[::2]))
            return num_hosts - (1 if num_hosts > 1 and "JSM_NAMESPACE_SIZE" in environ else 0)
    return _whole(value.rpartition(":")[2])  # of torchrun's `1:4` the most


def _whole(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 8 else 0


def _names_in_json(text: str, below: str) -> int:
    """Count the hosts of a list, or of all lists in an object."""
    try:
        value = json.loads(text[:_MOST_CHARACTERS])
        value = value[below] if below else value
    except (ValueError, KeyError, TypeError, RecursionError):
        return 0
    lists = value.values() if isinstance(value, dict) else [value]
    return sum(len(one) for one in lists if isinstance(one, list))


def read_identity(place: Rank) -> RankIdentity:
    """Return the identity of this rank and its node, as seen from this process."""
    extra_root = os.environ.get(EXTRA_SYSFS)
    reading = nvml.read()
    bus = pci_topology.gpus_on_bus(Path(extra_root) if extra_root else None)
    num_gpus_on_bus = len(bus.gpus) + len(bus.unreadable)
    return RankIdentity(
        rank=place.rank,
        local_rank=place.local_rank,
        node=place.node,
        host=system.hostname(),
        local_world_size=place.local_world_size,
        world_size=place.world_size,
        gpus=reading.gpus,
        num_gpus_on_bus=num_gpus_on_bus,
        nvml_problem=reading.problem,
        versions={**versions.read(reading.driver_version), **versions.checkout()},
        environment=system.environment(),
        chassis_serial=system.chassis_serial(),
        lacks=needs.lacking(has_gpu=bool(reading.gpus or num_gpus_on_bus)),
        own_loopback_address=system.own_loopback_address(),
        allocated_nodes=allocated_nodes(),
        python=sys.executable,
        inventory=node.read_facts() if place.local_rank == 0 else {},
        fabric=fabric_reader.read(reading.gpus) if place.local_rank == 0 else None,
    )
