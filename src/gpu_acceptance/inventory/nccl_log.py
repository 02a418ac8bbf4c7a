"""NCCL's own log of one rank: what it chose for each collective, and what carries bytes between ranks.

NCCL writes these lines where it starts with ENVIRONMENT. The formats are those of NCCL 2.28.9, seen on 4 H200 (tests/inventory/nccl_logs);
lines that were not seen there are from its source up to 2.30: src/enqueue.cc (algorithms), src/init.cc (channels),
src/transport/{p2p,shm,net}.cc and coll_net.cc (connections), src/transport/net_ib (devices). Versions differ: a line in another format is
not found, and an unknown name is `unknown (...)`.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpu_acceptance.inventory.answer import MOST_FILE_BYTES, Answer, Missing, T, Why, read_text, then

# `[2026-11-22 13:00:18] node-03:1107:1107 [0] enqueue.cc:1859 NCCL WARN Error : no algorithm/protocol available ...` (NCCL 2.28.9).
# src/debug.cc of 2026 writes the function after the place.
_KINDS = {
    "nccl": re.compile(r":\d+:\d+ \[-?\d+\] (?P<text>(?:\S+ )?(?:\(\S+\) )?NCCL WARN .{0,2000})", re.ASCII),
    "libibverbs": re.compile(r"(?P<text>libibverbs: .{0,2000})"),  # it writes only warnings to stderr (rdma-core, libibverbs/init.c)
}
WARNING_KINDS = tuple(_KINDS)

# Pattern of a whole message -> reason why it is harmless.
HARMLESS_WARNINGS = {
    r"libibverbs: Warning: couldn't open config directory '[^']*'\.?": (
        "an image without drivers of RDMA devices; what NCCL then uses between nodes is judged by nccl.transport"
    ),
}
_HARMLESS = [re.compile(pattern) for pattern in HARMLESS_WARNINGS]

ENVIRONMENT = {
    "NCCL_DEBUG": "INFO",
    "NCCL_DEBUG_SUBSYS": "INIT,ENV,GRAPH,NET,P2P,SHM,TUNING,NVLS",
}  # of a worker that reads the log
ALGORITHMS = frozenset({"RING", "TREE", "NVLS", "NVLS_TREE", "COLLNET_DIRECT", "COLLNET_CHAIN", "PAT"})
PROTOCOLS = frozenset({"LL", "LL128", "SIMPLE"})

_STDOUT = Path("/proc/self/fd/1")
_UNKNOWN = "unknown ("
_MOST_NAME = 60  # characters of an unknown name
_LINE = re.compile(r":(?P<pid>\d{1,10}):\d+ \[-?\d+\] NCCL INFO (?P<text>.{0,2000})", re.ASCII)
_CHOICE = re.compile(
    r"(?P<function>[A-Za-z]{1,40}): (?P<bytes>\d{1,19}) Bytes -> Algo (?P<algorithm>\S+) proto (?P<protocol>\S+)"
    r" channel\{Lo\.\.Hi\}=\{(?P<low>\d{1,6})\.\.(?P<high>\d{1,6})\}",
    re.ASCII,
)
_CHANNELS = re.compile(r"(?:comm \S+ )?(?P<coll>\d{1,6}) coll channels, \d+ collnet channels, (?P<nvls>\d{1,6}) nvls channels, ", re.ASCII)
_PAIR = re.compile(
    r"Channel \d+(?:/(?P<index>\d{1,3}))? : (?P<source>\d{1,7})\[[0-9a-f]+\] -> (?P<target>\d{1,7})\[[0-9a-f]+\] "
    r"(?:\[(?:send|receive)\] )?via (?P<via>.+)",
    re.ASCII,
)
_POINT_TO_POINT = "1"  # the index of a connection of sends and receives; those of collectives have 0
_VIA = re.compile(r"(?:Channel|CollNet) .* via ")
_COLLNET = re.compile(
    r"CollNet \d+(?:/\d+)? : (?P<rank>\d{1,7}) \[(?:send|receive)\] via COLLNET/(?P<name>[^/]+)/\d+(?P<gdr>/GDRDMA)?", re.ASCII
)
_P2P = re.compile(r"P2P/(?:direct pointer|CUMEM|MNNVL|IPC)(?:/read)?(?:/CE)?", re.ASCII)
_SHM = re.compile(r"SHM/(?:direct|CE)/(?:direct|CE)", re.ASCII)
# `NET/IB/0/GDRDMA(PCI)/Shared`; through the network card of another GPU `NET/IB/3(2)/GDRDMA`.
_NET = re.compile(r"NET/(?P<plugin>[^/]+)/(?P<device>\d{1,6})(?:\(\d+\))?(?P<gdr>/GDRDMA)?", re.ASCII)
# nccl-rdma-sharp-plugins calls itself IBext_v8 and writes the same `NET/IB : Using` line, with /SHARP after IB.
_INFINIBAND = re.compile(r"IB(?:ext)?(?:_v\d+)?", re.ASCII)
_USING_IB = re.compile(r"NET/IB : Using (?P<devices>.*)")
_IB_DEVICE = re.compile(r"\[(?P<index>\d{1,6})\](?P<name>[^\s:]+):\d+/(?P<link>IB|RoCE)(?![A-Za-z])", re.ASCII)
_VIRTUAL_DEVICE = re.compile(r"NET/IB : Made virtual device \[(?P<index>\d{1,6})\] name=(?P<names>\S+) ", re.ASCII)
_LIBFABRIC = {"AWS Libfabric", "Libfabric"}
# aws-ofi-nccl; libfabric has other providers, sockets among them.
_PROVIDER = re.compile(r"NET/OFI Selected [Pp]rovider is (?P<provider>[A-Za-z0-9_-]+)", re.ASCII)
_NETWORK = re.compile(r"Using network (?P<name>.+)")


def unexpected_warnings(lines: Iterable[str]) -> dict[str, list[str]]:
    """Return by kind each warning that is not known to be harmless, from its place in the source on."""
    found: dict[str, list[str]] = {name: [] for name in WARNING_KINDS}
    for line in lines:
        for name, pattern in _KINDS.items():
            match = pattern.search(line)
            if match and not any(harmless.fullmatch(match["text"].strip()) for harmless in _HARMLESS):
                found[name].append(match["text"].strip())
    return found


@dataclass(frozen=True)
class Choice:
    """NCCL's choice for one call of a collective. Only rank 0 of a communicator logs it."""

    function: str  # `AllReduce`
    num_bytes: int  # of the whole message; one rank's part for AllGather and ReduceScatter
    algorithm: str  # one of ALGORITHMS, or unknown
    protocol: str  # one of PROTOCOLS, or unknown
    num_channels: int


