"""Findings in NCCL's log: transports, algorithms, and the network cards of a loopback; shares of ports in collectives. Pure."""

from collections.abc import Iterator, Mapping, Sequence

from gpu_acceptance.base.text import first_few, named
from gpu_acceptance.inventory.answer import MOST_TEXT, Answer, Missing, Why, all_of, detail_of, then
from gpu_acceptance.inventory.infiniband import RdmaDevice
from gpu_acceptance.inventory.nccl_log import Choice, Connection, NcclLog, is_unknown

Findings = Iterator[tuple[str, Answer[int] | Answer[float] | Answer[str], str, str]]  # metric, value, unit, detail
Counted = Mapping[tuple[str, str], Answer[int]]  # of counters.read_ports
Facts = Iterator[tuple[str, Answer[int] | Answer[str], str]]  # metric, value, unit

# As torch and as NCCL name them. all_reduce runs first: choice_of tells it by that from the others in a log that names no collective.
_FUNCTIONS = {"all_reduce": "AllReduce", "all_gather": "AllGather", "reduce_scatter": "ReduceScatter"}
COLLECTIVES = tuple(_FUNCTIONS)
_MOST_PAIRS = 4  # named of one transport

_MOST_NAMES = 900  # characters, of one rank
_SILENT = "unknown (no connection told)"
_NO_REDUCTION = "none"
_WAYS = {"sent": "infiniband.sent_bytes", "received": "infiniband.received_bytes"}
_ELEMENT_BYTES = 4


def findings(log: Answer[NcclLog], num_bytes: int, nodes: Sequence[int], rank: int) -> Findings:
    """Yield findings of one rank, after each collective ran over `num_bytes`. `nodes`: the node of each rank, in the order of ranks.

    Only rank 0 logs the algorithm. A rank without connections inside its node, or to other nodes, has no such transport.
    """
    if rank == 0:
        chosen, detail = algorithm(log, num_bytes, len(nodes))
        suffix = "_internode" if len(set(nodes)) > 1 else ""  # they have different limits
        yield f"nccl.all_reduce.algorithm{suffix}", chosen, "text", detail
    yield from ways(log, nodes, rank)


def ways(log: Answer[NcclLog], nodes: Sequence[int], rank: int) -> Findings:
    """Yield the transports of one rank, as far as it has connected. `nodes`: as of `findings`."""
    for where in _places(nodes, rank):
        used = connections(log, nodes, where)
        if isinstance(used, Missing):
            yield f"nccl.transport.{where}", used, "text", ""
        elif used:
            yield f"nccl.transport.{where}", transports(used), "text", join_pairs(used)
    if "internode" in _places(nodes, rank):
        yield from _staged(connections(log, nodes, "internode"), () if isinstance(log, Missing) else log.reductions)


def facts(log: Answer[NcclLog], num_bytes: int, nodes: Sequence[int], rank: int) -> Facts:
    """Yield figures that only inform."""
    for collective in COLLECTIVES if rank == 0 else ():
        choice = choice_of(log, collective, num_bytes, len(nodes))
        if isinstance(choice, Missing):
            yield f"nccl.{collective}.channels", choice, "count"
            continue
        if collective != "all_reduce":
            yield f"nccl.{collective}.algorithm", choice.algorithm, "text"
        yield f"nccl.{collective}.protocol", choice.protocol, "text"
        if choice.num_channels is not None:
            yield f"nccl.{collective}.channels", choice.num_channels, "count"
    if not isinstance(log, Missing):
        yield "nccl.channels.collective", log.num_channels, "count"
        yield "nccl.channels.nvls", log.num_nvls_channels, "count"
        yield "nccl.plugin", log.network, "text"


def algorithm(log: Answer[NcclLog], num_bytes: int, world_size: int) -> tuple[Answer[str], str]:
    """Return the algorithm of an all_reduce over this whole message on rank 0, and protocol and channels as detail."""
    choice = choice_of(log, "all_reduce", num_bytes, world_size)
    detail = detail_of(choice, lambda choice: f"protocol {choice.protocol}{_channels(choice)}")
    return then(choice, lambda choice: _unless_unknown("an algorithm", choice.algorithm)), detail


def _channels(choice: Choice) -> str:
    return "" if choice.num_channels is None else f", {choice.num_channels} channels"


def _unless_unknown(what: str, name: str) -> Answer[str]:
    return Missing(Why.UNREADABLE, f"NCCL's log tells of {what} that this suite does not know: {name}") if is_unknown(name) else name


