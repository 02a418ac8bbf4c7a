"""The GPUs of this node as NVML names them. What NVML would not say is empty, and said so where it should have answered.

Opens no CUDA context, so that a supervisor may ask.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from gpu_acceptance.inventory.gpu_use import read_use
from gpu_acceptance.inventory.named_gpu import Gpu
from gpu_acceptance.inventory.nvml_asker import Asker
from gpu_acceptance.inventory.patience import Patience

T = TypeVar("T")


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
