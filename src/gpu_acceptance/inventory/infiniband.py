"""RDMA devices: cards, ports, GPUDirect RDMA, and the devices nearest to a GPU."""

from collections import Counter as CountOf
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Self

from gpu_acceptance.inventory.answer import (
    Answer,
    Missing,
    T,
    Why,
    all_of,
    combine,
    is_absent,
    missing_over,
    names_in,
    parser,
    read_value,
    then,
)
from gpu_acceptance.inventory.gpu import GpuReading
from gpu_acceptance.inventory.pci_topology import Distance, Place, distance, nearest, numa_node, path_behind

Labels = dict[str, str | int]  # of figures, as record/figure.py has them

# InfiniBand specification, PortCounters: errors that a good link does not count, and the bits of each counter, which stops at its highest
# value. Traffic and waiting for credits are no errors.
LINK_ERRORS = {"link_downed": 8, "link_error_recovery": 8, "symbol_error": 16, "port_rcv_errors": 16, "port_xmit_discards": 16}
# Files of `hw_counters` in which bnxt_re counts the same event, or, as EFA does too, bytes (Linux, drivers/infiniband/hw:
# bnxt_re/hw_counters.c, efa/efa_verbs.c). Its port_rcv_errors, where Linux is new enough to show it, is rx_roce_errors cut to 16 bits.
OTHER_NAMES = {
    "port_rcv_errors": "rx_roce_errors",
    "out_of_sequence": "oos_drop_count",
    "packet_seq_err": "seq_err_naks_rcvd",
    "port_xmit_data": "tx_bytes",
    "port_rcv_data": "rx_bytes",
}
# Files of `counters` that never count anything, by driver: a 0 there proves nothing (Linux, bnxt_re_assign_pma_port_counters).
_NEVER_COUNTED = {"bnxt_en": frozenset({"link_downed", "link_error_recovery", "symbol_error"})}
_MOST_GIDS = 16  # entries of a port's GID table that are read; RoCE has 256, and its types are all among the first
_OLD_SNAPSHOT = Missing(Why.NOT_THERE, "the snapshot is of an older version")
SOFTWARE = "software"
NEAREST = "nearest"  # a value of the parameter infiniband.devices
NEAREST_UNKNOWN = Missing(Why.UNREADABLE, "it is not known which devices are nearest to a GPU; infiniband.devices may name them")
_NO_PLACE = Missing(Why.NOT_THERE, "the PCI bus was not asked for it")


@dataclass(frozen=True)
class GpuDirectRdma:
    """The two ways of GPUDirect RDMA. Only NCCL's log proves that a transfer takes one: it says `GDRDMA`.

    The older way is a module: nvidia_peermem of the GPU driver, before it nv_peer_mem. Loaded, it was built against an RDMA stack with peer
    memory clients. The newer way, DMA-BUF, needs no module, but open kernel modules of the GPU driver and Linux 5.12. An older kernel may
    have it too: distributions, and NVIDIA's own RDMA stack, bring it there.
    """

    peermem_module: Answer[str]
    has_open_kernel_modules: Answer[bool]
    has_kernel_5_12: Answer[bool]


def read_gpudirect(root: Path = Path("/")) -> GpuDirectRdma:
    """Read the facts of both ways."""
    folder = root / "sys" / "module"
    none = Missing(Why.NOT_THERE, f"neither nvidia_peermem nor nv_peer_mem in {folder}")
    return GpuDirectRdma(
        peermem_module=then(
            names_in(folder), lambda names: next((name for name in ("nvidia_peermem", "nv_peer_mem") if name in names), none)
        ),
        has_open_kernel_modules=read_value(root / "proc" / "driver" / "nvidia" / "version", _is_open),
        has_kernel_5_12=read_value(root / "proc" / "sys" / "kernel" / "osrelease", _kernel_has_dma_buf),
    )


# The first line: `NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build ...`; of the closed ones:
# `NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  ...`
_is_open = parser(r"NVRM version: NVIDIA UNIX (Open )?[^\n]{0,30}Kernel Module\b(?s:.*)", bool)
_kernel_has_dma_buf = parser(r"([0-9]{1,4})\.([0-9]{1,4})\b[ -~]*", lambda major, minor: (int(major), int(minor)) >= (5, 12))


