"""Counters that only rise: errors and slowdowns of one GPU, errors and bytes of RDMA ports.

A counter that rises while a validation runs is a finding about that validation. Reading needs no privilege.
A call into the driver may hang: supervisor/gpu_watch.py makes it from a thread of its own.
Field ids are looked up by name: CUDA headers differ in their numbers.
"""

import collections
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_acceptance.inventory import kernel_log
from gpu_acceptance.inventory.answer import Answer, Missing, Why, is_absent, is_lacking, known, names_in, read_value, then, with_name
from gpu_acceptance.inventory.gpu import text
from gpu_acceptance.inventory.infiniband import LINK_ERRORS, OTHER_NAMES, PortName, is_chosen, not_found
from gpu_acceptance.inventory.nvml import Asker
from gpu_acceptance.inventory.xids import links, meaning_of

Counter = tuple[str, str]  # name, and the part that it counts: "link 7", "mlx5_3 port 1", "" for the GPU or the sum over all links
Counted = Mapping[Counter, Answer[int]]

_OF_GPU = {
    "ecc.corrected": "NVML_FI_DEV_ECC_SBE_VOL_TOTAL",
    "ecc.uncorrected": "NVML_FI_DEV_ECC_DBE_VOL_TOTAL",
    "remapping.corrected_rows": "NVML_FI_DEV_REMAPPED_COR",
    "remapping.uncorrected_rows": "NVML_FI_DEV_REMAPPED_UNC",
    "pcie.replays": "NVML_FI_DEV_PCIE_REPLAY_COUNTER",
    "pcie.non_fatal_errors": "NVML_FI_DEV_PCIE_COUNT_NON_FATAL_ERROR",
    "pcie.fatal_errors": "NVML_FI_DEV_PCIE_COUNT_FATAL_ERROR",
    "throttle.sw_power_cap": "NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP",
    "throttle.sw_thermal": "NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN",
    "throttle.hw_thermal": "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN",
    "throttle.hw_power_brake": "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN",
}
_OF_LINK = {
    "nvlink.crc_errors": "NVML_FI_DEV_NVLINK_ERROR_DL_CRC",
    "nvlink.replays": "NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY",
    "nvlink.recoveries": "NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY",
}
LINK_NAMES = tuple(_OF_LINK)
GPU_NAMES = (*_OF_GPU, *LINK_NAMES)
ALL_LINKS = 0xFFFFFFFF  # the sum over all links; documented for throughput, answered for errors (H200, driver 580): never trusted alone
_LinkCounter = tuple[str, int]  # name, and the link or ALL_LINKS
_MOST_XIDS = 1_000  # in one reading; a lost GPU may report without end

_TRAFFIC = {"sent_bytes": "port_xmit_data", "received_bytes": "port_rcv_data"}
_TRAFFIC_BITS = (32, 64)  # 32 where the device has no PortCountersExtended
_OCTETS = 4  # in one count of traffic
PORT_NAMES = tuple(f"infiniband.{name}" for name in (*LINK_ERRORS, *_TRAFFIC))


@dataclass(frozen=True)
class Heard:
    """XIDs since the reading before. `unread`: the reason why there may be more; without one, these are all."""

    xids: tuple[int, ...] = ()
    unread: Missing | None = None

    def __add__(self, later: "Heard") -> "Heard":
        return Heard(self.xids + later.xids, self.unread or later.unread)


NOTHING_HEARD = Heard()


@dataclass(frozen=True)
class CountersReading:
    """All counters of a GPU at one moment, and the XIDs since the reading before.

    NVLink errors: the sum over all links, and each link where it was read.
    """

    values: Counted
    xids: Heard = NOTHING_HEARD


