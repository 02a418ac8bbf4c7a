"""NVML: the library, calls with a timeout, and the first facts: names of GPUs, the driver, and processes on a GPU."""

import ctypes
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Generic, TypeVar
from uuid import UUID

from gpu_acceptance.inventory.answer import Answer, Missing, Why, all_of, combine, is_lacking, known, then
from gpu_acceptance.inventory.gpu import Gpu, GpuProcess, GpuUse, common_end, nvlink_end, processes_of, text

T = TypeVar("T")
_MOST_LINKS = 64  # 18 on Hopper and Blackwell; NVML_NVLINK_MAX_LINKS grew with each generation
_FABRIC_COMPLETED = 3  # NVML_GPU_FABRIC_STATE_COMPLETED
_ONE_AT_A_TIME = threading.Lock()
_FIELD_VALUES = "nvmlDeviceGetFieldValues"
_SPARE = 16  # elements
# Codes of nvmlReturn_t by what they mean for an answer (nvml.h of CUDA 13.0); any other one is an error. They are numbers, because an older
# nvidia-ml-py lacks the later names. A function that a driver has dropped answers 26 (NVML API Reference, Deprecation Notices).
_REASONS: dict[int | None, Why] = {
    **dict.fromkeys((3, 13, 22, 24, 25, 26, 30), Why.NOT_SUPPORTED),  # 13: no such function; 25: another version of the structure
    **dict.fromkeys((4, 17), Why.NOT_PERMITTED),  # 17: the operating system or a cgroup blocks it
    **dict.fromkeys((6, 21, 28), Why.NOT_THERE),  # 21: no data; 28: no GPU
}
_NOT_SUPPORTED = 3  # its words say no more than the reason does
_OTHER_NAMES = {  # asked where the driver lacks the first: dropped with CUDA 14, or not there before driver 535
    "nvmlDeviceGetTemperature": "nvmlDeviceGetTemperatureV",
    "nvmlDeviceGetCurrentClocksEventReasons": "nvmlDeviceGetCurrentClocksThrottleReasons",
}
_MEMBERS = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}  # of nvmlValue_t, by nvmlValueType_t


class Patience(Generic[T]):
    """Waits `timeout_s` for a call, then returns `otherwise`; at once while an earlier call still hangs."""

    def __init__(self, timeout_s: float, otherwise: T) -> None:
        self._timeout_s = timeout_s
        self._otherwise = otherwise
        self._hanging: threading.Thread | None = None

    def call(self, function: Callable[[], T]) -> T:
        """Return or raise what the function does."""
        if self._hanging and self._hanging.is_alive():
            return self._otherwise
        answers: list[T] = []
        errors: list[BaseException] = []

        def run() -> None:
            try:
                answers.append(function())
            except BaseException as error:
                errors.append(error)

        self._hanging = threading.Thread(target=run, daemon=True, name="asks the driver")
        self._hanging.start()
        self._hanging.join(self._timeout_s)
        if errors:
            raise errors[0]
        return answers[0] if answers else self._otherwise


