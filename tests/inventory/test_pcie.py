from pathlib import Path

import pytest

from gpu_acceptance.inventory import pci_topology
from gpu_acceptance.inventory.pci_topology import BusReading, gpus_on_bus


@pytest.fixture(autouse=True)
def no_real_bus(tmp_path, monkeypatch):
    """The machine that runs this test may have GPUs of its own."""
    monkeypatch.setattr(pci_topology, "SYS", bus(tmp_path / "real"))


def bus(root, **devices):
    folder = root / "bus" / "pci" / "devices"
    folder.mkdir(parents=True)
    for number, (vendor, pci_class) in enumerate(devices.values()):
        device = folder / f"0000:{number:02x}:00.0"
        device.mkdir()
        (device / "vendor").write_text(vendor + "\n", encoding="ascii")
        (device / "class").write_text(pci_class + "\n", encoding="ascii")
    return root


@pytest.mark.parametrize(
    ("vendor", "pci_class", "is_gpu"),
    [
        ("0x10de", "0x030200", True),  # NVIDIA, 3D controller: a data-centre GPU
        ("0x10de", "0x030000", True),  # NVIDIA, VGA
        ("0x10de", "0x068000", False),  # NVIDIA, bridge: an NVSwitch
        ("0x10de", "0x040300", False),  # NVIDIA, audio
        ("0x1002", "0x120000", True),  # AMD, processing accelerator
        ("0x1002", "0x038000", True),  # AMD, display controller (other)
        ("0x1002", "0x030000", False),  # AMD, VGA: the console of a server
        ("0x1a03", "0x030000", False),  # ASPEED: a management controller
        ("0x15b3", "0x020700", False),  # Mellanox, InfiniBand
    ],
)
def test_vendor_and_class_make_a_gpu(vendor, pci_class, is_gpu, tmp_path):
    root = bus(tmp_path / "extra", device=(vendor, pci_class))
    assert gpus_on_bus(root) == BusReading(gpus=("0000:00:00.0",) if is_gpu else (), unreadable=())


def test_an_extra_root_adds_and_never_hides(tmp_path, monkeypatch):
    monkeypatch.setattr(pci_topology, "SYS", bus(tmp_path / "sys", bridge=("0x8086", "0x060000"), gpu=("0x10de", "0x030200")))
    assert gpus_on_bus().gpus == ("0000:01:00.0",)
    assert gpus_on_bus(bus(tmp_path / "empty")).gpus == ("0000:01:00.0",)
    assert gpus_on_bus(bus(tmp_path / "extra", gpu=("0x10de", "0x030200"))).gpus == ("0000:00:00.0", "0000:01:00.0")


def test_the_same_gpu_seen_twice_is_one(tmp_path):
    assert gpus_on_bus(bus(tmp_path / "extra", gpu=("0x10de", "0x030200"))).gpus == ("0000:00:00.0",)


@pytest.mark.parametrize("content", ["", "nonsense"])
@pytest.mark.parametrize("file", ["vendor", "class"])
def test_a_device_that_does_not_say_what_it_is_is_unreadable(file, content, tmp_path):
    root = bus(tmp_path / "extra", gpu=("0x10de", "0x030200"))
    (root / "bus/pci/devices/0000:00:00.0" / file).write_text(content, encoding="ascii")
    assert gpus_on_bus(root) == BusReading(gpus=(), unreadable=("0000:00:00.0",))


@pytest.mark.parametrize("file", ["vendor", "class"])
def test_a_device_without_its_files_is_unreadable(file, tmp_path):
    root = bus(tmp_path / "extra", gpu=("0x10de", "0x030200"))
    (root / "bus/pci/devices/0000:00:00.0" / file).unlink()
    assert gpus_on_bus(root) == BusReading(gpus=(), unreadable=("0000:00:00.0",))


def test_a_bus_that_may_not_be_listed_is_unreadable(tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "iterdir", refuse)
    assert gpus_on_bus().unreadable == (str(tmp_path / "real/bus/pci/devices"),)


def test_without_sysfs_nothing_was_seen(tmp_path):
    assert gpus_on_bus(tmp_path / "nowhere").unreadable == (str(tmp_path / "nowhere/bus/pci/devices"),)


def test_a_machine_without_a_pci_bus_has_no_gpu_on_it(tmp_path):
    (tmp_path / "arm" / "bus" / "platform").mkdir(parents=True)
    assert gpus_on_bus(tmp_path / "arm") == BusReading((), ())
