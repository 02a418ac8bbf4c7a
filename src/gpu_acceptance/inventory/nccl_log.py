"""NCCL's own log of one rank: what it chose for each collective, and what carries bytes between ranks.

NCCL writes these lines where it starts with ENVIRONMENT. Forms of 2.18 to 2.30 are read: those of 2.28.9 were seen on 4 H200
(tests/inventory/nccl_logs), the others are from public logs (tests/inventory/test_nccl_log.py) and from NCCL's source: src/enqueue.cc
(algorithms), src/init.cc (channels), src/transport/{p2p,shm,net}.cc and coll_net.cc (connections), src/transport/net_ib (devices).
A line in another form is not found, and an unknown name is `unknown (...)`.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpu_acceptance.inventory import infiniband
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
    r"libibverbs: Warning: couldn't load driver 'lib(?P<provider>[a-z0-9_]{1,30})-rdmav\d{1,3}\.so': .*": (
        "harmless only where no RDMA device of the node needs that library: an image brings those of many vendors"
    ),
}
_HARMLESS = [re.compile(pattern) for pattern in HARMLESS_WARNINGS]
# Kernel driver of an RDMA device -> the library that libibverbs loads for it (rdma-core, providers/).
_PROVIDERS = {
    "mlx5_core": {"mlx5"},
    "mlx4_core": {"mlx4"},
    "bnxt_en": {"bnxt_re"},
    "efa": {"efa"},
    "ice": {"irdma"},
    "idpf": {"irdma"},
    "i40e": {"irdma", "i40iw"},
    "mana": {"mana"},
    "hns3": {"hns"},
    "qede": {"qedr"},
    "cxgb4": {"cxgb4"},
    "erdma": {"erdma"},
    "vmw_pvrdma": {"vmw_pvrdma"},
    "hfi1": {"hfi1verbs"},
    infiniband.SOFTWARE: {"rxe", "siw"},
}

ENVIRONMENT = {
    "NCCL_DEBUG": "INFO",
    "NCCL_DEBUG_SUBSYS": "INIT,ENV,GRAPH,NET,P2P,SHM,TUNING,NVLS",
}  # of a worker that reads the log
ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")  # 2.20 to 2.23 log their numbers, from 0
PROTOCOLS = ("LL", "LL128", "SIMPLE")  # the same
_FIRST_THAT_TELLS = (2, 20)  # src/enqueue.cc: up to 2.19 the choice is written by builds with TRACE alone

_STDOUT = Path("/proc/self/fd/1")
_UNKNOWN = "unknown ("
_MOST_NAME = 60  # characters of an unknown name
_LINE = re.compile(r":(?P<pid>\d{1,10}):\d+ \[-?\d+\] NCCL INFO (?P<text>.{0,2000})", re.ASCII)
_VERSION = re.compile(r"NCCL version (?P<major>\d{1,3})\.(?P<minor>\d{1,3})\.(?P<patch>\d{1,3})\b", re.ASCII)
# 2.24 on: `AllReduce: 4096 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..3}`; 2.23: `AllReduce: 4096 Bytes -> Algo 1 proto 0 time 9.1`;
# 2.20 to 2.22 the same without a name. Those up to 2.23 count the whole message for every collective.
_CHOICE = re.compile(
    r"(?:(?P<function>[A-Za-z]{1,40}): )?(?P<bytes>\d{1,19}) Bytes -> Algo (?P<algorithm>\S+) proto (?P<protocol>\S+)"
    r" (?:channel\{Lo\.\.Hi\}=\{(?P<low>\d{1,6})\.\.(?P<high>\d{1,6})\}|time [0-9.]+$)",
    re.ASCII,
)
_CHANNELS = re.compile(
    r"(?:comm \S+ )?(?P<coll>\d{1,6}) coll channels, (?:\d+ collnet channels, )?(?P<nvls>\d{1,6}) nvls channels, ", re.ASCII
)
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
_SHM = re.compile(r"SHM/(?:direct|CE)(?:/(?:direct|CE))?", re.ASCII)  # 2.30 writes one side
# `NET/IB/0/GDRDMA(PCI)/Shared`; through the network card of another GPU `NET/IB/3(2)/GDRDMA`.
_NET = re.compile(r"NET/(?P<plugin>[^/]+)/(?P<device>\d{1,6})(?:\(\d+\))?(?P<gdr>/GDRDMA(?:\([A-Za-z0-9]{1,8}\))?)?(?:/Shared)?", re.ASCII)
_TORN = re.compile(r"NET/(?P<plugin>[^/]+)/(?P<device>\d{1,6})\b", re.ASCII)  # what a line of two processes still tells
# nccl-rdma-sharp-plugins calls itself IBext_v8 or `NCCL RDMA Plugin v8`, and writes the same `NET/IB : Using` line.
_INFINIBAND = re.compile(r"IB|IBext|NCCL RDMA Plugin", re.ASCII)
_PLUGIN_VERSION = re.compile(r"[ _]v\d{1,3}$", re.ASCII)  # `IBext_v8`, `GPUDirectTCPX_v7`
_USING = re.compile(r"NET/(?P<plugin>[^/:]{1,60}?) ?: Using (?P<devices>\[.*)")
# Up to 2.24 ports of one card could be one device: `[0]={[0] mlx5_2:1/RoCE, [1] mlx5_3:1/RoCE}`. 2.30 adds rail and plane:
# `[1]mlx5_1:1:0:1/IB`.
_DEVICE = r"\[\d{1,6}\] ?(?P<name>[^\s:]+):\d+(?::\d*){0,2}/(?P<link>IB|RoCE)(?![A-Za-z])"
_USED_DEVICE = re.compile(rf"\[\d{{1,6}}\]=\{{(?P<merged>[^}}]*)\}}|{_DEVICE}", re.ASCII)
_MERGED_DEVICE = re.compile(_DEVICE, re.ASCII)
_VIRTUAL_DEVICE = re.compile(r"NET/(?P<plugin>[^/:]{1,60}?) ?: Made virtual device \[(?P<index>\d{1,6})\] name=(?P<names>\S+) ", re.ASCII)
_DATA_DIRECT = "_dma"  # src/transport/net_ib/init.cc: the way of a ConnectX-8 past the CPU is a second device of this name
_LIBFABRIC = frozenset({"AWS Libfabric", "Libfabric"})
# aws-ofi-nccl; libfabric has other providers, sockets among them.
_PROVIDER = re.compile(r"NET/OFI Selected [Pp]rovider is (?P<provider>[A-Za-z0-9_-]+)", re.ASCII)
_NETWORK = re.compile(r"Using network (?P<name>.+)")


def unexpected_warnings(
    lines: Iterable[str], read_drivers: Callable[[], Answer[frozenset[str]]] = infiniband.read_drivers
) -> dict[str, list[str]]:
    """Return by kind each warning that is not known to be harmless, from its place in the source on."""
    found: dict[str, list[str]] = {name: [] for name in WARNING_KINDS}
    for line in lines:
        for name, pattern in _KINDS.items():
            match = pattern.search(line)
            if match and not _is_harmless(match["text"].strip(), read_drivers):
                found[name].append(match["text"].strip())
    return found


def _is_harmless(text: str, read_drivers: Callable[[], Answer[frozenset[str]]]) -> bool:
    match = next((match for pattern in _HARMLESS if (match := pattern.fullmatch(text))), None)
    provider = match.groupdict().get("provider") if match else None
    if not match or not provider:
        return bool(match)
    drivers = read_drivers()
    return not isinstance(drivers, Missing) and all(provider not in _PROVIDERS.get(driver, {provider}) for driver in drivers)


@dataclass(frozen=True)
class Choice:
    """NCCL's choice for one call of a collective. Only rank 0 of a communicator logs it."""

    function: str  # `AllReduce`; empty in the log of 2.20 to 2.22
    num_bytes: int  # from 2.24 on one rank's part for AllGather and ReduceScatter; else of the whole message
    algorithm: str  # one of ALGORITHMS, or unknown
    protocol: str  # one of PROTOCOLS, or unknown
    num_channels: int | None  # None: up to 2.23 no line tells it