class GpuCounters:
    """Counters of one GPU. XIDs are events from its construction on. `root`: where the kernel's log is."""

    def __init__(self, pynvml: Any, uuid: str, root: Path = Path("/")) -> None:
        self._asker = Asker(pynvml)
        self._handle = self._asker.handle(uuid)
        self._num_links = self._asker.num_links(self._handle)
        self._sums: Counted = {}  # as they were when each link was last read
        self._answered: set[_LinkCounter] = set()
        self._lacking: dict[_LinkCounter, Answer[int]] = {}
        self._xids = XidEvents(self._asker, self._handle, root)

    def read(self, *, each_link: bool, is_poll: bool = False) -> CountersReading:
        """Read all counters. Without `each_link`, links are read only where a sum has changed or is missing: each costs a driver call.

        `is_poll`: the next reading reads the same links again.
        """
        fields = self._asker.fields(self._handle, [(field, 0) for field in _OF_GPU.values()])
        values = {(name, ""): answer for name, answer in zip(_OF_GPU, fields, strict=True)}
        sums = self._of_links([(name, ALL_LINKS) for name in _OF_LINK])
        if each_link or sums != self._sums or any(isinstance(value, Missing) for value in sums.values()):
            self._sums = self._sums if is_poll else sums
            num_links = 0 if isinstance(self._num_links, Missing) else self._num_links
            # All counters of a link in a row: NVML asks the driver once for the three (16 ms on an H200, 38 ms in the other order).
            values |= self._of_links([(name, link) for link in range(num_links) for name in _OF_LINK])
        return CountersReading({**values, **sums}, self._xids.read())

    def _of_links(self, wanted: Sequence[_LinkCounter]) -> dict[Counter, Answer[int]]:
        """Read these counters. One that is not supported is not asked again, unless it has answered before."""
        asked = [one for one in wanted if one not in self._lacking]
        answers = dict(zip(asked, self._asker.fields(self._handle, [(_OF_LINK[name], link) for name, link in asked]), strict=True))
        self._answered |= {one for one, answer in answers.items() if not isinstance(answer, Missing)}
        self._lacking |= {one: answer for one, answer in answers.items() if is_lacking(answer) and one not in self._answered}
        found = {**self._lacking, **answers}
        return {(name, "" if link == ALL_LINKS else f"link {link}"): found[name, link] for name, link in wanted}


class XidEvents:
    """Events of one GPU from its construction on; earlier ones are in the kernel log alone. An event has a number and no text.

    Of an XID of an NVLink (144 to 149) the number does not say if it is a fault: the same stands for fatal and for harmless events. So its
    severity is looked up in the kernel's log. Where that cannot be told, there is no answer, never a fault.
    """

    def __init__(self, asker: Asker, handle: object, root: Path = Path("/")) -> None:
        self._asker = asker
        self._root = root
        self._address: Answer[str] = asker.ask("nvmlDeviceGetPciInfo", handle, make=lambda info: text(info.busId))
        self._events: Any = asker.ask("nvmlEventSetCreate", make=lambda events: events)
        kind = getattr(asker.pynvml, "nvmlEventTypeXidCriticalError", 8)
        self._registered = asker.ask("nvmlDeviceRegisterEvents", handle, kind, self._events, make=bool)

    def read(self) -> Heard:
        """Return the XIDs since the reading before that count, as far as they could be heard and told."""
        if isinstance(self._registered, Missing):
            return Heard(unread=self._registered)
        heard = self._hear()
        of_links = collections.Counter(number for number in heard.xids if number in links())
        found = Heard(tuple(number for number in heard.xids if number not in of_links), heard.unread)
        return sum((self._faults(number, times) for number, times in of_links.items()), found)

    def _hear(self) -> Heard:
        xids: list[int] = []
        while len(xids) < _MOST_XIDS:
            try:
                event = self._asker.pynvml.nvmlEventSetWait_v2(self._events, 0)
            except self._asker.pynvml.NVMLError_Timeout:
                break
            except self._asker.pynvml.NVMLError as error:
                return Heard(tuple(xids), with_name(f"after {len(xids)} XIDs", self._asker.why("nvmlEventSetWait_v2", error)))
            xids.append(int(event.eventData))
        return Heard(tuple(xids))

    def _faults(self, number: int, times: int) -> Heard:
        answer = then(self._address, lambda address: faults_of(kernel_log.read(self._root), address, number, times))
        return Heard(unread=with_name(f"XID {number}", answer)) if isinstance(answer, Missing) else Heard((number,) * answer)