@dataclass(frozen=True)
class Asker:
    """Calls functions of NVML by name; a failed call is a Missing with NVML's own reason."""

    pynvml: Any

    def ask(self, name: str, *arguments: object, make: Callable[[Any], T]) -> T | Missing:
        """Return what `make` makes of the result; without a call where an argument, like the handle of a lost GPU, is missing."""
        answer = self._call(name, getattr(self.pynvml, name, None), arguments, make)
        other = _OTHER_NAMES.get(name, "") if is_lacking(answer) else ""
        instead = self._call(other, getattr(self.pynvml, other, None), arguments, make) if other else answer
        return answer if is_lacking(instead) else instead

    def _call(self, name: str, function: Callable[..., Any] | None, arguments: tuple[object, ...], make: Callable[[Any], T]) -> T | Missing:
        if lacking := next((one for one in arguments if isinstance(one, Missing)), None):
            return lacking
        if function is None:
            return Missing(Why.NOT_SUPPORTED, f"this nvidia-ml-py has no {name}")
        try:
            return make(function(*arguments))
        except self.pynvml.NVMLError as error:
            return self.why(name, error)
        except getattr(self.pynvml, "NVMLLibraryMismatchError", ()) as error:  # what an old driver lacks, in newer nvidia-ml-py
            return Missing(Why.NOT_SUPPORTED, f"{name}: {error}"[:200])
        except (ctypes.ArgumentError, ValueError, TypeError, AttributeError, LookupError) as error:
            return Missing(Why.UNREADABLE, f"{name}: {type(error).__name__}: {error}"[:200])

    def handle(self, uuid: str) -> object | Missing:
        """Find a GPU by its UUID."""
        return self.ask("nvmlDeviceGetHandleByUUID", uuid, make=lambda handle: handle)

    def field(self, device: object, name: str, scope: int = 0) -> Answer[int]:
        """Return a field value by the name of its constant; `scope` is the number of a link."""
        return self.fields(device, [(name, scope)])[0]

    def fields(self, device: object, wanted: Sequence[tuple[str, int]]) -> list[Answer[int]]:
        """Return many field values by name and scope. One call for all costs less than one for each.

        Only one thread asks at a time: while another thread read the traffic of NVLinks, 20 to 127 of 150 readings of their errors were
        "not supported" (H200, driver 580); none with this lock, none beside another process: tools/gpu/nvlink_race.py.
        """
        known = [(getattr(self.pynvml, name), scope) for name, scope in wanted if hasattr(self.pynvml, name)]
        with _ONE_AT_A_TIME:
            values = self._call(_FIELD_VALUES, _field_values, (self.pynvml, device, known), iter) if known else iter(())
        answers: list[Answer[int]] = []
        for name, _ in wanted:
            if not hasattr(self.pynvml, name):
                answers.append(Missing(Why.NOT_SUPPORTED, f"this nvidia-ml-py has no {name}"))
            else:
                answers.append(values if isinstance(values, Missing) else self._field(name, next(values)))
        return answers

    def _field(self, name: str, value: Any) -> Answer[int]:
        if value.nvmlReturn:
            return self.why(name, self.pynvml.NVMLError(value.nvmlReturn))
        member = _MEMBERS.get(value.valueType)
        if member is None:
            return Missing(Why.UNREADABLE, f"{name}: a value of type {value.valueType}")
        return int(getattr(value.value, member))

    def num_links(self, device: object) -> Answer[int]:
        """Return the number of NVLinks of a GPU."""
        count = self.field(device, "NVML_FI_DEV_NVLINK_LINK_COUNT")
        if isinstance(count, int) and count > _MOST_LINKS:
            return Missing(Why.UNREADABLE, f"NVML_FI_DEV_NVLINK_LINK_COUNT: {count} links, more than any GPU has")
        return count

    def nvlink_end(self, device: object, link: int) -> Answer[str]:
        """Return what an NVLink leads to: gpu, switch, npu."""
        return self.ask("nvmlDeviceGetNvLinkRemoteDeviceType", device, link, make=nvlink_end)

    def structure(self, type_name: str, name: str, device: object) -> Any | Missing:
        """Return a structure that carries its version, filled by a function."""
        make_structure = getattr(self.pynvml, type_name, None)
        if make_structure is None:
            return Missing(Why.NOT_SUPPORTED, f"this nvidia-ml-py has no {type_name}")
        structure = make_structure()
        return self.ask(name, device, ctypes.byref(structure), make=lambda _: structure)

    def why(self, name: str, error: Exception) -> Missing:
        """Return the reason that an error of NVML gives, with the driver's words for it."""
        code = getattr(error, "value", None)
        return Missing(_REASONS.get(code, Why.UNREADABLE), "" if code == _NOT_SUPPORTED else f"{name}: {error}"[:200])


@dataclass(frozen=True)
class NvmlReading:
    """GPUs and driver of this node. `problem` names what did not answer; empty where all did."""

    gpus: tuple[Gpu, ...] = ()
    driver_version: str = ""
    problem: str = ""


@dataclass(frozen=True)
class Occupants:
    """Processes on one GPU and its memory in use, at one moment."""

    processes: Answer[tuple[GpuProcess, ...]]
    clients: frozenset[int]  # pids among them whose work an MPS server does
    used_bytes: Answer[int]  # the driver's own memory included
    listed_bytes: Answer[int]  # of these processes together; missing where NVML does not know it of each


def occupants(asker: Asker, handle: object) -> Occupants:
    """Read who is on a GPU. Processes are read before and after the memory, and the larger sum counts: a process may grow meanwhile."""
    before = _processes_on(asker, handle)
    used = asker.ask("nvmlDeviceGetMemoryInfo", handle, make=lambda info: int(info.used))
    clients = asker.ask("nvmlDeviceGetMPSComputeRunningProcesses", handle, make=processes_of)
    after = _processes_on(asker, handle)
    return Occupants(
        then(after, lambda found: tuple({one.pid: one for one in (*found, *known(clients))}.values())),
        frozenset(one.pid for one in known(clients)),
        used,
        combine(max, _sum_of(before), _sum_of(after)),
    )


def _processes_on(asker: Asker, handle: object) -> Answer[tuple[GpuProcess, ...]]:
    return asker.ask("nvmlDeviceGetComputeRunningProcesses", handle, make=processes_of)


def _sum_of(processes: Answer[tuple[GpuProcess, ...]]) -> Answer[int]:
    return then(processes, lambda found: then(all_of(one.used_bytes for one in found), sum))


def _field_values(pynvml: Any, device: object, wanted: Sequence[tuple[int, int]]) -> list[Any]:
    """Ask NVML for values by field id and scope, into an array with room behind it.

    NVML may write one element more than it is asked for, and nvidia-ml-py gives it no room: 3 of 20 supervisors of whole runs died of
    SIGSEGV. In the memory of one, time and latency of a reading that was made when the first workers formed stood behind what had been an
    array of three elements, the sums of the NVLinks' errors, and over a tuple of Python's (2 H200, driver 580.159.04).
    """
    values = (pynvml.c_nvmlFieldValue_t * (len(wanted) + _SPARE))()
    for value, (field, scope) in zip(values, wanted, strict=False):
        value.fieldId, value.scopeId = field, scope
    status = pynvml._nvmlGetFunctionPointer(_FIELD_VALUES)(device, ctypes.c_int32(len(wanted)), ctypes.byref(values))
    if status:
        raise pynvml.NVMLError(status)
    return list(values[: len(wanted)])