class PortName(str):
    """Name of a port, `mlx5_3 port 1`, with its device and number as labels."""

    labels: Labels

    def __new__(cls, device: str, port: str | int) -> Self:
        name = super().__new__(cls, f"{device} port {port}")
        name.labels = {"device": device, "port": str(port)}
        return name


@dataclass(frozen=True)
class Counter:
    """One number of `counters` or `hw_counters` since the driver was loaded or it was reset."""

    name: str
    value: Answer[int]


@dataclass(frozen=True)
class Rate:
    """Present rate of a link: `400 Gb/sec (4X NDR)`. An unknown speed, like that of a port that is down, reads as SDR."""

    gbit_per_s: float
    width: str  # 4X: the number of lanes
    speed: Answer[str]  # of one lane: SDR, QDR, EDR, HDR, NDR, XDR; on RoCE the equivalent InfiniBand speed


@dataclass(frozen=True)
class Port:
    """One port of an RDMA device."""

    number: int
    link_layer: Answer[str]  # InfiniBand, or Ethernet for RoCE
    state: Answer[str]  # ACTIVE; DOWN, INIT (waits for the subnet manager), ARMED, ACTIVE_DEFER
    phys_state: Answer[str]  # LinkUp; Sleep, Polling (no partner), Disabled, PortConfigurationTraining, LinkErrorRecovery, Phy Test
    rate: Answer[Rate]
    lid: Answer[int]  # given by the subnet manager; 0 on RoCE
    sm_lid: Answer[int]  # the subnet manager's own; 0 where none has configured this port
    gid_types: Answer[tuple[str, ...]]  # IB/RoCE v1, RoCE v2
    counters: Answer[tuple[Counter, ...]]
    hw_counters: Answer[tuple[Counter, ...]]


@dataclass(frozen=True)
class Netdev:
    """A network interface on the same PCI function: RoCE's own, or IP over InfiniBand. sysfs has no MTU of an InfiniBand link."""

    name: str
    mtu_bytes: Answer[int]


@dataclass(frozen=True)
class RdmaDevice:
    """One device of /sys/class/infiniband."""

    name: str  # mlx5_0
    hca_type: Answer[str]  # MT4129 is a ConnectX-7
    board_id: Answer[str]  # MT_0000000838: the card as it is sold
    firmware: Answer[str]
    node_guid: Answer[str]
    sys_image_guid: Answer[str]  # the same for all devices of one card
    pci_address: Answer[str]  # as sysfs writes it, 0000:3b:00.0
    pci_path: Answer[str]  # the bridges above it, for pci_topology.distance
    numa_node: Answer[int]
    netdevs: Answer[tuple[Netdev, ...]]
    ports: Answer[tuple[Port, ...]]
    hw_counters: Answer[tuple[Counter, ...]]  # of the whole device; most drivers have them at the port
    driver: Answer[str] = _OLD_SNAPSHOT  # of the PCI function: mlx5_core, efa


@dataclass(frozen=True)
class Card:
    """Identity of an RDMA device, in fields of `RdmaDevice`."""

    hca_type: Answer[str]
    board_id: Answer[str]
    firmware: Answer[str]


@dataclass(frozen=True)
class InfiniBand:
    """`devices` is Missing, not there, where no RDMA driver is loaded: sysfs has no such class then."""

    devices: Answer[tuple[RdmaDevice, ...]]
    gpudirect: GpuDirectRdma


def globs_of_job(wanted: str, near: Collection[str] | None) -> str:
    """Return the devices that the job uses as globs. `nearest`: those `near` a GPU; all, where no GPU has one.

    Where these are not known (None) it stays `nearest`, which names no device: one that serves storage may rightly be down.
    """
    return wanted if wanted != NEAREST or near is None else " ".join(sorted(near)) or "*"


def is_chosen(device: str, globs: str) -> bool:
    """Return True for a device that the job uses: `mlx5_0 mlx5_[3-6]`. Others serve storage and administration."""
    return any(fnmatchcase(device, glob) for glob in globs.split())


def not_found(devices: Sequence[str], globs: str) -> Missing | None:
    """Return the reason why a glob matches no device: without it, the others would hide a card that fell off its bus."""
    if globs == NEAREST:
        return NEAREST_UNKNOWN
    lacking = [glob for glob in globs.split() if not any(is_chosen(device, glob) for device in devices)]
    return Missing(Why.NOT_THERE, f"no RDMA device matches {lacking[0]}; devices here: {len(devices)}"[:200]) if lacking else None