@dataclass(frozen=True)
class Connection:
    """Transport from one rank to another."""

    source: int
    target: int
    transport: str  # `P2P`, `P2P/indirect`, `SHM`, `IB`, `RoCE`, `EFA`, `Socket`, or unknown
    gpudirect: bool  # a network with GPUDirect RDMA


@dataclass(frozen=True)
class Passage:
    """An RDMA device through which this process sends to or receives from another rank, outside of collectives."""

    source: int
    target: int
    device: str  # `mlx5_0`, or unknown


@dataclass(frozen=True)
class NcclLog:
    """Facts in one rank's log, in its order. A line in an unknown format counts for nothing."""

    choices: tuple[Choice, ...]
    connections: tuple[Connection, ...]  # each once
    reductions: tuple[Connection, ...]  # of a rank with a network that reduces, `SHARP`: the rank is source and target
    passages: tuple[Passage, ...]  # each once; a connection over sockets has none
    strange: str  # the first line about a connection in an unknown format, or empty
    network: Answer[str]  # the plug-in for other nodes, used or not: `Socket`
    num_channels: Answer[int]  # of collectives
    num_nvls_channels: Answer[int]


def read_own() -> Answer[NcclLog]:
    """Read the log of this process from its stdout, the log of its rank and of earlier workers (worker/worker.py)."""
    if not _STDOUT.is_file():
        return Missing(Why.NOT_THERE, "stdout is no file, so that NCCL's log cannot be read back")
    text = read_text(_STDOUT, MOST_FILE_BYTES)
    return then(text, lambda text: parse(text, os.getpid()))


def parse(text: str, pid: int) -> NcclLog:
    """Parse the lines of one process."""
    lines = [match["text"] for match in map(_LINE.search, text.split("\n")) if match and int(match["pid"]) == pid]
    networks = _Networks.of(lines)
    pairs = [match for match in map(_PAIR.fullmatch, lines) if match]
    channels = [match for match in map(_CHANNELS.match, lines) if match]
    return NcclLog(
        choices=tuple(_choice(match) for match in map(_CHOICE.match, lines) if match),
        connections=tuple(dict.fromkeys(_connection(match, networks) for match in pairs)),
        strange=next(
            (line[:_MOST_NAME] for line in lines if _VIA.match(line) and not _PAIR.fullmatch(line) and not _COLLNET.match(line)), ""
        ),
        passages=tuple(dict.fromkeys(one for match in pairs for one in _passages(match, networks))),
        reductions=tuple(dict.fromkeys(_reduction(match) for match in map(_COLLNET.match, lines) if match)),
        network=_last((match["name"] for match in map(_NETWORK.fullmatch, lines) if match), "NCCL names no network"),
        num_channels=_last((int(match["coll"]) for match in channels), "NCCL tells no number of channels"),
        num_nvls_channels=_last((int(match["nvls"]) for match in channels), "NCCL tells no number of channels"),
    )


