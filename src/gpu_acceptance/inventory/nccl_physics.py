"""What of NCCL's log is judged: by which algorithm a collective ran, and over what its bytes went inside a node and between nodes. Pure.

What the log does not tell is missing, and what this suite does not know is `unknown (...)`: neither is what anybody bought.
"""

from collections.abc import Iterator, Sequence

from gpu_acceptance.base.text import first_few
from gpu_acceptance.inventory.answer import Answer, Missing, Why
from gpu_acceptance.inventory.nccl_log import Choice, Connection, NcclLog

Finding = tuple[str, Answer[int] | Answer[str], str, str]  # metric, value, unit, detail
Findings = Iterator[Finding]
Fact = tuple[str, Answer[int] | Answer[str], str]  # metric, value, unit

_FUNCTIONS = {"all_gather": "AllGather", "all_reduce": "AllReduce", "reduce_scatter": "ReduceScatter"}  # as torch and as NCCL name them
COLLECTIVES = tuple(_FUNCTIONS)
_MOST_PAIRS = 4  # named of one transport


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
