"""Since boot the kernel has reported no error of a GPU, a switch, a network card or the host that asks for a repair."""

import pytest

from gpu_acceptance.inventory import gpu_health, infiniband, infiniband_health, kernel_log, node

pytestmark = pytest.mark.no_group


@pytest.fixture(scope="module")
def log():
    """The kernel's log of GPUs, switches and PCIe, read once."""
    return kernel_log.read()


def test_errors(gpu, log, gpus, check_all):
    """No XID of this GPU asks for a repair, it started and never fell off the bus, and PCIe errors on its path were all corrected."""
    own = gpu_health.gpu_of(gpus, gpu.gpu_uuid)
    check_all(kernel_log.errors(log, own, infiniband.place_of(own, node.places_of(gpus))))


def test_elsewhere(gpu, log, gpus, check_all):
    """The log has no such error of a switch, or of a GPU that is not present any more."""
    gpu_health.gpu_of(gpus, gpu.gpu_uuid)  # skips where no GPU is known
    check_all(kernel_log.elsewhere(log, gpus.gpus))


def test_host(gpu, log, check_all):
    """No error of the host's memory, CPUs or buses was beyond correction."""
    check_all(kernel_log.host(log))


def test_nics(gpu, log, parameter, check_all):
    """No network card that the job uses met a fatal error, and neither did the PCIe link to it."""
    network = infiniband.read()
    used = infiniband_health.chosen(network, str(parameter("infiniband.devices")))
    check_all(kernel_log.nics(log, used.devices, network.devices))
