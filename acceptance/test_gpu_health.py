"""Every GPU reports itself as delivered, free of errors and pending repairs, set up correctly, and used by nobody else.

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


def test_identity(judge):
    """The model that the profile is for, with one VBIOS and one inforom on all."""
    judge(gpu_health.identity)


def test_memory(judge):
    """All of its memory is there, and no repair is due."""
    judge(gpu_health.memory)


def test_ecc(judge, gpus, gpu, record):
    """Memory errors are corrected, and none was beyond correction."""
    judge(gpu_health.ecc)
    for metric, value, unit in gpu_health.corrected(gpu_health.gpu_of(gpus, gpu.gpu_uuid)):
        record(metric, value, unit)


def test_remapping(judge):
    """No row of memory waits to be replaced, and spare rows are left in every bank."""
    judge(gpu_health.remapping)


def test_retired_pages(judge):
    """No page of memory waits to be taken out of use (GPUs before Ampere)."""
    judge(gpu_health.retired_pages)


def test_recovery(judge):
    """The driver asks for no reset and no reboot."""
    judge(gpu_health.recovery)


def test_clocks(judge):
    """The clocks of its model can be reached, and nobody has lowered them."""
    judge(gpu_health.clocks)


def test_power(judge):
    """The power of its model is allowed, and nobody has lowered it."""
    judge(gpu_health.power)


def test_throttling(judge):
    """Nothing slows it down: no heat, no power brake."""
    judge(gpu_health.throttling)


def test_temperature(judge):
    """It is far from where it would slow down."""
    judge(gpu_health.temperature)


def test_pcie(gpu, gpus, check_all):
    """Under load its link runs at full generation and width. An idle link may rest."""
    with copying(gpu.device) as still_copies:
        link = gpu_reader.read_pcie(gpu.gpu_uuid)
        if not still_copies():
            raise RuntimeError("the copies ended before the link had been read")
    check_all(gpu_health.pcie(replace(gpu_health.gpu_of(gpus, gpu.gpu_uuid), pcie=link)))


def test_nvlink(judge):
    """All of its NVLinks are up, at full speed, without errors."""
    judge(gpu_health.nvlink)


def test_fabric(judge):
    """The fabric manager has set it up."""
    judge(gpu_health.fabric)


def test_modes(judge):
    """MIG off, persistence on, open to several processes."""
    judge(gpu_health.modes)


def test_peers(gpus, gpu, check_all):
    """It reaches every other GPU of its node directly."""
    check_all(gpu_health.peers(gpus, gpu_health.gpu_of(gpus, gpu.gpu_uuid).index))


def test_processes(gpu, check_all):
    """Nobody else was on it before this run put anything there."""
    check_all(gpu_health.processes(gpu.use_before))