def choice_of(log: Answer[NcclLog], collective: str, num_bytes: int, world_size: int) -> Answer[Choice]:
    """Return NCCL's choice for this collective over this whole message, in whole fp32 elements; smaller messages may differ."""
    if isinstance(log, Missing):
        return log
    num_parts = 1 if collective == "all_reduce" else world_size  # NCCL logs one rank's part of the others, and up to 2.23 the whole
    part = num_bytes // 4 // num_parts * 4
    function = _FUNCTIONS[collective]
    found = [one for one in log.choices if (one.function, one.num_bytes) in {(function, part), (function, part * num_parts)}]
    if not found and collective == "all_reduce":
        found = [one for one in log.choices if (one.function, one.num_bytes) == ("", part)][:1]
    if found:
        return found[-1]
    if log.no_choice:
        return Missing(Why.NOT_SUPPORTED, log.no_choice)
    return Missing(Why.NOT_THERE, f"NCCL's log tells no algorithm of {function} over {part} bytes")


def _places(nodes: Sequence[int], rank: int) -> tuple[str, ...]:
    """Return the places where a rank has peers."""
    own = nodes.count(nodes[rank])
    return tuple(where for where, there in (("intranode", own > 1), ("internode", own < len(nodes))) if there)


def connections(log: Answer[NcclLog], nodes: Sequence[int], where: str) -> Answer[list[Connection]]:
    """Return the connections of one place; missing where one of them, anywhere, is in a form or by a way that is not known."""
    if isinstance(log, Missing):
        return log
    if strange := [one for one in log.connections if max(one.source, one.target) >= len(nodes)]:
        return Missing(Why.UNREADABLE, f"NCCL's log tells of {_pair(strange[0])} in a job of {len(nodes)} ranks")
    if log.strange:
        return Missing(Why.UNREADABLE, f"NCCL's log tells of a connection in a form that is not known: {log.strange}")
    if not log.connections:
        return Missing(Why.NOT_THERE, "NCCL's log tells of no connection in a form that is known")
    for one in log.connections:
        if isinstance(transport := _unless_unknown("a connection", one.transport), Missing):
            return transport
    crosses = where == "internode"
    return [one for one in log.connections if (nodes[one.source] != nodes[one.target]) == crosses]


def _staged(used: Answer[list[Connection]], reductions: tuple[Connection, ...]) -> Findings:
    """Yield the number of connections between nodes that stage bytes in host memory. NVLink between nodes (`P2P`) needs no NIC."""
    if isinstance(used, Missing):
        yield "nccl.network.staged", used, "count", ""
    elif used:
        staged = staged_in_host_memory([*used, *reductions])
        yield "nccl.network.staged", len(staged), "count", join_pairs(staged)


def told_reduction(log: Answer[NcclLog]) -> str:
    """Return the network that reduces for one rank, `SHARP` or `none`."""
    if isinstance(log, Missing):
        return f"{_SILENT[:-1]}: {log})"[:_MOST_NAMES]
    return ", ".join(sorted({one.transport for one in log.reductions})) or _NO_REDUCTION


def reduction(told: Sequence[str], nodes: Sequence[int]) -> Findings:
    """Yield the network that reduces for all nodes. `told`: `told_reduction` of each rank, one of each node or more being its way out."""
    if len(set(nodes)) < 2:
        return
    by_node = {node: {name for name, at in zip(told, nodes, strict=True) if at == node} - {_NO_REDUCTION} for node in sorted(set(nodes))}
    names = sorted({", ".join(sorted(found)) or _NO_REDUCTION for found in by_node.values()})
    unknown = next(filter(is_unknown, told), "")
    value = _unless_unknown("a network that reduces", unknown) if unknown else ", ".join(names)
    without = [node for node, found in by_node.items() if not found]
    detail = f"not on {named('node', without)}" if len(names) > 1 else ""
    yield "nccl.network.reduction", value, "text", detail


def transports(used: Sequence[Connection]) -> str:
    """Return all transports: `IB, Socket`."""
    return ", ".join(sorted({one.transport for one in used}))


def staged_in_host_memory(used: Sequence[Connection]) -> list[Connection]:
    """Return the connections over a network without GPUDirect RDMA."""
    return [one for one in used if one.transport != "P2P" and not one.gpudirect]


def join_pairs(used: Sequence[Connection]) -> str:
    """Return `P2P: 0 -> 1, 0 -> 2; SHM: 0 -> 3`."""
    pairs: dict[str, list[str]] = {}
    for one in used:
        pairs.setdefault(one.transport, []).append(_pair(one))
    return "; ".join(f"{transport}: {', '.join(first_few(named, _MOST_PAIRS))}" for transport, named in sorted(pairs.items()))


