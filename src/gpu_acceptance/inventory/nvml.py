"""NVML: opened once, asked with patience, and what it answers first: names, drivers, and who uses a GPU."""

import ctypes
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from gpu_acceptance.inventory.answer import Answer, Missing, Why
from gpu_acceptance.inventory.gpu import Gpu, GpuProcess, GpuUse

T = TypeVar("T")
_MOST_LINKS = 64  # 18 on Hopper and Blackwell; NVML_NVLINK_MAX_LINKS grew with each generation
_ONE_AT_A_TIME = threading.Lock()
_MEMBERS = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}  # of nvmlValue_t, by nvmlValueType_t


class Patience(Generic[T]):
    """Waits `timeout_s` for a call, then answers `otherwise`. While an earlier call still hangs, a new one would only hang behind it."""

    def __init__(self, timeout_s: float, otherwise: T) -> None:
        self._timeout_s = timeout_s
        self._otherwise = otherwise
        self._hanging: threading.Thread | None = None

    def call(self, function: Callable[[], T]) -> T:
        """What the function returns or raises."""
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
    """One way to put a question to NVML: what it returns, made plain, or why there is no answer."""

    pynvml: Any

    def ask(self, name: str, *arguments: object, make: Callable[[Any], T]) -> T | Missing:
        if lacking := next((one for one in arguments if isinstance(one, Missing)), None):
            return lacking  # of what is not there, nothing can be told
        function = getattr(self.pynvml, name, None)
        if function is None:
            return Missing(Why.NOT_SUPPORTED, f"this nvidia-ml-py has no {name}")
        try:
            return make(function(*arguments))
        except self.pynvml.NVMLError as error:
            return self._why(name, error)
        except (ctypes.ArgumentError, ValueError, TypeError, AttributeError, LookupError) as error:
            return Missing(Why.UNREADABLE, f"{name}: {type(error).__name__}: {error}"[:200])

    def integer(self, name: str, *arguments: object) -> Answer[int]:
        return self.ask(name, *arguments, make=int)

    def text(self, name: str, *arguments: object) -> Answer[str]:
        return self.ask(name, *arguments, make=text)

    def flag(self, name: str, *arguments: object) -> Answer[bool]:
        return self.ask(name, *arguments, make=bool)

    def flags(self, name: str, *arguments: object) -> tuple[bool, bool] | Missing:
        """Now, and after the next reset or reboot; or two flags of another kind."""
        return self.ask(name, *arguments, make=lambda both: (bool(both[0]), bool(both[1])))

    def watts(self, name: str, *arguments: object) -> Answer[float]:
        return self.ask(name, *arguments, make=lambda milliwatts: milliwatts / 1000)

    def word(self, words: dict[int, str], name: str, *arguments: object) -> Answer[str]:
        return self.ask(name, *arguments, make=lambda value: word(words, int(value)))

    def field(self, device: object, name: str, scope: int = 0) -> Answer[int]:
        """A field value by the name of its constant, of one link where `scope` says so."""
        return self.fields(device, [(name, scope)])[0]

    def fields(self, device: object, wanted: Sequence[tuple[str, int]]) -> list[Answer[int]]:
        """Values of many fields at once, by name and scope; each answers for itself. One call costs less than one for each.

        One thread at a time: beside one that reads the traffic of NVLinks, 20 to 127 of 150 readings of their errors were "not supported"
        (H200, driver 580); none when both came here, none beside another process: tools/gpu/nvlink_race.py.
        """
        known = [(getattr(self.pynvml, name), scope) for name, scope in wanted if hasattr(self.pynvml, name)]
        with _ONE_AT_A_TIME:
            values = self.ask("nvmlDeviceGetFieldValues", device, known, make=iter) if known else iter(())
        answers: list[Answer[int]] = []
        for name, _ in wanted:
            if not hasattr(self.pynvml, name):
                answers.append(Missing(Why.NOT_SUPPORTED, f"this nvidia-ml-py has no {name}"))
            else:
                answers.append(values if isinstance(values, Missing) else self._field(name, next(values)))
        return answers

    def _field(self, name: str, value: Any) -> Answer[int]:
        if value.nvmlReturn:
            return self._why(name, self.pynvml.NVMLError(value.nvmlReturn))
        member = _MEMBERS.get(value.valueType)
        if member is None:
            return Missing(Why.UNREADABLE, f"{name}: a value of type {value.valueType}")
        return int(getattr(value.value, member))

    def num_links(self, device: object) -> Answer[int]:
        """NVLinks of a GPU."""
        count = self.field(device, "NVML_FI_DEV_NVLINK_LINK_COUNT")
        if isinstance(count, int) and count > _MOST_LINKS:
            return Missing(Why.UNREADABLE, f"NVML_FI_DEV_NVLINK_LINK_COUNT: {count} links, more than any GPU has")
        return count

    def structure(self, type_name: str, name: str, device: object) -> Any | Missing:
        """What a function writes into a structure that carries its version."""
        make_structure = getattr(self.pynvml, type_name, None)
        if make_structure is None:
            return Missing(Why.NOT_SUPPORTED, f"this nvidia-ml-py has no {type_name}")
        structure = make_structure()
        return self.ask(name, device, ctypes.byref(structure), make=lambda _: structure)

    def _why(self, name: str, error: Exception) -> Missing:
        code = getattr(error, "value", None)
        reasons = {
            self.pynvml.NVML_ERROR_NOT_SUPPORTED: Why.NOT_SUPPORTED,
            self.pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: Why.NOT_SUPPORTED,
            self.pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH: Why.NOT_SUPPORTED,
            self.pynvml.NVML_ERROR_NO_PERMISSION: Why.NOT_PERMITTED,
            self.pynvml.NVML_ERROR_NOT_FOUND: Why.NOT_THERE,
        }
        why = reasons.get(code, Why.UNREADABLE)
        return Missing(why, "" if why is Why.NOT_SUPPORTED else f"{name}: {error}"[:200])