@dataclass(frozen=True)
class Connection:
    """Transport from one rank to another."""

    source: int
    target: int
    transport: str  # `P2P`, `P2P/indirect`, `SHM`, `IB`, `RoCE`, `EFA`, another plug-in's name (`Socket`, `gIB`), or unknown
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
    no_choice: str  # why the log of this version cannot tell a choice, and what to do; or empty


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
    intact = [match for match in pairs if _is_intact(match["via"])]
    channels = [match for match in map(_CHANNELS.match, lines) if match]
    return NcclLog(
        choices=tuple(_choice(match) for match in map(_CHOICE.match, lines) if match),
        connections=tuple(dict.fromkeys(_connection(match, networks) for match in intact)),
        strange=_first_strange(lines, intact),
        passages=tuple(dict.fromkeys(one for match in intact for one in _passages(match, networks))),
        reductions=tuple(dict.fromkeys(_reduction(match) for match in map(_COLLNET.fullmatch, lines) if match)),
        network=_last((match["name"] for match in map(_NETWORK.fullmatch, lines) if match), "NCCL names no network"),
        num_channels=_last((int(match["coll"]) for match in channels), "NCCL tells no number of channels"),
        num_nvls_channels=_last((int(match["nvls"]) for match in channels), "NCCL tells no number of channels"),
        no_choice=_no_choice(_VERSION.search(text)),
    )


def _no_choice(version: re.Match[str] | None) -> str:
    if not version or (int(version["major"]), int(version["minor"])) >= _FIRST_THAT_TELLS:
        return ""
    first = ".".join(map(str, _FIRST_THAT_TELLS))
    return f"{version[0]} logs no algorithm, {first} and later do: run with a newer NCCL, or declare the metric not applicable"


def _is_intact(via: str) -> bool:
    """Return False for a line about a network that ends in something else: two processes wrote into one file."""
    return not via.startswith("NET/") or bool(_NET.fullmatch(via))


