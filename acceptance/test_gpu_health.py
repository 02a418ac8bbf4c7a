"""Every GPU reports itself as delivered, free of errors and pending repairs, set up correctly, and used by no other process.

Memory, clocks, power, heat, PCIe under load, NVLink, fabric, modes, peers, processes.
"""

from dataclasses import replace

import pytest

from gpu_acceptance.inventory import gpu_health, gpu_reader
from gpu_acceptance.measure.pcie import copying

pytestmark = pytest.mark.no_group


@pytest.fixture
def judge(gpus, gpu, check_all):
    """Checks one topic of this rank's GPU, which is known by the UUID that its process opened."""

    def judge_topic(topic):
        check_all(topic(gpu_health.gpu_of(gpus, gpu.gpu_uuid)))

    return judge_topic


@pytest.fixture
def at_work(gpu):
    """Reads a part of this rank's GPU while data are copied, as late as the copies last: an idle GPU lowers its clocks and its link."""

    def read_at_work(reader):
        answer = None
        with copying(gpu.device) as still_copies:
            while (latest := reader(gpu.gpu_uuid)) and still_copies():
                answer = latest
        if answer is None:
            raise RuntimeError("the copies ended before the GPU had been read")
        return answer

    return read_at_work


def test_identity(judge):
    """Each GPU is the model of the profile; all have one VBIOS and one inforom."""
    judge(gpu_health.identity)


def test_memory(judge):
    """All of the GPU's memory is present, and no repair is due."""
    judge(gpu_health.memory)


def test_ecc(judge, gpus, gpu, record):
    """All memory errors were corrected."""
    judge(gpu_health.ecc)
    for metric, value, unit in gpu_health.corrected(gpu_health.gpu_of(gpus, gpu.gpu_uuid)):
        record(metric, value, unit)


def test_remapping(judge):
    """No memory row is pending replacement, and every bank has spare rows."""
    judge(gpu_health.remapping)


def test_retired_pages(judge):
    """No memory page is pending retirement (GPUs before Ampere)."""
    judge(gpu_health.retired_pages)


def test_recovery(judge):
    """The driver asks for no reset and no reboot."""
    judge(gpu_health.recovery)


def test_clocks(gpu, gpus, at_work, check_all):
    """The GPU can reach the clocks of its model; no setting lowers them."""
    idle, (clocks, reasons) = gpu_health.gpu_of(gpus, gpu.gpu_uuid), at_work(gpu_reader.read_clocks)
    check_all(gpu_health.clocks(replace(idle, clocks=clocks, throttling=replace(idle.throttling, reasons=reasons))))


def test_power(judge):
    """The GPU may draw the power of its model; no setting lowers it."""
    judge(gpu_health.power)


def test_throttling(judge):
    """Neither heat nor a power brake slows the GPU down."""
    judge(gpu_health.throttling)


def test_temperature(judge):
    """The temperature is far below the point where the GPU slows down."""
    judge(gpu_health.temperature)


def test_pcie(gpu, gpus, at_work, check_all):
    """Under load the PCIe link runs at full generation and width. An idle link may be slower."""
    check_all(gpu_health.pcie(replace(gpu_health.gpu_of(gpus, gpu.gpu_uuid), pcie=at_work(gpu_reader.read_pcie))))


def test_nvlink(judge):
    """All NVLinks of the GPU are up, at full speed, without errors."""
    judge(gpu_health.nvlink)


def test_fabric(judge):
    """The fabric manager has set the GPU up."""
    judge(gpu_health.fabric)


def test_modes(judge):
    """MIG is off, persistence is on, and several processes may open the GPU."""
    judge(gpu_health.modes)


def test_peers(gpus, gpu, check_all):
    """The GPU reaches every other GPU of its node directly."""
    check_all(gpu_health.peers(gpus, gpu_health.gpu_of(gpus, gpu.gpu_uuid).index))


def test_processes(gpu, check_all):
    """No other process used the GPU before this run."""
    check_all(gpu_health.processes(gpu.use_before))
