"""What of a node's network cards is judged: which of them NCCL went through in a loopback, and what each carried in a collective. Pure.

The loopback is told by NCCL's own log, the bytes by the counters of the ports in sysfs. What neither tells is missing, and never fine.
"""

from collections.abc import Iterator, Mapping, Sequence

from gpu_acceptance.inventory.answer import MOST_TEXT, Answer, Missing, Why
from gpu_acceptance.inventory.infiniband import RdmaDevice
from gpu_acceptance.inventory.nccl_log import NcclLog, is_unknown
from gpu_acceptance.inventory.nccl_physics import connections, named, staged_in_host_memory, transports

Finding = tuple[str, Answer[int] | Answer[float] | Answer[str], str, str]  # metric, value, unit, detail
Findings = Iterator[Finding]
Counted = Mapping[tuple[str, str], Answer[int]]  # what port_counters.read gives
Bytes = Mapping[str, int]  # by port, `mlx5_3 port 1`

_MOST_NAMES = 900  # characters, of one rank
_SILENT = "unknown (no connection told)"
_WAYS = {"sent": "infiniband.sent_bytes", "received": "infiniband.received_bytes"}
_ELEMENT_BYTES = 4


def told_devices(log: Answer[NcclLog], nodes: Sequence[int]) -> str:
    """The RDMA devices through which one rank went to others of its node: `mlx5_0, mlx5_1`; empty where it went through none.

    `nodes`: the node of each rank. A log that tells of no connection inside the node leaves it open: `unknown (...)`.
    """
    if isinstance(log, Missing) or isinstance(used := connections(log, nodes, "intranode"), Missing) or not used:
        return _SILENT
    return ", ".join(sorted({one.device for one in log.passages if nodes[one.source] == nodes[one.target]}))[:_MOST_NAMES]


def loopback(log: Answer[NcclLog], nodes: Sequence[int], told: Sequence[str], chosen: Answer[tuple[RdmaDevice, ...]]) -> Findings:
    """Of one rank. `nodes`: the node of each rank; `told`: `told_devices` of each rank of this one; `chosen`: what the job uses."""
    used = connections(log, nodes, "intranode")
    if not isinstance(used, Missing) and not used:
        used = Missing(Why.NOT_THERE, "NCCL's log tells of no connection inside the node")
    if isinstance(used, Missing):
        yield "nic.loopback.transport", used, "text", ""
        yield "nic.loopback.staged", used, "count", ""
    else:
        staged = staged_in_host_memory(used)
        yield "nic.loopback.transport", transports(used), "text", named(used)
        yield "nic.loopback.staged", len(staged), "count", named(staged)
    unused = _unused(told, chosen)
    yield "nic.loopback.unused", unused if isinstance(unused, Missing) else len(unused), "count", _listed(unused)


def _unused(told: Sequence[str], chosen: Answer[tuple[RdmaDevice, ...]]) -> Answer[list[str]]:
    if isinstance(chosen, Missing):
        return chosen
    used = {name for text in told for name in text.split(", ")}
    if unknown := sorted(filter(is_unknown, used)):
        return Missing(Why.UNREADABLE, f"NCCL's log does not say through which device it went: {unknown[0]}")
    names = [device.name for device in chosen]
    return [name for name in names if name not in used] if names else Missing(Why.NOT_THERE, "no RDMA device here is one that the job uses")


def _listed(names: Answer[list[str]]) -> str:
    return "" if isinstance(names, Missing) else " ".join(names)[:MOST_TEXT]


def share(before: Counted, after: Counted, *, collective: str, num_bytes: int, world_size: int) -> Findings:
    """Of one node, whose ports were read before and after one collective over `num_bytes` and several nodes.

    `sent`, `received`: the port with the fewest bytes, in percent of the mean of all. `carried`: what all did both ways, in percent of what
    cannot but pass between nodes: of all_gather all that is there must leave a node or come to it, and so with reduce_scatter; of
    all_reduce each element must do both, even where switches reduce.
    """
    total = 0
    problem: Missing | None = None
    for way, name in _WAYS.items():
        moved = _moved(before, after, name)
        if isinstance(moved, Missing):
            problem = moved
            yield f"nic.share.{way}", moved, "%", collective
        else:
            total += sum(moved.values())
            yield f"nic.share.{way}", _least_percent(moved), "%", f"bytes in {collective}: {_told(moved)}"
    least = num_bytes // (_ELEMENT_BYTES * world_size) * _ELEMENT_BYTES * world_size * (2 if collective == "all_reduce" else 1)
    yield "nic.share.carried", problem or 100 * total / least, "%", f"{total} bytes in {collective}, of at least {least}"


def _moved(before: Counted, after: Counted, name: str) -> Answer[Bytes]:
    """Bytes of every port between two readings; missing where one of them is, with the name of its port."""
    moved: dict[str, int] = {}
    for port in sorted({port for one, port in (*before, *after) if one == name}):  # the empty one first: no port at all was read
        rise = _rise([counted[name, port] for counted in (before, after) if (name, port) in counted])
        if isinstance(rise, Missing):
            return Missing(rise.missing, f"{port}: {rise.detail}".removeprefix(": "))
        moved[port] = rise
    return moved


def _rise(readings: Sequence[Answer[int]]) -> Answer[int]:
    """Of one counter, which both readings should have."""
    numbers: list[int] = []
    for reading in readings:
        if isinstance(reading, Missing):
            return reading
        numbers.append(reading)
    if len(numbers) < 2:
        return Missing(Why.NOT_THERE, "one reading has no such port")
    first, last = numbers
    return last - first if last >= first else Missing(Why.UNREADABLE, f"fell from {first} to {last}: it was reset, or began again")


def _least_percent(moved: Bytes) -> float:
    """Where none has moved a byte, none has its share."""
    mean = sum(moved.values()) / len(moved)
    return 100 * min(moved.values()) / mean if mean else 0.0


def _told(moved: Bytes) -> str:
    """Fewest first: whoever lacks its share is named before a message ends."""
    return ", ".join(f"{port}: {num_bytes}" for port, num_bytes in sorted(moved.items(), key=lambda item: item[1]))[:MOST_TEXT]