def read(root: Path = Path("/")) -> InfiniBand:
    """Read all RDMA devices of this node."""
    return InfiniBand(_each(root / "sys" / "class" / "infiniband", partial(_device, root=root)), read_gpudirect(root))


def read_cards(root: Path = Path("/")) -> Answer[tuple[Card, ...]]:
    """Read the identity of each device, without its ports and counters, which a sick device answers late or never."""
    names = ("hca_type", "board_id", "fw_ver")
    return _each(root / "sys" / "class" / "infiniband", lambda folder: Card(*(read_value(folder / name, _word) for name in names)))


def read_drivers(root: Path = Path("/")) -> Answer[frozenset[str]]:
    """Read the kernel drivers of all RDMA devices; SOFTWARE for one without a PCI function (rxe, siw)."""
    folder = root / "sys" / "class" / "infiniband"
    names = names_in(folder)
    if isinstance(names, Missing):
        return frozenset() if names.missing is Why.NOT_THERE else names  # no driver of such devices is loaded
    return then(all_of([driver_of(folder / name) for name in names]), frozenset)


def driver_of(folder: Path) -> Answer[str]:
    """Return the kernel driver of the PCI function behind a folder of /sys/class."""
    try:
        return (folder / "device" / "driver").readlink().name
    except OSError as error:
        return SOFTWARE if not (folder / "device").exists() else missing_over(error, folder)


def _device(folder: Path, root: Path) -> RdmaDevice:
    path = path_behind(folder / "device")  # a device made of software (rxe, siw) has no such link
    address = path if isinstance(path, Missing) else path.rsplit("/", 1)[-1]
    driver = driver_of(folder)
    dead = frozenset() if isinstance(driver, Missing) else _NEVER_COUNTED.get(driver, frozenset())
    pci_device = folder / "device" if isinstance(address, Missing) else root / "sys" / "bus" / "pci" / "devices" / address
    return RdmaDevice(
        name=folder.name,
        hca_type=read_value(folder / "hca_type", _word),
        board_id=read_value(folder / "board_id", _word),
        firmware=read_value(folder / "fw_ver", _word),
        node_guid=read_value(folder / "node_guid", _guid),
        sys_image_guid=read_value(folder / "sys_image_guid", _guid),
        pci_address=address,
        pci_path=path,
        numa_node=numa_node(pci_device),
        netdevs=_each(pci_device / "net", lambda netdev: Netdev(netdev.name, read_value(netdev / "mtu", _count))),
        ports=then(_each(folder / "ports", partial(_port, dead=dead)), lambda ports: tuple(sorted(ports, key=lambda port: port.number))),
        hw_counters=_counters(folder / "hw_counters"),
        driver=driver,
    )


def _port(folder: Path, dead: frozenset[str]) -> Port:
    # Entries of the GID table that are not in use cannot be read.
    gids = [read_value(folder / "gid_attrs" / "types" / str(index), _word) for index in range(_MOST_GIDS)]
    return Port(
        number=_count(folder.name),
        link_layer=read_value(folder / "link_layer", _word),
        state=read_value(folder / "state", _state),
        phys_state=read_value(folder / "phys_state", _state),
        rate=read_value(folder / "rate", _rate),
        lid=read_value(folder / "lid", _lid),
        sm_lid=read_value(folder / "sm_lid", _lid),
        gid_types=tuple(sorted({one for one in gids if isinstance(one, str)})) or next(one for one in gids if isinstance(one, Missing)),
        counters=_counters(folder / "counters", dead),
        hw_counters=_counters(folder / "hw_counters"),
    )


def _counters(folder: Path, dead: frozenset[str] = frozenset()) -> Answer[tuple[Counter, ...]]:
    """Read all counters but those that count nothing, and `lifespan`, which sets how long the others are cached."""
    return _each(folder, lambda path: Counter(path.name, read_value(path, _counter_value)), besides={"lifespan", *dead})


def _each(folder: Path, read_one: Callable[[Path], T], besides: Collection[str] = ()) -> Answer[tuple[T, ...]]:
    names = names_in(folder)
    if isinstance(names, Missing):
        return names
    try:
        return tuple(read_one(folder / name) for name in names if name not in besides)
    except ValueError as error:
        return Missing(Why.UNREADABLE, f"{folder}: {error}"[:200])