def _first_strange(lines: Iterable[str], intact: Iterable[re.Match[str]]) -> str:
    """Return the first line about a connection that cannot be read, and of whose pair and network card no other line tells."""
    told = {(match["source"], match["target"], net[0]) for match in intact if (net := _TORN.match(match["via"]))}
    for line in lines:
        pair = _PAIR.fullmatch(line)
        if not _VIA.match(line) or _COLLNET.fullmatch(line) or (pair and _is_intact(pair["via"])):
            continue
        if not pair or not (net := _TORN.match(pair["via"])) or (pair["source"], pair["target"], net[0]) not in told:
            return line[:_MOST_NAME]
    return ""


@dataclass(frozen=True)
class _Device:
    """A device of a network plug-in, as its connections number it."""

    names: tuple[str, ...]  # several where ports are merged
    link: str  # IB or RoCE; empty where merged ports differ


@dataclass(frozen=True)
class _Networks:
    """Devices and providers behind the names of network plug-ins."""

    devices_of: Mapping[str, Mapping[int, _Device]]  # by plug-in and number
    providers: frozenset[str]  # of libfabric

    @classmethod
    def of(cls, lines: Iterable[str]) -> "_Networks":
        devices_of: dict[str, dict[int, _Device]] = {}
        virtual: list[re.Match[str]] = []  # 2.28 writes them before the line that tells the link
        providers = set()
        for line in lines:
            if match := _USING.match(line):
                devices_of[match["plugin"]] = dict(enumerate(map(_device, _USED_DEVICE.finditer(match["devices"]))))
            elif match := _VIRTUAL_DEVICE.match(line):
                virtual.append(match)
            elif match := _PROVIDER.match(line):
                providers.add(match["provider"])
        for match in virtual:
            devices = devices_of.setdefault(match["plugin"], {})
            link_of = {name: device.link for device in devices.values() for name in device.names}
            names = tuple(name.removesuffix(_DATA_DIRECT) for name in match["names"].split("+"))
            devices[int(match["index"])] = _Device(names, _same({link_of.get(name, "") for name in names}))
        return cls(devices_of, frozenset(providers))

    def transport(self, plugin: str, device: int) -> str:
        name = _PLUGIN_VERSION.sub("", plugin)
        if name in _LIBFABRIC:
            return "EFA" if self.providers == {"efa"} else _unknown(f"NET/{name} of {', '.join(sorted(self.providers)) or 'no provider'}")
        if not _INFINIBAND.fullmatch(name):
            return name  # of one kind of network each: Socket, gIB, FasTrak
        found = self._device(plugin, device)
        return (found.link if found else "") or _unknown(f"NET/{name}")

    def devices(self, plugin: str, device: int) -> tuple[str, ...]:
        found = self._device(plugin, device)
        return found.names if found else (_unknown(f"NET/{plugin}/{device}"),)

    def _device(self, plugin: str, device: int) -> _Device | None:
        """Return the device. What is built from NCCL's own plug-in names its devices in lines of `NET/IB`, as that does."""
        table = "IB" if _INFINIBAND.fullmatch(_PLUGIN_VERSION.sub("", plugin)) else plugin
        return self.devices_of.get(table, {}).get(device)


def _device(match: re.Match[str]) -> _Device:
    found = [match] if match["name"] else list(_MERGED_DEVICE.finditer(match["merged"]))
    return _Device(tuple(one["name"].removesuffix(_DATA_DIRECT) for one in found), _same({one["link"] for one in found}))


def _same(links: set[str]) -> str:
    return links.pop() if len(links) == 1 else ""


def _choice(match: re.Match[str]) -> Choice:
    return Choice(
        match["function"] or "",
        int(match["bytes"]),
        _named(match["algorithm"], ALGORITHMS),
        _named(match["protocol"], PROTOCOLS),
        num_channels=int(match["high"]) - int(match["low"]) + 1 if match["low"] else None,
    )


def _named(name: str, known: tuple[str, ...]) -> str:
    """Return a name that NCCL wrote, as text or as its number among the known ones."""
    if name.isdecimal() and int(name) < len(known):
        return known[int(name)]
    return name.upper() if name.upper() in known else _unknown(name)


def _connection(match: re.Match[str], networks: _Networks) -> Connection:
    via = match["via"]
    net = _NET.fullmatch(via)
    if _P2P.fullmatch(via):
        transport = "P2P"
    elif via.startswith("P2P/indirect/"):  # through the memory of a third GPU
        transport = "P2P/indirect"
    elif _SHM.fullmatch(via):
        transport = "SHM"
    else:
        transport = networks.transport(net["plugin"], int(net["device"])) if net else _unknown(via)
    return Connection(int(match["source"]), int(match["target"]), transport, bool(net and net["gdr"]))


def _passages(match: re.Match[str], networks: _Networks) -> Iterator[Passage]:
    net = _NET.fullmatch(match["via"])
    if net and match["index"] == _POINT_TO_POINT and net["plugin"] != "Socket":
        for device in networks.devices(net["plugin"], int(net["device"])):
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
