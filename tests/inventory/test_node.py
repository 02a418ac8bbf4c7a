"""One node as a whole: where its GPUs sit is read of those that NVML names."""

import pynvml
import pytest
from inventory.fake_nvml import fails, fill, install
from inventory.trees import fill as fill_folder

from gpu_acceptance.inventory import node
from gpu_acceptance.inventory.pci_topology import Place

PATH = "pci0000:15/0000:15:01.0/0000:18:00.0"


def on_the_bus(root):
    fill_folder(root / "sys/devices" / PATH, {"numa_node": 1})
    links = root / "sys/bus/pci/devices"
    links.mkdir(parents=True)
    (links / "0000:18:00.0").symlink_to(f"../../../devices/{PATH}")
    return root


def test_two_gpus_of_one_address_have_one_place(tmp_path, monkeypatch):
    install(monkeypatch, nvmlDeviceGetPciInfo_v3=fill(busId=b"00000000:18:00.0"))
    assert node.read(on_the_bus(tmp_path)).gpu_places == (Place("00000000:18:00.0", PATH, 1),)


@pytest.mark.parametrize("function", ["nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetCount_v2"])
def test_a_gpu_that_gives_no_address_has_no_place(tmp_path, monkeypatch, function):
    install(monkeypatch, **{function: fails(pynvml.NVML_ERROR_GPU_IS_LOST)})
    assert node.read(on_the_bus(tmp_path)).gpu_places == ()
