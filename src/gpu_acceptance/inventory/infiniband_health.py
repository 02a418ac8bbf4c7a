"""Findings in a node's RDMA devices by topic: metric, answer, unit, detail, and the labels of the first port.

The bounds are in the profiles; docs/limits.md explains each. A missing answer stays missing, and never counts as a pass.
"""

from collections import Counter as CountOf
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from gpu_acceptance.inventory.answer import (
    MOST_TEXT,
    Answer,
    Missing,
    T,
    Why,
    all_of,
    combine,
    detail_of,
    is_absent,
    known,
    then,
    with_name,
)
from gpu_acceptance.inventory.gpu import GpuReading
from gpu_acceptance.inventory.infiniband import (
    LINK_ERRORS,
    NEAREST,
    NEAREST_UNKNOWN,
    OTHER_NAMES,
    Counter,
    GpuDirectRdma,
    InfiniBand,
    Labels,
    Port,
    PortName,
    is_chosen,
    nearest_devices,
)
from gpu_acceptance.inventory.pci_topology import Place

Value = Answer[bool] | Answer[int] | Answer[float] | Answer[str]
Finding = tuple[str, Value, str, str] | tuple[str, Value, str, str, Labels]  # metric, value, unit, detail, labels
Findings = Iterator[Finding]
_Named = tuple[tuple[PortName, T], ...]  # a value of each port

# By the names of mlx5: packets that were lost, came out of order, or were damaged. Congestion marks are no errors, and
# local_ack_timeout_err also counts on the peers of a job that was killed.
_ROCE_ERRORS = ("out_of_sequence", "packet_seq_err", "rx_icrc_encapsulated")
_ROCE = "Ethernet"  # the link layer of a RoCE port
_NO_PORT = Missing(Why.NOT_THERE, "no RDMA device that the job uses has a port")
_NO_GPU = Missing(Why.NOT_THERE, "this node has no GPU")
_OLD_KERNEL = Missing(Why.NOT_SUPPORTED, "no peermem module, and Linux before 5.12, which may or may not have DMA-BUF")


def chosen(infiniband: InfiniBand, globs: str) -> InfiniBand:
    """Keep only the devices that the job uses: `mlx5_0 mlx5_[3-6]`. Others serve storage and administration."""
    if isinstance(infiniband.devices, Missing):
        why = infiniband.devices
        detail = f"no RDMA driver is loaded: no {why.detail}" if why.missing is Why.NOT_THERE else why.detail
        return replace(infiniband, devices=Missing(why.missing, detail))
    if globs == NEAREST:
        return replace(infiniband, devices=NEAREST_UNKNOWN)
    return replace(infiniband, devices=tuple(device for device in infiniband.devices if is_chosen(device.name, globs)))


def devices(infiniband: InfiniBand, gpus: Answer[tuple[GpuReading, ...]], place: Answer[Place]) -> Findings:
    """Yield the number of devices per GPU, and the nearest ones of the GPU at this place."""
    found, near = infiniband.devices, nearest_devices(place, infiniband.devices)
    per_gpu = combine(lambda found, gpus: len(found) / len(gpus) if gpus else _NO_GPU, found, gpus)
    yield "infiniband.devices.per_gpu", per_gpu, "count", detail_of(found, lambda found: " ".join(device.name for device in found))
    yield "infiniband.devices.nearest", then(near, lambda near: len(near.names)), "count", detail_of(near, str)
    yield "infiniband.devices.distance", then(near, lambda near: str(near.distance)), "text", detail_of(near, str)


def ports(infiniband: InfiniBand) -> Findings:
    found = _ports(infiniband)
    state, where, labels = _common(_each(found, lambda port: port.state))
    yield "infiniband.ports.state", state, "text", where, labels
    state, where, labels = _common(_each(found, lambda port: port.phys_state))
    yield "infiniband.ports.phys_state", state, "text", where, labels
    rate, where, labels = _least(_each(found, lambda port: then(port.rate, lambda rate: rate.gbit_per_s)))
    yield "infiniband.ports.rate", rate, "Gbit/s", where, labels
    width, where, labels = _least(_each(found, lambda port: then(port.rate, lambda rate: float(rate.width.removesuffix("X")))))
    yield "infiniband.ports.width", width, "lanes", where, labels


def counters(infiniband: InfiniBand) -> Findings:
    """Yield errors of links since the driver was loaded, or the counters were reset."""
    for name in LINK_ERRORS:
        errors, where, labels = _most(_counted(_ports(infiniband), name, lambda port: port.counters))
        yield f"infiniband.counters.{name}", errors, "count", where, labels


def roce(infiniband: InfiniBand) -> Findings:
    for name in _ROCE_ERRORS:
        errors, where, labels = _most(_counted(_roce_ports(_ports(infiniband)), name, lambda port: port.hw_counters))
        yield f"infiniband.roce.{name}", errors, "count", where, labels


