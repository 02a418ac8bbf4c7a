"""Every rank has the GPU that it was given, for itself, and may run on the CPUs beside it."""

import os

import pytest
import torch

from gpu_acceptance.inventory import binding, cpu, gpu_health, infiniband, node

pytestmark = pytest.mark.no_group


def test_gpu(gpu, gpus, check_all):
    """No other rank has opened this GPU, and it is the one that the launcher gave to this rank."""
    owners = [rank for rank, uuid in enumerate(gpu.gather("gpu_uuid", gpu.gpu_uuid)) if uuid == gpu.gpu_uuid]
    opened = binding.Opened(gpu.gpu_uuid, gpu.local_rank, torch.cuda.device_count())
    check_all(binding.gpu(opened, owners, gpus.gpus, os.environ))


def test_affinity(gpu, gpus, check_all, record):
    """This rank may run on the CPUs of its GPU's own NUMA node."""
    own, cpus = gpu_health.gpu_of(gpus, gpu.gpu_uuid), cpu.read()
    place = infiniband.place_of(own, node.places_of(gpus))
    check_all(binding.affinity(cpus, place))
    found = binding.placement(own, cpus, place, infiniband.read().devices)
    record("binding.map.rank", binding.describe(found), "text", **found)
