"""What NCCL's log says of connections: transports, algorithms, and the network cards that a loopback went through. Pure."""

from collections.abc import Iterator, Mapping, Sequence

from gpu_acceptance.base.text import first_few
from gpu_acceptance.inventory.answer import MOST_TEXT, Answer, Missing, Why
from gpu_acceptance.inventory.infiniband import RdmaDevice
from gpu_acceptance.inventory.nccl_log import Choice, Connection, NcclLog, is_unknown

Finding = tuple[str, Answer[int] | Answer[str], str, str]  # metric, value, unit, detail
Findings = Iterator[Finding]
Fact = tuple[str, Answer[int] | Answer[str], str]  # metric, value, unit

_FUNCTIONS = {"all_gather": "AllGather", "all_reduce": "AllReduce", "reduce_scatter": "ReduceScatter"}  # as torch and as NCCL name them
COLLECTIVES = tuple(_FUNCTIONS)
_MOST_PAIRS = 4  # named of one transport
NicFinding = tuple[str, Answer[int] | Answer[float] | Answer[str], str, str]  # metric, value, unit, detail
NicFindings = Iterator[NicFinding]
Counted = Mapping[tuple[str, str], Answer[int]]  # what counters.read_ports gives
Bytes = Mapping[str, int]  # by port, `mlx5_3 port 1`

_MOST_NAMES = 900  # characters, of one rank
_SILENT = "unknown (no connection told)"
_WAYS = {"sent": "infiniband.sent_bytes", "received": "infiniband.received_bytes"}
_ELEMENT_BYTES = 4


def findings(log: Answer[NcclLog], num_bytes: int, nodes: Sequence[int], rank: int) -> Findings:
    """Of one rank, after each collective ran over `num_bytes`. `nodes`: the node of each rank, in the order of ranks.

    Rank 0 alone is told the algorithm. A rank that is connected to no other of its node, or to none of another node, has no figure of that.
    """
    if rank == 0:
        chosen, detail = algorithm(log, num_bytes, len(nodes))
        suffix = "_internode" if len(set(nodes)) > 1 else ""  # one has no limit of the other
        yield f"nccl.all_reduce.algorithm{suffix}", chosen, "text", detail
    for where in _places(nodes, rank):
        used = connections(log, nodes, where)
        if isinstance(used, Missing):
            yield f"nccl.transport.{where}", used, "text", ""
        elif used:
            yield f"nccl.transport.{where}", transports(used), "text", named(used)
    if "internode" in _places(nodes, rank):
        yield from _staged(connections(log, nodes, "internode"))


def facts(log: Answer[NcclLog], num_bytes: int, nodes: Sequence[int], rank: int) -> Iterator[Fact]:
    """What informs beside it."""
    for collective in COLLECTIVES if rank == 0 else ():
        choice = choice_of(log, collective, num_bytes, len(nodes))
        if isinstance(choice, Missing):
            yield f"nccl.{collective}.channels", choice, "count"
            continue
        if collective != "all_reduce":
            yield f"nccl.{collective}.algorithm", choice.algorithm, "text"
        yield f"nccl.{collective}.protocol", choice.protocol, "text"
        yield f"nccl.{collective}.channels", choice.num_channels, "count"
    if not isinstance(log, Missing):
        yield "nccl.channels.collective", log.num_channels, "count"
        yield "nccl.channels.nvls", log.num_nvls_channels, "count"
        yield "nccl.plugin", log.network, "text"


def algorithm(log: Answer[NcclLog], num_bytes: int, world_size: int) -> tuple[Answer[str], str]:
    """Of an all_reduce over this whole message, and what else NCCL chose for it. Of rank 0: no other is told."""
    choice = choice_of(log, "all_reduce", num_bytes, world_size)
    if isinstance(choice, Missing):
        return choice, ""
    return choice.algorithm, f"protocol {choice.protocol}, {choice.num_channels} channels"