@dataclass(frozen=True)
class _Networks:
    """Devices and providers behind the names of network plug-ins."""

    links: Mapping[int, str]  # by number of the device of NET/IB: IB or RoCE
    names: Mapping[int, tuple[str, ...]]  # by the same number; several where devices are merged
    providers: frozenset[str]  # of libfabric

    @classmethod
    def of(cls, lines: Iterable[str]) -> "_Networks":
        links: dict[int, str] = {}
        link_of: dict[str, str] = {}
        single: dict[int, tuple[str, ...]] = {}
        merged: dict[int, tuple[str, ...]] = {}
        providers = set()
        for line in lines:
            if match := _USING_IB.match(line):
                for device in _IB_DEVICE.finditer(match["devices"]):
                    links[int(device["index"])] = link_of[device["name"]] = device["link"]
                    single[int(device["index"])] = (device["name"],)
            elif match := _VIRTUAL_DEVICE.match(line):
                merged[int(match["index"])] = tuple(match["names"].split("+"))
            elif match := _PROVIDER.match(line):
                providers.add(match["provider"])
        for index, names in merged.items():  # connections number the merged devices, if there are any
            kinds = {link_of.get(name, "") for name in names}
            links[index] = kinds.pop() if len(kinds) == 1 else ""
        return cls(links, {**single, **merged}, frozenset(providers))

    def transport(self, plugin: str, device: int) -> str:
        if plugin == "Socket":
            return plugin
        if _INFINIBAND.fullmatch(plugin):
            return self.links.get(device, "")
        return "EFA" if plugin in _LIBFABRIC and self.providers == {"efa"} else ""

    def devices(self, plugin: str, device: int) -> tuple[str, ...]:
        return self.names.get(device, ()) if _INFINIBAND.fullmatch(plugin) else ()


def _choice(match: re.Match[str]) -> Choice:
    algorithm, protocol = match["algorithm"].upper(), match["protocol"].upper()
    return Choice(
        match["function"],
        int(match["bytes"]),
        algorithm if algorithm in ALGORITHMS else _unknown(match["algorithm"]),
        protocol if protocol in PROTOCOLS else _unknown(match["protocol"]),
        num_channels=int(match["high"]) - int(match["low"]) + 1,
    )


def _connection(match: re.Match[str], networks: _Networks) -> Connection:
    via = match["via"]
    net = _NET.match(via)
    if _P2P.fullmatch(via):
        transport = "P2P"
    elif via.startswith("P2P/indirect/"):  # through the memory of a third GPU
        transport = "P2P/indirect"
    elif _SHM.fullmatch(via):
        transport = "SHM"
    else:
        transport = (networks.transport(net["plugin"], int(net["device"])) if net else "") or _unknown(via)
    return Connection(int(match["source"]), int(match["target"]), transport, bool(net and net["gdr"]))


def _passages(match: re.Match[str], networks: _Networks) -> Iterator[Passage]:
    net = _NET.match(match["via"])
    if net and match["index"] == _POINT_TO_POINT and net["plugin"] != "Socket":
        for device in networks.devices(net["plugin"], int(net["device"])) or (_unknown(net[0]),):
            yield Passage(int(match["source"]), int(match["target"]), device)


def _reduction(match: re.Match[str]) -> Connection:
    name = match["name"]
    return Connection(int(match["rank"]), int(match["rank"]), name if name == "SHARP" else _unknown(f"COLLNET/{name}"), bool(match["gdr"]))


def is_unknown(name: str) -> bool:
    """Return True for a transport, algorithm or device that this suite does not know: `unknown (NET/Other/0)`."""
    return name.startswith(_UNKNOWN)


def _unknown(name: str) -> str:
    return f"{_UNKNOWN}{name[:_MOST_NAME]})"


def _last(found: Iterable[T], otherwise: str) -> Answer[T]:
    values = list(found)
    return values[-1] if values else Missing(Why.NOT_THERE, otherwise)
