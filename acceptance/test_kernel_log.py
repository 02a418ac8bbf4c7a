"""Since boot the driver has reported no error of a GPU or switch that asks for a repair."""

import pytest

from gpu_acceptance.inventory import gpu_health, infiniband, kernel_log, node

pytestmark = pytest.mark.no_group


@pytest.fixture(scope="module")
def log():
    """The kernel's log of GPUs, switches and PCIe, read once."""
    return kernel_log.read()


def test_errors(gpu, log, gpus, check_all):
    """No XID of this GPU asks for a repair, it never fell off the bus, and PCIe errors on its path were all corrected."""
    own = gpu_health.gpu_of(gpus, gpu.gpu_uuid)
    check_all(kernel_log.errors(log, own, infiniband.place_of(own, node.places_of(gpus))))


def test_elsewhere(gpu, log, gpus, check_all):
    """The log has no such error of a switch, or of a GPU that is not present any more."""
    gpu_health.gpu_of(gpus, gpu.gpu_uuid)  # skips where no GPU is known
    check_all(kernel_log.elsewhere(log, gpus.gpus))
