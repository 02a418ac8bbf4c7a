import sys
import threading
from types import ModuleType, SimpleNamespace

import pytest

from gpu_acceptance.inventory import nvml
from gpu_acceptance.inventory.answer import Missing, Why
from gpu_acceptance.inventory.gpu import Gpu, GpuProcess, GpuUse


class FakeNvml(ModuleType):
    """Two GPUs, as NVML shows them. `fails` maps a function's name, or a name and an index, to the error it raises."""

    class NVMLError(Exception):
        pass

    NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_NO_PERMISSION, NVML_ERROR_NOT_FOUND = 3, 4, 6
    NVML_ERROR_FUNCTION_NOT_FOUND, NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 13, 25

    class NVMLError_NotSupported(NVMLError):  # noqa: N801, N818
        pass

    def __init__(self, *, texts=str, fails=None, processes=()):
        super().__init__("pynvml")
        self._processes = [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in processes]
        self._texts, self._fails, self.num_open = texts, fails or {}, 0

    def _text(self, text):
        return text.encode() if self._texts is bytes else text

    def _called(self, name, index=None):
        error = self._fails.get((name, index)) or self._fails.get(name)
        if error:
            raise error

    def nvmlInit(self):
        self._called("nvmlInit")
        self.num_open += 1

    def nvmlShutdown(self):
        self._called("nvmlShutdown")
        self.num_open -= 1

    def nvmlSystemGetDriverVersion(self):
        self._called("nvmlSystemGetDriverVersion")
        return self._text("580.159.04")

    def nvmlDeviceGetCount(self):
        self._called("nvmlDeviceGetCount")
        return 2

    def nvmlDeviceGetHandleByIndex(self, index):
        self._called("nvmlDeviceGetHandleByIndex", index)
        return index

    def nvmlDeviceGetName(self, index):
        return self._text("NVIDIA H200")

    def nvmlDeviceGetUUID(self, index):
        return self._text(f"GPU-{index}")

    def nvmlDeviceGetSerial(self, index):
        self._called("nvmlDeviceGetSerial", index)
        return self._text(f"165392410000{index}")

    def nvmlDeviceGetPciInfo(self, index):
        self._called("nvmlDeviceGetPciInfo", index)
        return SimpleNamespace(busId=self._text(f"00000000:0{index}:00.0"))

    def nvmlDeviceGetBoardPartNumber(self, index):
        self._called("nvmlDeviceGetBoardPartNumber", index)
        return self._text("692-2G520-0282-001")

    def nvmlDeviceGetVbiosVersion(self, index):
        return self._text("96.00.A5.00.1A")

    def nvmlDeviceGetMemoryInfo(self, index):
        self._called("nvmlDeviceGetMemoryInfo", index)
        return SimpleNamespace(total=150_754_820_096, used=648_019_968)

    def nvmlDeviceGetComputeRunningProcesses(self, index):
        self._called("nvmlDeviceGetComputeRunningProcesses", index)
        return self._processes


def fake(monkeypatch, **options):
    module = FakeNvml(**options)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    return module


IDLE = GpuUse((), 648_019_968)


def h200(index, **differing):
    board = {"part_number": "692-2G520-0282-001", "vbios": "96.00.A5.00.1A"}
    known = {**board, "uuid": f"GPU-{index}", "serial": f"165392410000{index}", "pci_bus_id": f"00000000:0{index}:00.0", "use": IDLE}
    return Gpu(index=index, name="NVIDIA H200", memory_bytes=150_754_820_096, **{**known, **differing})


@pytest.mark.parametrize("texts", [str, bytes])
def test_both_kinds_of_text_are_read(texts, monkeypatch):
    module = fake(monkeypatch, texts=texts)
    assert nvml.read() == nvml.NvmlReading((h200(0), h200(1)), "580.159.04", "")
    assert module.num_open == 0


def test_a_serial_that_is_not_supported_is_empty_and_no_problem(monkeypatch):
    fake(monkeypatch, fails={"nvmlDeviceGetSerial": FakeNvml.NVMLError_NotSupported("Not Supported")})
    assert nvml.read() == nvml.NvmlReading((h200(0, serial=""), h200(1, serial="")), "580.159.04", "")


def test_a_virtual_gpu_has_no_board(monkeypatch):
    fake(monkeypatch, fails={"nvmlDeviceGetBoardPartNumber": FakeNvml.NVMLError_NotSupported("Not Supported")})
    assert nvml.read() == nvml.NvmlReading((h200(0, part_number=""), h200(1, part_number="")), "580.159.04", "")