def lacking(infiniband: InfiniBand) -> Iterator[str]:
    """Yield the metrics that the driver of these ports has no counter for."""
    found = _ports(infiniband)
    for name in LINK_ERRORS:
        if is_absent(_counted(found, name, lambda port: port.counters)):
            yield from (f"infiniband.counters.{name}", f"counters.infiniband.{name}")
    for name in _ROCE_ERRORS:
        if is_absent(_counted(_roce_ports(found), name, lambda port: port.hw_counters)):
            yield f"infiniband.roce.{name}"
    if is_absent(_counted(found, "port_rcv_data", lambda port: port.counters)):
        yield "nic.share.*"


def gpudirect(infiniband: InfiniBand) -> Findings:
    yield "infiniband.gpudirect.available", _has_gpudirect(infiniband.gpudirect), "bool", ""


PER_NODE: dict[str, Callable[[InfiniBand], Findings]] = {one.__name__: one for one in (ports, counters, roce, gpudirect)}


def _has_gpudirect(direct: GpuDirectRdma) -> Answer[bool]:
    """Return True by a module or by DMA-BUF. An older kernel may have DMA-BUF too, so its age alone proves nothing."""
    module, is_open, is_new = direct.peermem_module, direct.has_open_kernel_modules, direct.has_kernel_5_12
    if not isinstance(module, Missing) or (is_open is True and is_new is True):
        return True
    if module.missing is not Why.NOT_THERE:
        return module
    if isinstance(is_open, Missing) or not is_open:
        return is_open
    return is_new if isinstance(is_new, Missing) else _OLD_KERNEL


def _ports(infiniband: InfiniBand) -> Answer[_Named[Port]]:
    """Return every port of every device; missing where the ports of a device cannot be read: it may have any."""
    devices = infiniband.devices
    if isinstance(devices, Missing):
        return devices
    ports = all_of([with_name(device.name, device.ports) for device in devices])
    if isinstance(ports, Missing):
        return ports
    named = zip(devices, ports, strict=True)
    return tuple((PortName(device.name, port.number), port) for device, its in named for port in its) or _NO_PORT


def _roce_ports(found: Answer[_Named[Port]]) -> Answer[_Named[Port]]:
    def roce_among(found: _Named[Port], layers: _Named[str]) -> Answer[_Named[Port]]:
        roce = tuple(one for one, (_, layer) in zip(found, layers, strict=True) if layer == _ROCE)
        return roce or Missing(Why.NOT_THERE, f"no port is RoCE; link layers: {', '.join(sorted({layer for _, layer in layers}))}")

    return combine(roce_among, found, _each(found, lambda port: port.link_layer))


def _each(found: Answer[_Named[Port]], value_of: Callable[[Port], Answer[T]]) -> Answer[_Named[T]]:
    """Return one value of every port; missing with the port's name where one is missing."""
    if isinstance(found, Missing):
        return found
    values = all_of([with_name(name, value_of(port)) for name, port in found])
    return then(values, lambda values: tuple(zip([name for name, _ in found], values, strict=True)))


def _counted(found: Answer[_Named[Port]], name: str, counters_of: Callable[[Port], Answer[tuple[Counter, ...]]]) -> Answer[_Named[int]]:
    """Return one counter of every port: that of another driver for the same event, where it has one."""
    none = Missing(Why.NOT_THERE, f"it has no counter {name}")

    def value_of(port: Port) -> Answer[int]:
        other = (one.value for one in known(port.hw_counters) if one.name == OTHER_NAMES.get(name))
        own = then(counters_of(port), lambda counted: next((one.value for one in counted if one.name == name), none))
        return next(other, own)

    return _each(found, value_of)


def _common(values: Answer[_Named[str]]) -> tuple[Answer[str], str, Labels]:
    """Return the value of all; else all values, the rarest first, and the ports that differ from most."""
    if isinstance(values, Missing):
        return values, "", {}
    kinds = CountOf(value for _, value in values)
    rarest_first = sorted(kinds, key=lambda value: (kinds[value], value))
    usual = rarest_first[-1] if list(kinds.values()).count(max(kinds.values())) == 1 else None
    odd = [(name, value) for name, value in values if value != usual]
    return ", ".join(rarest_first)[:MOST_TEXT], _with_values(odd), _labels_of_first(odd or values)


def _least(values: Answer[_Named[float]]) -> tuple[Answer[float], str, Labels]:
    """Return the lowest value and its ports; no port where all have it."""
    if isinstance(values, Missing):
        return values, "", {}
    least = min(value for _, value in values)
    lowest = [(name, value) for name, value in values if value == least]
    names = "" if len(lowest) == len(values) else ", ".join(name for name, _ in lowest)[:MOST_TEXT]
    return least, names, _labels_of_first(lowest)


def _most(values: Answer[_Named[int]]) -> tuple[Answer[int], str, Labels]:
    """Return the highest value, and all ports with a value above 0."""
    if isinstance(values, Missing):
        return values, "", {}
    counted = sorted(((name, value) for name, value in values if value), key=lambda one: -one[1])
    return max(value for _, value in values), _with_values(counted), _labels_of_first(counted)


def _with_values(values: Iterable[tuple[PortName, object]]) -> str:
    return ", ".join(f"{name}: {value}" for name, value in values)[:MOST_TEXT]


def _labels_of_first(values: Sequence[tuple[PortName, object]]) -> Labels:
    return values[0][0].labels if values else {}