def faults_of(log: kernel_log.KernelLog, address: str, number: int, times: int) -> Answer[int]:
    """Return how many of the last XIDs of a GPU with this number need a repair, by their lines in the kernel's log."""
    if isinstance(log.xids, Missing):
        return log.xids
    lines = [meaning_of(number, xid.text) for xid in log.xids if (xid.pci_bus_id, xid.number) == (address, number)]
    if not any(one.needs_repair or one.doubt for one in lines):
        is_there = len(lines) >= min(times, kernel_log.MOST_ALIKE)
        return 0 if is_there else Missing(Why.NOT_THERE, "the kernel's log does not have it, and NVML does not tell its severity")
    last = lines[-times:] if log.num_left_out == 0 and len(lines) >= times else []
    doubt = next((one.doubt for one in last if one.doubt), "the kernel's log has several of it, and does not say which one this was")
    return sum(one.needs_repair for one in last) or Missing(Why.UNREADABLE, doubt)


def unread(reason: str, names: Collection[str] = GPU_NAMES) -> CountersReading:
    """Return a reading in which every counter is missing for this reason."""
    missing = Missing(Why.UNREADABLE, reason[:200])
    return CountersReading({(name, ""): missing for name in names}, Heard(unread=missing))


@dataclass(frozen=True)
class PortTraffic:
    """Bytes of one port since its counters were reset."""

    at_s: float  # time.monotonic()
    tx_bytes: Answer[int]
    rx_bytes: Answer[int]


def read_traffic(root: Path = Path("/")) -> Mapping[str, PortTraffic]:
    """Return traffic by port, `mlx5_3 port 1`; empty where no RDMA device shows a port."""
    folder = root / "sys/class/infiniband"
    traffic: dict[str, PortTraffic] = {}
    for device in known(names_in(folder)):
        for port in known(names_in(folder / device / "ports")):
            at_s = time.monotonic()
            tx_bytes, rx_bytes = (_bytes(folder / device / "ports" / port, file) for file in _TRAFFIC.values())
            traffic[PortName(device, port)] = PortTraffic(at_s, tx_bytes, rx_bytes)
    return traffic


def read_ports(devices: str, root: Path = Path("/")) -> dict[Counter, Answer[int]]:
    """Return counters by name and port (`mlx5_3 port 1`) of the devices that match these globs; without a port each is missing."""
    folder = root / "sys/class/infiniband"
    names = names_in(folder)
    lacking = names if isinstance(names, Missing) else not_found(names, devices)
    values: dict[Counter, Answer[int]] = {}
    for device in () if lacking or isinstance(names, Missing) else names:
        ports = names_in(folder / device / "ports") if is_chosen(device, devices) else ()
        if isinstance(ports, Missing):
            lacking, values = ports, {}
            break
        for port in ports:
            of_port, name = folder / device / "ports" / port, PortName(device, port)
            values |= {(f"infiniband.{error}", name): _errors(of_port, error, bits) for error, bits in LINK_ERRORS.items()}
            values |= {(f"infiniband.{way}", name): _bytes(of_port, file) for way, file in _TRAFFIC.items()}
    why = lacking or Missing(Why.NOT_THERE, f"no port of an RDMA device that is one of {devices}"[:200])
    return values or dict.fromkeys(((name, "") for name in PORT_NAMES), why)


def _errors(port: Path, name: str, bits: int) -> Answer[int]:
    """Read an error counter of a port: that of another driver for the same event, where it has one."""
    other, own = _others(port, name), _count(port / "counters" / name, (bits,))
    return own if is_absent(other) else other


def _bytes(port: Path, name: str) -> Answer[int]:
    """Read the bytes of a port; those of its driver's own counter where it has no such file in `counters`."""
    other, own = _others(port, name), _count(port / "counters" / name, _TRAFFIC_BITS)
    return other if is_absent(own) and not is_absent(other) else then(own, lambda count: count * _OCTETS)


def _others(port: Path, name: str) -> Answer[int]:
    other = OTHER_NAMES.get(name)
    return _count(port / "hw_counters" / other) if other else Missing(Why.NOT_THERE, name)


def _count(path: Path, bits: Collection[int] = ()) -> Answer[int]:
    """Read a counter of one of these widths. At its highest value it may have stopped, and proves nothing about later events."""
    count = read_value(path, int)
    if not isinstance(count, Missing) and count in {2**one - 1 for one in bits}:
        return Missing(Why.UNREADABLE, f"it stands at its highest value, {count}, until it is reset")
    return count
