"""Since boot the driver has reported no error of a GPU or switch that asks for a repair."""

import pytest

from gpu_acceptance.inventory import gpu_health, infiniband, kernel_log, kernel_log_health, node

pytestmark = pytest.mark.no_group


@pytest.fixture(scope="module")
def log():
    """All that the kernel has logged of GPUs, switches and PCIe, read once."""
    return kernel_log.read()


def test_errors(gpu, log, gpus, check_all):
    """No XID of this GPU asks for a repair, it never fell off the bus, and no PCIe error on its way was beyond correction."""
    own = gpu_health.gpu_of(gpus, gpu.gpu_uuid)
    check_all(kernel_log_health.errors(log, own, infiniband.place_of(own, node.places_of(gpus))))


def test_elsewhere(gpu, log, gpus, check_all):
    """Nothing of that kind is told of a GPU that is not there any more, nor of a switch."""
    gpu_health.gpu_of(gpus, gpu.gpu_uuid)  # else nothing is known of any
    check_all(kernel_log_health.elsewhere(log, gpus.gpus))
