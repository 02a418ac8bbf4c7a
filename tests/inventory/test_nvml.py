"""First facts of GPUs through nvidia-ml-py, over a stand-in for the C library, and a driver that hangs."""

import ctypes
import os
import subprocess
import sys
import threading
from pathlib import Path

import pynvml
import pytest
from inventory.fake_nvml import FIELDS, H200, MiB, by, fails, fields, install, processes

from gpu_acceptance.inventory import nvml
from gpu_acceptance.inventory.answer import Missing, Why
from gpu_acceptance.inventory.gpu import Gpu, GpuProcess, GpuUse, text
from gpu_acceptance.inventory.nvml import NvmlReading, Patience

ROOT = Path(__file__).parents[2]
IDLE = GpuUse((), 616 * MiB)
DRIVER = "580.159.04"


def h200(number, **differing):
    board = {"part_number": "692-2G520-0282-001", "vbios": "96.00.A5.00.1A", "nvlink_to": "switch"}
    board |= {"memory_bytes": 143_771 * MiB, "use": IDLE}
    named = {"uuid": f"GPU-0000000{number}-0000-4000-8000-00000000000{number}", "serial": f"165392410000{number}"}
    return Gpu(index=number - 1, **{"name": "NVIDIA H200", "pci_bus_id": "00000000:00:06.0", **board, **named, **differing})


def not_text(_device, buffer, _size):
    buffer.value = b"\xff\xff"
    return 0


def test_two_healthy_gpus(monkeypatch):
    install(monkeypatch)
    assert nvml.read() == NvmlReading((h200(1), h200(2)), DRIVER, "")
    assert nvml.memory_used_bytes(0) == 616 * MiB


@pytest.mark.parametrize(
    ("ends", "seen"),
    [
        ([0] * 18, "gpu"),
        ([0] * 17 + [None], "gpu"),  # a link that is down
        ([0] * 9 + [255] * 9, "gpu"),
        ([0] * 9 + [2] * 9, ""),
        ([255] * 18, ""),
        ([None] * 18, ""),
    ],
)
def test_what_all_nvlinks_lead_to(ends, seen, monkeypatch):
    install(monkeypatch, nvmlDeviceGetNvLinkRemoteDeviceType=by(*(((link,), end) for link, end in enumerate(ends) if end is not None)))
    assert {gpu.nvlink_to for gpu in nvml.read().gpus} == {seen}


def test_a_gpu_that_does_not_tell_its_nvlinks_is_read_all_the_same(monkeypatch):
    """As on a machine with one GPU of a larger board."""
    without = {name: value for name, value in FIELDS.items() if name != "NVML_FI_DEV_NVLINK_LINK_COUNT"}
    install(monkeypatch, nvmlDeviceGetFieldValues=fields(without))
    assert nvml.read() == NvmlReading((h200(1, nvlink_to=""), h200(2, nvlink_to="")), DRIVER, "")


WRITES_BEHIND = """
import ctypes, sys
from types import SimpleNamespace
import pynvml
from inventory import fake_nvml
from gpu_acceptance.inventory.counters import GpuCounters

def one_more(device, count, array):
    size = ctypes.sizeof(pynvml.c_nvmlFieldValue_t)
    ctypes.memset(ctypes.addressof(array._obj) + count.value * size, 0, size)
    return fake_nvml.H200["nvmlDeviceGetFieldValues"](device, count, array)

fake_nvml.install(SimpleNamespace(setattr=setattr), nvmlDeviceGetFieldValues=one_more)
values = GpuCounters(pynvml, fake_nvml.UUIDS[0]).read(each_link=True).values
print(len(values), values["nvlink.replays", ""])
"""