_word = parser(r"([ -~]{1,100})", str)
_guid = parser(r"([0-9a-f]{4}(?::[0-9a-f]{4}){3})", str)
_count = parser(r"([0-9]{1,20})", int)
_NOT_COUNTED = Missing(Why.NOT_SUPPORTED, "the device does not count it")
_NO_SPEED = Missing(Why.NOT_THERE, "older kernels name no speed for SDR")
# Older kernels write N/A for a device without performance management.
_counter_value = parser(r"([0-9]{1,20})|N/A \(no PMA\)", lambda digits: _NOT_COUNTED if digits is None else int(digits))
_lid = parser(r"0x([0-9a-f]{1,8})", lambda digits: int(digits, 16))
_state = parser(r"[0-9]+: ([ -~]{1,40})", str)  # `4: ACTIVE`
_rate = parser(
    r"([0-9]{1,6}(?:\.5)?) Gb/sec \(([0-9]{1,3}X)(?: ([A-Z0-9]{1,10}))?\)",
    lambda number, width, speed: Rate(float(number), width, speed or _NO_SPEED),
)


@dataclass(frozen=True)
class Nearest:
    """The nearest device, or several at the same distance."""

    names: tuple[str, ...]
    distance: Distance

    def __str__(self) -> str:
        return f"{' '.join(self.names)} {self.distance}"


def place_of(gpu: GpuReading, places: tuple[Place, ...]) -> Answer[Place]:
    """Return the place of a GPU, by the PCI bus id that NVML gives."""
    return then(gpu.pci_bus_id, lambda bus_id: next((place for place in places if place.pci_bus_id == bus_id), _NO_PLACE))


def nearest_devices(place: Answer[Place], devices: Answer[tuple[RdmaDevice, ...]]) -> Answer[Nearest]:
    """Return the RDMA devices nearest to a place on the PCI bus."""
    return combine(_nearest, devices, place)


def near_gpus(places: Sequence[Place], devices: Answer[tuple[RdmaDevice, ...]]) -> Answer[tuple[RdmaDevice, ...]]:
    """Return the RDMA devices that are nearest to some GPU, given the places of all GPUs; none without an RDMA driver."""
    if isinstance(devices, Missing):
        return () if devices.missing is Why.NOT_THERE else devices
    paths, numa = {one.name: one.pci_path for one in devices}, {one.name: one.numa_node for one in devices}
    return then(names_near(places, paths, numa), lambda names: tuple(one for one in devices if one.name in names))


def names_near(places: Sequence[Place], paths: Mapping[str, Answer[str]], numa: Mapping[str, Answer[int]]) -> Answer[tuple[str, ...]]:
    """Return the names of the PCI devices that are nearest to some GPU.

    A GPU whose nearest device is further away than that of most GPUs has none of its own: its card is gone, and what is next serves others.
    Where as many are near as far, the near ones have cards of their own.
    """
    usable = {name: path for name, path in paths.items() if not is_absent(path)}
    found: list[tuple[Distance, tuple[str, ...]]] = []
    for place in places:
        distances = {
            name: combine(lambda a, b, name=name, place=place: distance(a, b, place.numa_node, numa[name]), place.pci_path, path)
            for name, path in usable.items()
        }
        names = nearest(distances)
        if isinstance(names, Missing):
            return names
        if names and not isinstance(far := distances[names[0]], Missing):
            found.append((far, names))
    order = list(Distance)
    counted = CountOf(far for far, _ in found)
    usual = min((order.index(far) for far, times in counted.items() if times == max(counted.values())), default=0)
    return tuple(sorted({name for far, names in found for name in names if order.index(far) <= usual}))


def _nearest(devices: tuple[RdmaDevice, ...], place: Place) -> Answer[Nearest]:
    def to(device: RdmaDevice) -> Answer[Distance]:
        return combine(lambda a, b: distance(a, b, place.numa_node, device.numa_node), place.pci_path, device.pci_path)

    distances = {device.name: to(device) for device in devices}
    names = nearest(distances)
    if isinstance(names, Missing):
        return names
    far = distances[names[0]] if names else Missing(Why.NOT_THERE, "there is no RDMA device")
    return then(far, lambda far: Nearest(names, far))