def is_lacking(answer: Answer[object]) -> bool:
    """Whether NVML says that this GPU does not support it."""
    return isinstance(answer, Missing) and answer.missing is Why.NOT_SUPPORTED


def word(words: dict[int, str], value: int) -> str:
    """What a number of an enumeration stands for; one that a later NVML may bring is said to be unknown."""
    return words.get(value, f"unknown ({value})")


def text(value: str | bytes) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def read_use(asker: Asker, handle: object) -> GpuUse:
    used_bytes = asker.ask("nvmlDeviceGetMemoryInfo", handle, make=lambda info: int(info.used))
    return GpuUse(read_processes(asker, handle), used_bytes)


def read_processes(asker: Asker, handle: object) -> Answer[tuple[GpuProcess, ...]]:
    """Those with a compute context, sorted by pid."""
    return asker.ask("nvmlDeviceGetComputeRunningProcesses", handle, make=_processes)


def _processes(found: list[Any]) -> tuple[GpuProcess, ...]:
    """NVML does not know the memory of a process under some driver models, and in a container."""
    unknown = Missing(Why.NOT_SUPPORTED)
    return tuple(
        GpuProcess(int(one.pid), unknown if one.usedGpuMemory is None else int(one.usedGpuMemory))
        for one in sorted(found, key=lambda one: int(one.pid))
    )


@dataclass(frozen=True)
class NvmlReading:
    """`problem` is empty when everything answered; otherwise it says what did not, in words for a person."""

    gpus: tuple[Gpu, ...] = ()
    driver_version: str = ""
    problem: str = ""


_READ_S = 60.0  # a driver without persistence sets up each GPU when it is asked first: seconds for each
_READ: Patience[NvmlReading] = Patience(_READ_S, NvmlReading(problem=f"NVML has not answered for {_READ_S:g} s"))
_MEMORY: Patience[int | None] = Patience(2.0, None)


class NoNvmlError(Exception):
    """The library or the driver behind it is not there."""


def read() -> NvmlReading:
    """All GPUs that NVML shows, in its order. A GPU that does not answer is listed with empty fields, never left out."""
    return _READ.call(_read)


def _read() -> NvmlReading:
    try:
        with library() as pynvml:
            asker = _Asker(pynvml)
            count = asker.ask("number of GPUs", 0, pynvml.nvmlDeviceGetCount)
            gpus = tuple(_gpu(asker, index) for index in range(count))
            driver_version = asker.text("driver version", pynvml.nvmlSystemGetDriverVersion)
            return NvmlReading(gpus, driver_version, "; ".join(asker.problems))
    except NoNvmlError as error:
        return NvmlReading(problem=str(error))


def memory_used_bytes(index: int) -> int | None:
    """Bytes in use on one GPU, the driver's own (some 600 MiB on an idle one) included; None where NVML does not answer."""
    return _MEMORY.call(partial(_memory_used_bytes, index))


def _memory_used_bytes(index: int) -> int | None:
    try:
        with library() as pynvml:
            try:
                return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(index)).used)
            except pynvml.NVMLError:
                return None
    except NoNvmlError:
        return None


@dataclass
class _Asker:
    """Asks NVML; keeps what went wrong. That a GPU does not have something is an answer, not a problem."""

    pynvml: Any
    problems: list[str] = field(default_factory=list)

    def ask(self, what: str, missing: T, function: Callable[..., T], *arguments: object) -> T:
        try:
            return function(*arguments)
        except self.pynvml.NVMLError_NotSupported:
            return missing
        except (self.pynvml.NVMLError, UnicodeDecodeError) as error:  # nvidia-ml-py decodes as UTF-8 what a damaged inforom holds
            self.problems.append(f"{what}: {error}")
            return missing

    def text(self, what: str, function: Callable[..., str | bytes], *arguments: object) -> str:
        empty: str | bytes = ""
        answer = self.ask(what, empty, function, *arguments)  # bytes from older versions of the library
        return answer.decode("utf-8", "backslashreplace") if isinstance(answer, bytes) else answer


def _gpu(asker: _Asker, index: int) -> Gpu:
    pynvml, name = asker.pynvml, f"GPU {index}"
    handle = asker.ask(name, None, pynvml.nvmlDeviceGetHandleByIndex, index)
    if handle is None:
        return Gpu(index=index, name="")
    pci = asker.ask(f"{name} PCI address", None, pynvml.nvmlDeviceGetPciInfo, handle)
    memory = asker.ask(f"{name} memory", None, pynvml.nvmlDeviceGetMemoryInfo, handle)
    return Gpu(
        index=index,
        name=asker.text(f"{name} name", pynvml.nvmlDeviceGetName, handle),
        uuid=asker.text(f"{name} UUID", pynvml.nvmlDeviceGetUUID, handle),
        serial=asker.text(f"{name} serial", pynvml.nvmlDeviceGetSerial, handle),
        pci_bus_id="" if pci is None else asker.text(f"{name} PCI address", lambda: pci.busId),
        part_number=asker.text(f"{name} part number", pynvml.nvmlDeviceGetBoardPartNumber, handle),
        vbios=asker.text(f"{name} VBIOS", pynvml.nvmlDeviceGetVbiosVersion, handle),
        memory_bytes=0 if memory is None else int(memory.total),
        use=read_use(Asker(pynvml), handle),
    )


@contextmanager
def library() -> Iterator[Any]:
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
        with suppress(pynvml.NVMLError):  # of a GPU that was lost meanwhile; what was read has been read
            pynvml.nvmlShutdown()