_READ_S = 60.0  # a driver without persistence mode sets up each GPU at its first question: seconds for each
_READ: Patience[NvmlReading] = Patience(_READ_S, NvmlReading(problem=f"NVML has not answered for {_READ_S:g} s"))
_MEMORY: Patience[int | None] = Patience(2.0, None)


class NoNvmlError(Exception):
    """The library, or the driver that it needs, is not there."""


def read() -> NvmlReading:
    """Return all GPUs that NVML shows, in its order. A GPU that does not answer is listed with empty fields, never left out."""
    return _READ.call(_read)


def _read() -> NvmlReading:
    try:
        with library() as pynvml:
            asker = Asker(pynvml)
            problems: list[str] = []
            count = _known("number of GPUs", asker.ask("nvmlDeviceGetCount", make=int), problems, may_lack=False) or 0
            gpus = tuple(_gpu(asker, index, problems) for index in range(count))
            driver_version = _known("driver version", asker.ask("nvmlSystemGetDriverVersion", make=text), problems, may_lack=True)
            return NvmlReading(gpus, driver_version or "", "; ".join(problems))
    except NoNvmlError as error:
        return NvmlReading(problem=str(error))


def _known(what: str, answer: Answer[T], problems: list[str], *, may_lack: bool) -> T | None:
    """Return the value, else None, and a problem. `may_lack`: a GPU that does not support it is no problem."""
    if not isinstance(answer, Missing):
        return answer
    if not (may_lack and is_lacking(answer)):
        problems.append(f"{what}: {answer.detail or answer}")
    return None


def _gpu(asker: Asker, index: int, problems: list[str]) -> Gpu:
    found = asker.ask("nvmlDeviceGetHandleByIndex", index, make=lambda handle: handle)
    handle = _known(f"GPU {index}", found, problems, may_lack=False)
    if handle is None:
        return Gpu(index=index, name="")

    def fact(what: str, name: str, make: Callable[[Any], str] = text) -> str:
        return _known(f"GPU {index} {what}", asker.ask(name, handle, make=make), problems, may_lack=True) or ""

    memory = asker.ask("nvmlDeviceGetMemoryInfo", handle, make=lambda info: (int(info.total), int(info.used)))
    ends = then(asker.num_links(handle), lambda count: common_end(asker.nvlink_end(handle, link) for link in range(count)))
    return Gpu(
        index=index,
        name=fact("name", "nvmlDeviceGetName"),
        uuid=fact("UUID", "nvmlDeviceGetUUID"),
        serial=fact("serial", "nvmlDeviceGetSerial"),
        pci_bus_id=fact("PCI address", "nvmlDeviceGetPciInfo", lambda info: text(info.busId)),
        part_number=fact("part number", "nvmlDeviceGetBoardPartNumber"),
        vbios=fact("VBIOS", "nvmlDeviceGetVbiosVersion"),
        memory_bytes=(_known(f"GPU {index} memory", memory, problems, may_lack=True) or (0,))[0],
        nvlink_domain=_nvlink_domain(asker, handle),
        nvlink_to="" if isinstance(ends, Missing) else ends,
        use=GpuUse(_processes_on(asker, handle), then(memory, itemgetter(1))),
    )


def _nvlink_domain(asker: Asker, handle: object) -> str:
    """Return cluster and clique where a fabric manager has joined this GPU to an NVLink network of several nodes (GB200, GB300)."""
    info = asker.structure("c_nvmlGpuFabricInfo_v2_t", "nvmlDeviceGetGpuFabricInfoV", handle)
    if isinstance(info, Missing) or info.state != _FABRIC_COMPLETED or not any(bytes(info.clusterUuid)):
        return ""
    return f"{UUID(bytes=bytes(info.clusterUuid))}/{int(info.cliqueId)}"


def memory_used_bytes(index: int) -> int | None:
    """Return bytes in use on one GPU, some 600 MiB of the driver on an idle one included; None where NVML does not answer."""

    def ask() -> int | None:
        with suppress(NoNvmlError), library() as pynvml:
            asker = Asker(pynvml)
            handle = asker.ask("nvmlDeviceGetHandleByIndex", index, make=lambda handle: handle)
            used = asker.ask("nvmlDeviceGetMemoryInfo", handle, make=lambda info: int(info.used))
            return None if isinstance(used, Missing) else used
        return None

    return _MEMORY.call(ask)


@contextmanager
def library() -> Iterator[Any]:
    """Open NVML and close it again. Raises NoNvmlError."""
    try:
        import pynvml
    except ImportError as error:
        raise NoNvmlError(f"NVML cannot be asked: {error}") from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise NoNvmlError(f"NVML does not start: {error}") from None
    try:
        yield pynvml
    finally:
        with suppress(pynvml.NVMLError):  # where a GPU was lost meanwhile; what was read still holds
            pynvml.nvmlShutdown()
