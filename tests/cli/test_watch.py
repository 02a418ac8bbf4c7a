"""`gpu-acceptance watch` as a process of its own over a stand-in for NVML: tables, a terminal, drivers that hang or are not there."""

import io
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from inventory.fake_nvml import install
from inventory.rdma_trees import NDR_PORT, add_device
from waiting import HANG_S, wait_until

from gpu_acceptance.cli import machine as watch_module
from gpu_acceptance.cli.machine import watch
from gpu_acceptance.inventory.answer import Missing
from gpu_acceptance.inventory.nvml import NoNvmlError, Patience

pytestmark = pytest.mark.slow

TESTS = Path(__file__).parents[1]
FAKE = f"""
import ctypes, sys, threading, time
from types import SimpleNamespace
sys.path.append({str(TESTS)!r})
from inventory.fake_nvml import FIELDS, fails, fields, install, out, string
def put(**changes):
    install(SimpleNamespace(setattr=setattr), **changes)
def number_of(device):
    return ctypes.cast(device, ctypes.c_void_p).value
"""
TRAFFIC = """
def moving(device, count, array):
    kib = int(time.monotonic() * 4e6)  # 4.096 GB/s on each of 18 links
    return fields({**FIELDS, "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX": kib})(device, count, array)
put(nvmlDeviceGetFieldValues=moving)
"""
SECOND_HANGS = """
def clock(device, kind, target):
    if number_of(device) == 2:
        threading.Event().wait()
    return out(1455)(device, target)
put(nvmlDeviceGetClockInfo=clock)
"""


@pytest.fixture
def environment(tmp_path):
    """With two H200, or what this code makes of them, in each Python that is started with it."""

    def make(code=None):
        folder = TESTS / "fakegpus"
        if code is not None:
            folder = tmp_path
            (folder / "sitecustomize.py").write_text(FAKE + code)
        return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(TESTS.parent / "src")])}

    return make


COMMAND = [sys.executable, "-m", "gpu_acceptance", "watch"]


def run(environment, *arguments):
    return subprocess.run([*COMMAND, *arguments], env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_tables_one_below_the_other(environment):
    ended = run(environment(), "--interval=0.1", "--count=3")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "\x1b" not in ended.stdout
    blocks = ended.stdout.split("\n\n")
    assert blocks.pop() == ""
    assert len(blocks) == 3
    for block in blocks:
        head, titles, first, second, reasons = block.splitlines()
        assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC, 2 GPUs", head)
        assert titles.split()[:4] == ["GPU", "name", "SM", "MHz"]
        assert re.fullmatch(r"  0 +NVIDIA H200 +345 +3201 +80 / 700 +34 +35 +0 +0\.6 / 140\.4 +\? +\? +\? +\? +gpu idle", first)
        assert second.split()[0] == "1"
        assert reasons == "  ? (not supported): NVLink tx GB/s, NVLink rx GB/s, PCIe tx GB/s, PCIe rx GB/s (all)"


def test_traffic_is_shown_from_the_first_table_on(environment):
    ended = run(environment(TRAFFIC), "--interval=1", "--count=1")
    assert ended.returncode == 0, ended.stderr
    (told,) = {float(line.split()[-6]) for line in ended.stdout.splitlines() if line.startswith("  0 ")}
    assert told == pytest.approx(18 * 4.096, rel=0.2)


def test_a_gpu_whose_driver_hangs_is_named_and_the_others_go_on(environment):
    ended = run(environment(SECOND_HANGS), "--count=2", "--interval=0.1")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert len(re.findall(r"^  0 +NVIDIA H200 +1455 ", ended.stdout, re.MULTILINE)) == 2
    assert len(re.findall(r"^  1 +NVIDIA H200 +\? +\? +\? ", ended.stdout, re.MULTILINE)) == 2
    assert "? (unreadable: NVML has not answered for 2 s): SM MHz" in ended.stdout


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("put(nvmlInitWithFlags=fails(9))", "NVML does not start: Driver Not Loaded"),
        ("put(nvmlDeviceGetCount_v2=out(0))", "NVML shows no GPU"),
        (
            "put(nvmlDeviceGetCount_v2=fails(999))",
            "NVML does not say how many GPUs there are: unreadable (nvmlDeviceGetCount: Unknown Error)",
        ),
    ],
)
def test_a_node_without_gpus_is_one_line_and_no_table(environment, code, text):
    ended = run(environment(code), "--count=1")
    assert (ended.returncode, ended.stdout, ended.stderr) == (3, "", f"gpu-acceptance: {text}\n")


