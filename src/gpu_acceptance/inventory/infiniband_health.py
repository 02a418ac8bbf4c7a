"""What of a node's RDMA devices is judged, by topic: metric, answer, unit, which port or device it is of, and the first port as labels.

The bounds are in the profiles; docs/limits.md explains each. An answer that is missing is handed on as it is, and is never fine.
"""

from collections import Counter as CountOf
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from gpu_acceptance.inventory.answer import MOST_TEXT, Answer, Missing, T, Why
from gpu_acceptance.inventory.gpu import GpuReading
from gpu_acceptance.inventory.infiniband import (
    LINK_ERRORS,
    Counter,
    GpuDirectRdma,
    InfiniBand,
    Labels,
    Port,
    PortName,
    RdmaDevice,
    is_chosen,
    nearest_devices,
)
from gpu_acceptance.inventory.pci_topology import Place

Value = Answer[bool] | Answer[int] | Answer[float] | Answer[str]
Finding = tuple[str, Value, str, str] | tuple[str, Value, str, str, Labels]  # metric, value, unit, where
Findings = Iterator[Finding]
_Named = tuple[tuple[PortName, T], ...]  # a value of each port

# mlx5: packets that were lost, came out of order, or were damaged on the way. Congestion marks are no errors, and
# local_ack_timeout_err also counts on the peers of a job that was killed.
_ROCE_ERRORS = ("out_of_sequence", "packet_seq_err", "rx_icrc_encapsulated")
_ROCE = "Ethernet"  # the link layer of a RoCE port
_OLD_KERNEL = Missing(Why.NOT_SUPPORTED, "no peermem module, and Linux before 5.12, which may or may not have DMA-BUF")


def chosen(infiniband: InfiniBand, globs: str) -> InfiniBand:
    """With those devices alone that the job uses: `mlx5_0 mlx5_[3-6]`. Others of a node serve storage and administration."""
    if isinstance(infiniband.devices, Missing):
        why = infiniband.devices
        said = f"no RDMA driver is loaded: no {why.detail}" if why.missing is Why.NOT_THERE else why.detail
        return replace(infiniband, devices=Missing(why.missing, said))
    found = tuple(device for device in infiniband.devices if is_chosen(device.name, globs))
    return replace(infiniband, devices=found)


def devices(infiniband: InfiniBand, gpus: Answer[tuple[GpuReading, ...]], place: Answer[Place]) -> Findings:
    """For one GPU at its place: whether the node has as many RDMA devices as it should, and this GPU the same share as the others."""
    found, near = infiniband.devices, nearest_devices(place, infiniband.devices)
    names = "" if isinstance(found, Missing) else " ".join(device.name for device in found)[:MOST_TEXT]
    near_names = "" if isinstance(near, Missing) else str(near)[:MOST_TEXT]
    yield "infiniband.devices.per_gpu", _per_gpu(found, gpus), "count", names
    yield "infiniband.devices.nearest", near if isinstance(near, Missing) else len(near.names), "count", near_names
    yield "infiniband.devices.distance", near if isinstance(near, Missing) else str(near.distance), "text", near_names


def ports(infiniband: InfiniBand) -> Findings:
    found = _ports(infiniband)
    state, where, labels = _common(_each(found, lambda port: port.state))
    yield "infiniband.ports.state", state, "text", where, labels
    state, where, labels = _common(_each(found, lambda port: port.phys_state))
    yield "infiniband.ports.phys_state", state, "text", where, labels
    rate, where, labels = _least(_each(found, _gbit_per_s))
    yield "infiniband.ports.rate", rate, "Gbit/s", where, labels
    width, where, labels = _least(_each(found, _lanes))
    yield "infiniband.ports.width", width, "lanes", where, labels


def counters(infiniband: InfiniBand) -> Findings:
    """Since the driver was loaded, or somebody reset them."""
    found = _ports(infiniband)
    for name in LINK_ERRORS:
        errors, where, labels = _most(_each(found, partial(_link_counter, name=name)))
        yield f"infiniband.counters.{name}", errors, "count", where, labels


def roce(infiniband: InfiniBand) -> Findings:
    found = _roce_ports(_ports(infiniband))
    for name in _ROCE_ERRORS:
        errors, where, labels = _most(_each(found, partial(_hardware_counter, name=name)))
        yield f"infiniband.roce.{name}", errors, "count", where, labels


def gpudirect(infiniband: InfiniBand) -> Findings:
    yield "infiniband.gpudirect.available", _has_gpudirect(infiniband.gpudirect), "bool", ""


PER_NODE: dict[str, Callable[[InfiniBand], Findings]] = {one.__name__: one for one in (ports, counters, roce, gpudirect)}


def _per_gpu(found: Answer[tuple[RdmaDevice, ...]], gpus: Answer[tuple[GpuReading, ...]]) -> Answer[float]:
    if isinstance(found, Missing):
        return found
    if isinstance(gpus, Missing):
        return gpus
    return len(found) / len(gpus) if gpus else Missing(Why.NOT_THERE, "this node has no GPU")