def choice_of(log: Answer[NcclLog], collective: str, num_bytes: int, world_size: int) -> Answer[Choice]:
    """What NCCL chose for this collective over this whole message, in whole fp32 elements; of smaller ones it may choose otherwise."""
    if isinstance(log, Missing):
        return log
    num_parts = 1 if collective == "all_reduce" else world_size  # of the others NCCL tells what one rank gives or gets
    part = num_bytes // 4 // num_parts * 4
    function = _FUNCTIONS[collective]
    found = [choice for choice in log.choices if (choice.function, choice.num_bytes) == (function, part)]
    return found[-1] if found else Missing(Why.NOT_THERE, f"NCCL's log tells no algorithm of {function} over {part} bytes")


def _places(nodes: Sequence[int], rank: int) -> tuple[str, ...]:
    """Where a rank has peers."""
    own = nodes.count(nodes[rank])
    return tuple(where for where, there in (("intranode", own > 1), ("internode", own < len(nodes))) if there)


def connections(log: Answer[NcclLog], nodes: Sequence[int], where: str) -> Answer[list[Connection]]:
    """The connections of one place. A network that reduces by itself joins a rank with no one rank: it stands there with its own."""
    if isinstance(log, Missing):
        return log
    if strange := [one for one in log.connections if max(one.source, one.target) >= len(nodes)]:
        return Missing(Why.UNREADABLE, f"NCCL's log tells of {_pair(strange[0])} in a job of {len(nodes)} ranks")
    if log.strange:
        return Missing(Why.UNREADABLE, f"NCCL's log tells of a connection in a form that is not known: {log.strange}")
    if not log.connections:
        return Missing(Why.NOT_THERE, "NCCL's log tells of no connection in a form that is known")
    crosses = where == "internode"
    found = [one for one in log.connections if (nodes[one.source] != nodes[one.target]) == crosses]
    return [*found, *log.reductions] if crosses else found


def _staged(used: Answer[list[Connection]]) -> Findings:
    """How many connections between nodes stage their bytes in host memory. NVLink between nodes (`P2P`) needs no network card."""
    if isinstance(used, Missing):
        yield "nccl.network.staged", used, "count", ""
    elif used:
        staged = staged_in_host_memory(used)
        yield "nccl.network.staged", len(staged), "count", named(staged)


def transports(used: Sequence[Connection]) -> str:
    """`IB`; several are named together, `IB, Socket`."""
    return ", ".join(sorted({one.transport for one in used}))


def staged_in_host_memory(used: Sequence[Connection]) -> list[Connection]:
    """Those over a network without GPUDirect RDMA."""
    return [one for one in used if one.transport != "P2P" and not one.gpudirect]


def named(used: Sequence[Connection]) -> str:
    """`P2P: 0 -> 1, 0 -> 2; SHM: 0 -> 3`."""
    pairs: dict[str, list[str]] = {}
    for one in used:
        pairs.setdefault(one.transport, []).append(_pair(one))
    return "; ".join(f"{transport}: {', '.join(first_few(named, _MOST_PAIRS))}" for transport, named in sorted(pairs.items()))


def _pair(connection: Connection) -> str:
    return f"{connection.source} -> {connection.target}"


def told_devices(log: Answer[NcclLog], nodes: Sequence[int]) -> str:
    """The RDMA devices through which one rank went to others of its node: `mlx5_0, mlx5_1`; empty where it went through none.

    `nodes`: the node of each rank. A log that tells of no connection inside the node leaves it open: `unknown (...)`.
    """
    if isinstance(log, Missing) or isinstance(used := connections(log, nodes, "intranode"), Missing) or not used:
        return _SILENT
    return ", ".join(sorted({one.device for one in log.passages if nodes[one.source] == nodes[one.target]}))[:_MOST_NAMES]


def loopback(log: Answer[NcclLog], nodes: Sequence[int], told: Sequence[str], chosen: Answer[tuple[RdmaDevice, ...]]) -> NicFindings:
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


def share(before: Counted, after: Counted, *, collective: str, num_bytes: int, world_size: int) -> NicFindings:
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
