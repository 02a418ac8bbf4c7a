"""GPUs, network cards and their topology, as plain text for people."""

import re
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Generic, TypeVar

from gpu_acceptance.base.text import first_few, one_line, plural
from gpu_acceptance.inventory.answer import Answer, Missing, Why, all_of, as_cpu_list, combine, known, then
from gpu_acceptance.inventory.gpu import GpuReading, GpusReading, NvLink, Pcie, PeerLink
from gpu_acceptance.inventory.infiniband import InfiniBand, Port, PortName, RdmaDevice, nearest_devices, place_of
from gpu_acceptance.inventory.node import NodeReading
from gpu_acceptance.inventory.pci_topology import Place
from gpu_acceptance.inventory.system import NONE

T = TypeVar("T")

WIDTH = 120  # columns of a paragraph; a table is as wide as its columns
_LABEL = 10
_MOST_VALUE = 80  # characters of one value inside a paragraph
_MOST_DETAIL = 160
_TOGETHER = re.compile(r"\? \([a-z ]+\)|[0-9] [KMG]iB")
_KEPT = "\N{NO-BREAK SPACE}"  # `one_line` escapes it, so no text has one
_UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


@dataclass(frozen=True)
class Column(Generic[T]):
    """One column of a table, of at most so many characters."""

    title: str
    most: int
    cell: Callable[[T], Answer[str]]


def say(answer: Answer[T], form: Callable[[T], str] = str) -> str:
    """Return the value on one line, or `? (not permitted)`. A text of blanks is shown in quotes."""
    return f"? ({answer.missing})" if isinstance(answer, Missing) else _cut(form(answer), _MOST_VALUE)


def say_all(answer: Answer[Sequence[T]], form: Callable[[T], str] = str, separator: str = ", ") -> str:
    """Return the values of a list; `none` if it is empty."""
    if isinstance(answer, Missing):
        return say(answer)
    return separator.join(_cut(form(one), _MOST_VALUE) for one in answer) or "none"


def say_why(missing: Missing) -> str:
    """Return `? (not there: NVML does not start: Driver Not Loaded)`."""
    return f"? ({missing.missing}: {_cut(missing.detail, _MOST_DETAIL)})" if missing.detail else f"? ({missing.missing})"


def on_off(value: bool) -> str:
    return "on" if value else "off"


def yes_no(value: bool) -> str:
    return "yes" if value else "no"


def size(num_bytes: int) -> str:
    """Return `2015.4 GiB`, rounded down; integer arithmetic has no upper limit."""
    unit, name = next((one for one in _UNITS if num_bytes >= one[0]), (1, "B"))
    whole, rest = divmod(num_bytes, unit)
    tenth = rest * 10 // unit
    return f"{whole}.{tenth} {name}" if tenth else f"{whole} {name}"


def moment(seconds: int, later_s: float = 0.0) -> str:
    """Return seconds since 1970 as a time in UTC; a time beyond the calendar stays a number."""
    try:
        return datetime.fromtimestamp(seconds + later_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return f"{later_s:g} s after {seconds} s after 1970"


def section(label: str, *paragraphs: str) -> list[str]:
    """Return paragraphs with their label at the left of the first."""
    lines = [line for paragraph in paragraphs for line in _wrapped(paragraph, WIDTH - _LABEL)]
    return [f"{'' if index else label:{_LABEL}}{line}" for index, line in enumerate(lines)]


def table(columns: Sequence[Column[T]], rows: Sequence[T], name: Callable[[T], str]) -> list[str]:
    """Return a line of titles, a line per row, and below them why some cells are `?`; `name` is that of a row there."""
    cells = [[column.cell(row) for column in columns] for row in rows]
    texts = [[column.title for column in columns]]
    texts += [
        ["?" if isinstance(cell, Missing) else _cut(cell, column.most) for column, cell in zip(columns, row, strict=True)] for row in cells
    ]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in texts]
    reasons = [line for reason in _reasons(texts[0], [name(row) for row in rows], cells) for line in _wrapped(reason, WIDTH - 2)]
    return [f"  {line}" for line in (*lines, *reasons)]


def _reasons(titles: Sequence[str], names: Sequence[str], cells: Sequence[Sequence[Answer[str]]]) -> Iterator[str]:
    """Yield `? (not permitted): serial (all); ECC, MIG (GPU 3)`, with the detail if all cells have the same one."""
    for why in Why:
        names_of: defaultdict[str, list[str]] = defaultdict(list)
        details = set()
        for name, row in zip(names, cells, strict=True):
            for title, cell in zip(titles, row, strict=True):
                if isinstance(cell, Missing) and cell.missing is why:
                    names_of[title].append(name)
                    details.add(cell.detail)
        titles_of: defaultdict[str, list[str]] = defaultdict(list)
        for title, found in names_of.items():
            titles_of["all" if len(found) == len(names) else ", ".join(map(one_line, found))].append(title)
        if names_of:
            where = "; ".join(f"{', '.join(alike)} ({of})" for of, alike in titles_of.items())
            yield f"{say_why(Missing(why, details.pop() if len(details) == 1 else ''))}: {where}"