def _has_gpudirect(direct: GpuDirectRdma) -> Answer[bool]:
    """By a module, or by DMA-BUF. An older kernel may have DMA-BUF all the same, so it alone says nothing (gpudirect.py)."""
    module, is_open, is_new = direct.peermem_module, direct.has_open_kernel_modules, direct.has_kernel_5_12
    if not isinstance(module, Missing) or (is_open is True and is_new is True):
        return True
    if module.missing is not Why.NOT_THERE:
        return module
    if isinstance(is_open, Missing) or not is_open:
        return is_open
    return is_new if isinstance(is_new, Missing) else _OLD_KERNEL


# --- ports ---------------------------------------------------------------------------------------------------------------------


def _ports(infiniband: InfiniBand) -> Answer[_Named[Port]]:
    """Every port of every device. A device whose ports cannot be read may have any."""
    if isinstance(infiniband.devices, Missing):
        return infiniband.devices
    named: list[tuple[PortName, Port]] = []
    for device in infiniband.devices:
        if isinstance(device.ports, Missing):
            return _of(device.name, device.ports)
        named += [(PortName(device.name, port.number), port) for port in device.ports]
    return tuple(named) or Missing(Why.NOT_THERE, "no RDMA device that the job uses has a port")


def _roce_ports(found: Answer[_Named[Port]]) -> Answer[_Named[Port]]:
    layers = _each(found, lambda port: port.link_layer)
    if isinstance(layers, Missing) or isinstance(found, Missing):
        return layers if isinstance(layers, Missing) else found
    roce = tuple(one for one, (_, layer) in zip(found, layers, strict=True) if layer == _ROCE)
    return roce or Missing(Why.NOT_THERE, f"no port is RoCE; link layers: {', '.join(sorted({layer for _, layer in layers}))}")


def _each(found: Answer[_Named[Port]], value_of: Callable[[Port], Answer[T]]) -> Answer[_Named[T]]:
    """One value of every port; missing where one of them is, with the port's name."""
    if isinstance(found, Missing):
        return found
    values: list[tuple[PortName, T]] = []
    for name, port in found:
        value = value_of(port)
        if isinstance(value, Missing):
            return _of(name, value)
        values.append((name, value))
    return tuple(values)


def _gbit_per_s(port: Port) -> Answer[float]:
    return port.rate if isinstance(port.rate, Missing) else port.rate.gbit_per_s


def _lanes(port: Port) -> Answer[float]:
    """Of `4X`."""
    return port.rate if isinstance(port.rate, Missing) else float(port.rate.width.removesuffix("X"))


def _link_counter(port: Port, name: str) -> Answer[int]:
    return _counter(port.counters, name)


def _hardware_counter(port: Port, name: str) -> Answer[int]:
    return _counter(port.hw_counters, name)


def _counter(counted: Answer[tuple[Counter, ...]], name: str) -> Answer[int]:
    if isinstance(counted, Missing):
        return counted
    return next((one.value for one in counted if one.name == name), Missing(Why.NOT_THERE, f"it has no counter {name}"))


def _of(name: str, why: Missing) -> Missing:
    return Missing(why.missing, f"{name}: {why.detail}".rstrip(": "))


# --- one value of all, and where it is -----------------------------------------------------------------------------------------


def _common(values: Answer[_Named[str]]) -> tuple[Answer[str], str, Labels]:
    """What all say; else all that is said, the rarest first, and who says something else than most."""
    if isinstance(values, Missing):
        return values, "", {}
    said = CountOf(value for _, value in values)
    rarest_first = sorted(said, key=lambda value: (said[value], value))
    usual = rarest_first[-1] if list(said.values()).count(max(said.values())) == 1 else None
    odd = [(name, value) for name, value in values if value != usual]
    return ", ".join(rarest_first)[:MOST_TEXT], _with_values(odd), _labels_of_first(odd or values)


def _least(values: Answer[_Named[float]]) -> tuple[Answer[float], str, Labels]:
    """The lowest, and whose it is; nobody's where all have it."""
    if isinstance(values, Missing):
        return values, "", {}
    least = min(value for _, value in values)
    lowest = [(name, value) for name, value in values if value == least]
    names = "" if len(lowest) == len(values) else ", ".join(name for name, _ in lowest)[:MOST_TEXT]
    return least, names, _labels_of_first(lowest)


def _most(values: Answer[_Named[int]]) -> tuple[Answer[int], str, Labels]:
    """The highest, and all that are not 0."""
    if isinstance(values, Missing):
        return values, "", {}
    counted = sorted(((name, value) for name, value in values if value), key=lambda one: -one[1])
    return max(value for _, value in values), _with_values(counted), _labels_of_first(counted)


def _with_values(values: Iterable[tuple[PortName, object]]) -> str:
    return ", ".join(f"{name}: {value}" for name, value in values)[:MOST_TEXT]


def _labels_of_first(values: Sequence[tuple[PortName, object]]) -> Labels:
    return values[0][0].labels if values else {}