def _pair(connection: Connection) -> str:
    return f"{connection.source} -> {connection.target}"


def told_devices(log: Answer[NcclLog], nodes: Sequence[int]) -> str:
    """Return the RDMA devices through which one rank reached others of its node: `mlx5_0, mlx5_1`; empty without any.

    `nodes`: the node of each rank. For a log without a connection inside the node it is `unknown (...)`.
    """
    if isinstance(log, Missing) or isinstance(used := connections(log, nodes, "intranode"), Missing) or not used:
        return _SILENT
    return ", ".join(sorted({one.device for one in log.passages if nodes[one.source] == nodes[one.target]}))[:_MOST_NAMES]


def loopback(
    log: Answer[NcclLog], nodes: Sequence[int], devices_of_ranks: Sequence[str], chosen: Answer[tuple[RdmaDevice, ...]]
) -> Findings:
    """Yield findings of one rank in a loopback through NICs.

    `nodes`: the node of each rank; `devices_of_ranks`: `told_devices` of each rank of this node; `chosen`: the devices that the job uses.
    """
    used = connections(log, nodes, "intranode")
    if not isinstance(used, Missing) and not used:
        used = Missing(Why.NOT_THERE, "NCCL's log tells of no connection inside the node")
    yield "nic.loopback.transport", then(used, transports), "text", detail_of(used, join_pairs)
    staged = then(used, staged_in_host_memory)
    yield "nic.loopback.staged", then(staged, len), "count", detail_of(staged, join_pairs)
    unused = then(chosen, lambda chosen: _unused(devices_of_ranks, chosen))
    yield "nic.loopback.unused", then(unused, len), "count", detail_of(unused, " ".join)


def _unused(devices_of_ranks: Sequence[str], chosen: tuple[RdmaDevice, ...]) -> Answer[list[str]]:
    used = {name for text in devices_of_ranks for name in text.split(", ")}
    if unknown := sorted(filter(is_unknown, used)):
        return Missing(Why.UNREADABLE, f"NCCL's log does not say through which device it went: {unknown[0]}")
    if not chosen:
        return Missing(Why.NOT_THERE, "no RDMA device matches those that the job uses")
    return [device.name for device in chosen if device.name not in used]


def share(before: Counted, after: Counted, *, collective: str, num_bytes: int, world_size: int) -> Findings:
    """Yield shares of the ports of one node, read before and after one collective over `num_bytes` and several nodes.

    `sent`, `received`: the port with the fewest bytes, in percent of the mean of all. `carried`: bytes of all ports both ways, in percent
    of the least that must pass between nodes. With all_gather and reduce_scatter each element leaves a node or comes to it;
    with all_reduce it does both, even where switches reduce.
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
            mean = sum(moved.values()) / len(moved)
            least_percent = 100 * min(moved.values()) / mean if mean else 0.0  # 0 where no port has moved a byte
            fewest_first = sorted(moved.items(), key=lambda item: item[1])  # a cut message still names them
            listed = ", ".join(f"{port}: {num_bytes}" for port, num_bytes in fewest_first)[:MOST_TEXT]
            yield f"nic.share.{way}", least_percent, "%", f"bytes in {collective}: {listed}"
    least = num_bytes // (_ELEMENT_BYTES * world_size) * _ELEMENT_BYTES * world_size * (2 if collective == "all_reduce" else 1)
    yield "nic.share.carried", problem or 100 * total / least, "%", f"{total} bytes in {collective}, of at least {least}"


def _moved(before: Counted, after: Counted, name: str) -> Answer[Mapping[str, int]]:
    """Return the bytes of every port between two readings; missing with the port's name where one is missing."""
    moved: dict[str, int] = {}
    for port in sorted({port for one, port in (*before, *after) if one == name}):  # "" first: no port was read at all
        rise = _rise([counted[name, port] for counted in (before, after) if (name, port) in counted])
        if isinstance(rise, Missing):
            return Missing(rise.missing, f"{port}: {rise.detail}".removeprefix(": "))
        moved[port] = rise
    return moved


def _rise(readings: Sequence[Answer[int]]) -> Answer[int]:
    numbers = all_of(readings)
    if isinstance(numbers, Missing):
        return numbers
    if len(numbers) < 2:
        return Missing(Why.NOT_THERE, "one reading has no such port")
    first, last = numbers
    return last - first if last >= first else Missing(Why.UNREADABLE, f"fell from {first} to {last}: it was reset, or began again")