def test_an_element_that_nvml_writes_behind_the_values_hits_nothing_else():
    """As driver 580 does now and then: Python looks at the bytes behind each piece of its memory, and aborts."""
    env = {**os.environ, "PYTHONMALLOC": "debug", "PYTHONPATH": os.pathsep.join(["src", "tests"])}
    done = subprocess.run([sys.executable, "-c", WRITES_BEHIND], cwd=ROOT, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["68", "36"]  # 11 of the GPU, three sums, three of each of 18 links


def test_a_text_may_come_as_bytes():
    assert text(b"NVIDIA H200") == text("NVIDIA H200") == "NVIDIA H200"


@pytest.mark.parametrize(
    ("function", "field"),
    [("nvmlDeviceGetSerial", "serial"), ("nvmlDeviceGetBoardPartNumber", "part_number")],  # a virtual GPU has no board
)
def test_a_fact_that_is_not_supported_is_empty_and_no_problem(monkeypatch, function, field):
    install(monkeypatch, **{function: fails(pynvml.NVML_ERROR_NOT_SUPPORTED)})
    assert nvml.read() == NvmlReading((h200(1, **{field: ""}), h200(2, **{field: ""})), DRIVER, "")


@pytest.mark.parametrize(
    ("function", "changed", "field", "problem"),
    [
        ("nvmlDeviceGetPciInfo_v3", fails(pynvml.NVML_ERROR_UNKNOWN), "pci_bus_id", "PCI address: nvmlDeviceGetPciInfo: Unknown Error"),
        (
            "nvmlDeviceGetSerial",
            not_text,
            "serial",
            "serial: nvmlDeviceGetSerial: UnicodeDecodeError: 'utf-8' codec can't decode byte 0xff",
        ),
    ],
)
def test_a_fact_that_fails_is_empty_and_named(monkeypatch, function, changed, field, problem):
    def on_the_second(device, *arguments):
        return (changed if ctypes.cast(device, ctypes.c_void_p).value == 2 else H200[function])(device, *arguments)

    install(monkeypatch, **{function: on_the_second})
    reading = nvml.read()
    assert reading.gpus == (h200(1), h200(2, **{field: ""}))
    assert reading.problem.startswith(f"GPU 1 {problem}")


def test_a_lost_gpu_is_listed_without_a_name(monkeypatch):
    lost = pynvml.NVML_ERROR_GPU_IS_LOST
    find = H200["nvmlDeviceGetHandleByIndex_v2"]
    install(monkeypatch, nvmlDeviceGetHandleByIndex_v2=lambda index, device: lost if index.value == 1 else find(index, device))
    assert nvml.read() == NvmlReading((h200(1), Gpu(index=1, name="")), DRIVER, "GPU 1: nvmlDeviceGetHandleByIndex: GPU is lost")
    assert nvml.memory_used_bytes(1) is None


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "nvmlDeviceGetCount: RM has detected an NVML/RM version mismatch."),
        (pynvml.NVML_ERROR_NOT_SUPPORTED, "not supported"),
    ],
)
def test_a_driver_that_does_not_count_is_a_problem(monkeypatch, code, problem):
    install(monkeypatch, nvmlDeviceGetCount_v2=fails(code))
    assert nvml.read() == NvmlReading((), DRIVER, f"number of GPUs: {problem}")


def test_processes_are_listed_by_pid(monkeypatch):
    install(monkeypatch, nvmlDeviceGetComputeRunningProcesses_v3=processes((1700, 2**64 - 1), (1607, 1_262_485_504)))
    found = (GpuProcess(1607, 1_262_485_504), GpuProcess(1700, Missing(Why.NOT_SUPPORTED)))  # 2**64 - 1: memory unknown
    assert nvml.read().gpus[1].use == GpuUse(found, 616 * MiB)


def test_hidden_processes_are_missing_and_no_problem_of_the_node(monkeypatch):
    install(monkeypatch, nvmlDeviceGetComputeRunningProcesses_v3=fails(pynvml.NVML_ERROR_NO_PERMISSION))
    reading = nvml.read()
    why = Missing(Why.NOT_PERMITTED, "nvmlDeviceGetComputeRunningProcesses: Insufficient Permissions")
    assert (reading.gpus[0].use, reading.problem) == (GpuUse(why, 616 * MiB), "")


def test_a_library_that_does_not_close_has_answered_all_the_same(monkeypatch):
    install(monkeypatch, nvmlShutdown=fails(pynvml.NVML_ERROR_GPU_IS_LOST))
    assert nvml.read() == NvmlReading((h200(1), h200(2)), DRIVER, "")
    assert nvml.memory_used_bytes(0) == 616 * MiB


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    reading = nvml.read()
    assert reading.gpus == ()
    assert reading.problem.startswith("NVML cannot be asked: import of pynvml halted")


def test_a_missing_driver_is_named(monkeypatch):
    install(monkeypatch, nvmlInitWithFlags=fails(pynvml.NVML_ERROR_DRIVER_NOT_LOADED))
    assert nvml.read() == NvmlReading(problem="NVML does not start: Driver Not Loaded")
    assert nvml.memory_used_bytes(0) is None


def test_a_driver_that_hangs_is_a_problem(monkeypatch):
    may_go = threading.Event()
    install(monkeypatch, nvmlInitWithFlags=lambda _flags: 0 if may_go.wait(60) else 1)
    monkeypatch.setattr(nvml._READ, "_timeout_s", 0.1)
    try:
        assert nvml.read() == NvmlReading(problem="NVML has not answered for 60 s")
    finally:
        may_go.set()
        nvml._READ._hanging.join(60)


def test_patience_returns_or_raises_what_the_call_does():
    assert Patience(60.0, "nothing").call(lambda: "something") == "something"
    with pytest.raises(KeyError, match="gone"):
        Patience(60.0, None).call(lambda: {}["gone"])


def test_while_a_call_hangs_no_second_one_is_made():
    patience, may_go, called = Patience(0.1, "nothing"), threading.Event(), []

    def hang():
        called.append("once")
        may_go.wait(60)
        return "late"

    assert [patience.call(hang), patience.call(hang)] == ["nothing", "nothing"]
    assert called == ["once"]
    may_go.set()
    patience._hanging.join(60)
    assert patience.call(lambda: "something") == "something"