def _wrapped(text: str, width: int) -> list[str]:
    """Wrap a text, but never inside `? (not permitted)` or `7.9 GiB`."""
    kept = _TOGETHER.sub(lambda words: words[0].replace(" ", _KEPT), text)
    lines = textwrap.wrap(kept, width, subsequent_indent="  ", break_on_hyphens=False)
    return [line.replace(_KEPT, " ") for line in lines]


def _cut(text: str, most: int) -> str:
    line = one_line(text) if text.strip() else f'"{one_line(text)}"'
    return line if len(line) <= most else f"{line[: most - 3]}..."


_MOST_PROCESSES = 8


def _active(links: Sequence[NvLink]) -> Answer[str]:
    return then(all_of(link.is_active for link in links), lambda active: f"{sum(active)} of {len(active)}")


def _pcie(pcie: Pcie) -> Answer[str]:
    """Return `5 x16`, or `1 x16 of 5 x16` if the slot can do more: an idle link may rest."""
    now, most = (combine("{} x{}".format, *pair) for pair in ((pcie.generation, pcie.width), (pcie.max_generation, pcie.max_width)))
    return now if isinstance(most, Missing) or now == most else then(now, lambda text: f"{text} of {most}")


_GPU_COLUMNS: tuple[Column[GpuReading], ...] = (
    Column("GPU", 3, lambda gpu: str(gpu.index)),
    Column("name", 24, lambda gpu: gpu.name),
    Column("serial", 16, lambda gpu: gpu.serial),
    Column("PCI bus id", 16, lambda gpu: gpu.pci_bus_id),
    Column("memory", 11, lambda gpu: then(gpu.total_bytes, lambda num_bytes: f"{num_bytes // 2**20} MiB")),  # as nvidia-smi shows it
    Column("ECC", 3, lambda gpu: then(gpu.ecc.is_on, on_off)),
    Column("MIG", 3, lambda gpu: then(gpu.mig_is_on, on_off)),
    Column("power limit", 11, lambda gpu: then(gpu.power.enforced_limit_w, "{:g} W".format)),
    Column("temp", 6, lambda gpu: then(gpu.temperature.gpu_c, "{} C".format)),
    Column("NVLinks", 8, lambda gpu: then(gpu.nvlinks, _active)),
    Column("PCIe gen", 14, lambda gpu: _pcie(gpu.pcie)),
    Column("procs", 5, lambda gpu: then(gpu.processes, lambda found: str(len(found)))),
)
_VBIOS: Column[GpuReading] = Column("VBIOS", 14, lambda gpu: gpu.vbios)
_RDMA_COLUMNS: tuple[Column[tuple[RdmaDevice, Answer[Port]]], ...] = (
    Column("device", 16, lambda row: row[0].name),
    Column("port", 4, lambda row: then(row[1], lambda port: str(port.number))),
    Column("type", 10, lambda row: row[0].hca_type),
    Column("link", 10, lambda row: then(row[1], lambda port: port.link_layer)),
    Column("state", 22, lambda row: then(row[1], lambda port: combine("{} {}".format, port.state, port.phys_state))),
    Column("rate", 14, lambda row: then(row[1], lambda port: then(port.rate, lambda rate: f"{rate.gbit_per_s:g} Gb/s {rate.width}"))),
    Column("firmware", 16, lambda row: row[0].firmware),
    Column("NUMA", 4, lambda row: then(row[0].numa_node, str)),
    Column("PCI address", 12, lambda row: row[0].pci_address),
    Column("interfaces", 24, lambda row: then(row[0].netdevs, lambda found: " ".join(netdev.name for netdev in found) or "none")),
)
_NO_PORT = Missing(Why.NOT_THERE, "the device has no port")


def gpu_lines(node: NodeReading) -> list[str]:
    """Return facts that all GPUs share, a line for each GPU, then links that are down and running processes."""
    gpus, bus = node.gpus.gpus, node.bus
    unreadable = f", {plural(len(bus.unreadable), 'device')} unreadable" if bus.unreadable else ""
    on_the_bus = f"{len(bus.gpus)} on the PCI bus{unreadable}"
    if isinstance(gpus, Missing):
        return section("GPUs", f"{say_why(gpus)}; {on_the_bus}")
    head = f"{len(gpus)} in NVML, {on_the_bus}; driver {say(node.gpus.driver)}, CUDA {say(node.gpus.cuda)}"
    boards = {gpu.vbios for gpu in gpus}
    columns = (*_GPU_COLUMNS, _VBIOS) if len(boards) > 1 else _GPU_COLUMNS
    if len(boards) == 1:
        head = f"{head}, VBIOS {say(boards.pop())}"
    rows = table(columns, gpus, lambda gpu: f"GPU {gpu.index}") if gpus else []
    some = []
    down = {gpu.index: [link.index for link in known(gpu.nvlinks) if link.is_active is False] for gpu in gpus}
    if any(down.values()):
        some.append(f"NVLinks not up: {'; '.join(f'GPU {index}: {as_cpu_list(links)}' for index, links in down.items() if links)}")
    running = [f"GPU {gpu.index} pid {one.pid} {say(one.used_bytes, size)}" for gpu in gpus for one in known(gpu.processes)]
    if running:
        some.append(f"processes: {', '.join(first_few(running, _MOST_PROCESSES))}")
    return [*section("GPUs", head), *rows, *section("", *some)]