def test_a_terminal_is_written_in_place(environment):
    ours, theirs = pty.openpty()
    with subprocess.Popen([*COMMAND, "--interval=0.1", "--count=3"], env=environment(), stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        while chunk := read(ours):
            shown += chunk
    os.close(ours)
    assert process.returncode == 0
    frames = shown.decode().split("\x1b[H")
    assert frames.pop(0) == ""
    assert len(frames) == 3
    for frame in frames:
        assert frame.endswith("\x1b[J")
        lines = frame.removesuffix("\x1b[J").splitlines()
        assert len(lines) == 5
        assert all(line.endswith("\x1b[K") for line in lines)


def read(descriptor):
    try:
        return os.read(descriptor, 65536)
    except OSError:  # EIO: the other side is closed
        return b""


def test_ctrl_c_ends_it(environment):
    with subprocess.Popen(
        [*COMMAND, "--interval=0.1"], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=HANG_S)
    assert (process.returncode, errors) == (2, "")


def test_the_reader_may_leave(environment):
    with subprocess.Popen(
        [*COMMAND, "--interval=0.1"], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline()
        process.stdout.close()
        assert process.wait(60) == 128 + signal.SIGPIPE  # as every verb
        assert process.stderr.read() == ""


# --- in this process -----------------------------------------------------------------------------------------------------------


class Paper(io.StringIO):
    """Does something after each table."""

    def __init__(self, after):
        super().__init__()
        self._after = after

    def flush(self):
        super().flush()
        self._after()


def test_below_the_gpus_are_the_ports(monkeypatch, tmp_path):
    install(monkeypatch)
    port = add_device(
        tmp_path, "mlx5_0", "pci0000:00/0000:00:01.0", ports={"1": {**NDR_PORT, "counters": {"port_xmit_data": 0, "port_rcv_data": 0}}}
    )
    sent = port / "ports/1/counters/port_xmit_data"
    paper = Paper(lambda: sent.write_text(f"{int(sent.read_text()) + 10**11}\n"))
    watch(paper, interval_s=0.1, most_frames=2, root=tmp_path)
    first, second, _ = paper.getvalue().split("\n\n")
    assert first.splitlines()[-1].split() == ["mlx5_0", "port", "1", "0.00", "0.00"]
    assert float(second.splitlines()[-1].split()[3]) > 1
    assert first.splitlines()[-2].split()[:2] == ["RDMA", "port"]


def test_ports_whose_device_hangs_are_named_and_not_awaited(monkeypatch, tmp_path):
    install(monkeypatch)
    monkeypatch.setattr(watch_module, "_PORTS_S", 0.1)
    hanging = add_device(tmp_path, "mlx5_0", "pci0000:00/0000:00:01.0", ports={"1": {**NDR_PORT, "counters": {}}})
    fifo = hanging / "ports/1/counters/port_xmit_data"
    fifo.parent.mkdir(exist_ok=True)
    os.mkfifo(fifo)
    paper = io.StringIO()
    watch(paper, interval_s=0.1, most_frames=1, root=tmp_path)
    assert paper.getvalue().endswith("  RDMA ports: ? (unreadable: no answer for 0.1 s)\n\n")
    os.close(os.open(fifo, os.O_RDWR | os.O_NONBLOCK))  # lets the reader go


def test_a_driver_that_never_answers_is_one_line(monkeypatch):
    monkeypatch.setattr(watch_module, "_BOARDS", Patience(0.1, None))
    monkeypatch.setattr(watch_module, "_read_boards", lambda: wait_until(lambda: False, 1.0))
    with pytest.raises(NoNvmlError, match="NVML has not answered for 60 s"):
        watch(io.StringIO(), interval_s=0.1, most_frames=1)


def test_a_gpu_without_a_uuid_has_a_line(monkeypatch, tmp_path):
    install(monkeypatch, nvmlDeviceGetUUID=None)
    paper = io.StringIO()
    watch(paper, interval_s=0.1, most_frames=1, root=tmp_path)
    assert re.search(r"^  0 +NVIDIA H200 +\? +\? ", paper.getvalue(), re.MULTILINE)
    assert "? (not supported: nvmlDeviceGetUUID: Function Not Found): SM MHz" in paper.getvalue()
    assert isinstance(watch_module._boards()[0].uuid, Missing)