def test_a_field_that_fails_is_empty_and_named(monkeypatch):
    fake(monkeypatch, fails={("nvmlDeviceGetPciInfo", 1): FakeNvml.NVMLError("Unknown Error")})
    reading = nvml.read()
    assert reading.gpus == (h200(0), h200(1, pci_bus_id=""))
    assert reading.problem == "GPU 1 PCI address: Unknown Error"


def test_a_text_that_is_none_is_empty_and_named(monkeypatch):
    """As nvidia-ml-py decodes it."""
    error = UnicodeDecodeError("utf-8", b"\xff\xff", 0, 1, "invalid start byte")
    fake(monkeypatch, fails={("nvmlDeviceGetSerial", 1): error})
    reading = nvml.read()
    assert reading.gpus == (h200(0), h200(1, serial=""))
    assert reading.problem == "GPU 1 serial: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"


def test_a_lost_gpu_is_listed_without_a_name(monkeypatch):
    module = fake(monkeypatch, fails={("nvmlDeviceGetHandleByIndex", 1): FakeNvml.NVMLError("GPU is lost")})
    reading = nvml.read()
    assert reading.gpus == (h200(0), Gpu(index=1, name=""))
    assert reading.problem == "GPU 1: GPU is lost"
    assert module.num_open == 0


def test_a_driver_that_does_not_count_is_a_problem(monkeypatch):
    fake(monkeypatch, fails={"nvmlDeviceGetCount": FakeNvml.NVMLError("Driver/library version mismatch")})
    assert nvml.read() == nvml.NvmlReading((), "580.159.04", "number of GPUs: Driver/library version mismatch")


def test_who_is_on_a_gpu_is_told_by_pid(monkeypatch):
    fake(monkeypatch, processes=[(1700, None), (1607, 1_262_485_504)])
    found = (GpuProcess(1607, 1_262_485_504), GpuProcess(1700, Missing(Why.NOT_SUPPORTED)))
    assert nvml.read().gpus[1].use == GpuUse(found, 648_019_968)


def test_processes_that_nvml_does_not_tell_are_missing_and_no_problem_of_the_node(monkeypatch):
    error = FakeNvml.NVMLError("Insufficient Permissions")
    error.value = 4
    fake(monkeypatch, fails={"nvmlDeviceGetComputeRunningProcesses": error})
    reading = nvml.read()
    why = Missing(Why.NOT_PERMITTED, "nvmlDeviceGetComputeRunningProcesses: Insufficient Permissions")
    assert (reading.gpus[0].use, reading.problem) == (GpuUse(why, 648_019_968), "")


def test_a_library_that_does_not_close_has_told_what_it_told(monkeypatch):
    fake(monkeypatch, fails={"nvmlShutdown": FakeNvml.NVMLError("GPU is lost")})
    assert nvml.read() == nvml.NvmlReading((h200(0), h200(1)), "580.159.04", "")
    assert nvml.memory_used_bytes(0) == 648_019_968


def test_a_missing_library_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    reading = nvml.read()
    assert reading.gpus == ()
    assert reading.problem.startswith("NVML cannot be asked: import of pynvml halted")


def test_a_missing_driver_is_told(monkeypatch):
    fake(monkeypatch, fails={"nvmlInit": FakeNvml.NVMLError("Driver Not Loaded")})
    assert nvml.read() == nvml.NvmlReading(problem="NVML does not start: Driver Not Loaded")


def test_memory(monkeypatch):
    module = fake(monkeypatch)
    assert nvml.memory_used_bytes(0) == 648_019_968
    assert module.num_open == 0


@pytest.mark.parametrize("function", ["nvmlInit", "nvmlDeviceGetHandleByIndex"])
def test_memory_that_nobody_tells_is_unknown(function, monkeypatch):
    module = fake(monkeypatch, fails={function: FakeNvml.NVMLError("Unknown Error")})
    assert nvml.memory_used_bytes(0) is None
    assert module.num_open == 0


def test_a_driver_that_hangs_is_a_problem_in_words(monkeypatch):
    may_go = threading.Event()

    class Hangs(FakeNvml):
        def nvmlInit(self):
            assert may_go.wait(60)
            super().nvmlInit()

    monkeypatch.setitem(sys.modules, "pynvml", Hangs())
    monkeypatch.setattr(nvml._READ, "_timeout_s", 0.1)
    try:
        assert nvml.read() == nvml.NvmlReading(problem="NVML has not answered for 60 s")
    finally:
        may_go.set()
        nvml._READ._hanging.join(60)