def peer_lines(gpus: GpusReading) -> list[str]:
    """Return NVML's answers on peer-to-peer access, in one line if all are ok."""
    if isinstance(gpus.gpus, Missing):
        return section("peers", say(gpus.gpus))
    if not gpus.peers:
        return section("peers", "no pair of GPUs")
    answers = {name: [getattr(link, name) for link in gpus.peers] for name in ("read", "write", "nvlink")}
    if all(answer == "ok" for named in answers.values() for answer in named):
        return section("peers", f"read, write and nvlink ok in all {plural(len(gpus.peers), 'pair')}")
    return section("peers", *(_peer_text(name, gpus.peers, named) for name, named in answers.items()))


def topology_lines(node: NodeReading) -> list[str]:
    """Return the NUMA node of each GPU and its nearest RDMA devices on the PCI bus, in the words of `nvidia-smi topo -m`."""
    if isinstance(node.gpus.gpus, Missing) or not node.gpus.gpus:
        return []
    alike: dict[str, list[int]] = {}
    for gpu in node.gpus.gpus:
        place = place_of(gpu, node.gpu_places)
        texts = (say(place), say(place)) if isinstance(place, Missing) else (say(place.numa_node), _nearest(place, node.infiniband.devices))
        alike.setdefault(", ".join(texts), []).append(gpu.index)
    hypervisor = node.virtualization.hypervisor
    guest = [] if isinstance(hypervisor, Missing) or hypervisor == NONE else ["in a virtual machine: as its hypervisor shows it"]
    places_text = "; ".join(f"GPU {as_cpu_list(indexes)}: {text}" for text, indexes in alike.items())
    return section("topology", f"NUMA node and nearest RDMA device of {places_text}", *guest)


def rdma_lines(infiniband: InfiniBand) -> list[str]:
    """Return a line for each port."""
    devices, direct = infiniband.devices, infiniband.gpudirect
    ways = f"open kernel modules {say(direct.has_open_kernel_modules, yes_no)}, Linux 5.12 or later {say(direct.has_kernel_5_12, yes_no)}"
    gpudirect = f"GPUDirect RDMA: peermem module {say(direct.peermem_module)}; for DMA-BUF: {ways}"
    if isinstance(devices, Missing):
        return section("RDMA", f"{say_why(devices)}; {gpudirect}")
    rows: list[tuple[RdmaDevice, Answer[Port]]] = []
    for device in devices:
        rows += [(device, port) for port in ((device.ports,) if isinstance(device.ports, Missing) else device.ports or (_NO_PORT,))]
    head = section("RDMA", f"{plural(len(devices), 'device')}; {gpudirect}")
    return [*head, *table(_RDMA_COLUMNS, rows, lambda row: _port_name(*row))] if rows else head


def _port_name(device: RdmaDevice, port: Answer[Port]) -> str:
    return device.name if isinstance(port, Missing) else PortName(device.name, port.number)


def _peer_text(name: str, links: tuple[PeerLink, ...], answers: list[Answer[str]]) -> str:
    """Return `nvlink: ok (55 pairs); topology not supported (GPU 3 to 5)`."""
    targets: dict[str, dict[int, list[int]]] = {}
    for link, answer in zip(links, answers, strict=True):
        targets.setdefault(say(answer), {}).setdefault(link.source, []).append(link.target)
    if len(targets) == 1:
        return f"{name}: {next(iter(targets))} (all {plural(len(links), 'pair')})"
    texts = []
    for answer, by_source in targets.items():
        pairs = ", ".join(f"GPU {source} to {as_cpu_list(reached)}" for source, reached in by_source.items())
        texts.append(f"{answer} ({plural(sum(map(len, by_source.values())), 'pair') if answer == 'ok' else pairs})")
    return f"{name}: {'; '.join(texts)}"


def _nearest(place: Place, devices: Answer[tuple[RdmaDevice, ...]]) -> str:
    if devices == ():
        return "none"
    near = nearest_devices(place, devices)
    return say(near) if isinstance(near, Missing) else f"{say_all(near.names, separator=' ')} {near.distance}"
