"""The PCI bus: GPUs on it, addresses in both spellings, and the distance of two devices by the bridges above them."""

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_acceptance.inventory import pci_topology
from gpu_acceptance.inventory.answer import Missing, Why
from gpu_acceptance.inventory.pci_topology import (
    BusReading,
    Distance,
    Place,
    chain_of,
    distance,
    gpus_on_bus,
    nearest,
    numa_node,
    nvml_bus_id,
    place,
    sysfs_address,
)

# Two sockets. Below the first: a switch with a GPU and a NIC, a second switch behind it, and a NIC on a root port of its own.
GPU = "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0"
NIC_SAME_SWITCH = "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:02.0/0000:1a:00.0"
NIC_NEXT_SWITCH = "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:03.0/0000:1b:00.0/0000:1c:00.0/0000:1d:00.0"
NIC_SAME_HOST_BRIDGE = "pci0000:15/0000:15:05.0/0000:2a:00.0"
NIC_OTHER_HOST_BRIDGE = "pci0000:37/0000:37:01.0/0000:38:00.0"


@pytest.mark.parametrize(
    ("sysfs", "nvml"),
    [("0000:3b:00.0", "00000000:3B:00.0"), ("0000:00:0a.0", "00000000:00:0A.0"), ("10000:e1:1f.7", "00010000:E1:1F.7")],
)
def test_an_address_in_both_spellings(sysfs, nvml):
    assert nvml_bus_id(sysfs) == nvml == nvml_bus_id(nvml)
    assert sysfs_address(nvml) == sysfs == sysfs_address(sysfs)


@pytest.mark.parametrize("address", ["", "3b:00.0", "0000:3b:00", "0000:3b:00.8", "0000:3b:00.0\n", "0000:3g:00.0", "0000:3b:00.0/.."])
def test_a_text_that_is_no_address(address):
    with pytest.raises(ValueError, match=r"no PCI address: .*; allowed: 0000:3b:00\.0 or 00000000:3B:00\.0"):
        nvml_bus_id(address)
    nowhere = place(address)
    assert nowhere.pci_bus_id == address
    assert nowhere.pci_path.missing == nowhere.numa_node.missing == Why.UNREADABLE


def device(root, path):
    folder = root / "sys" / "devices" / path
    folder.mkdir(parents=True)
    links = root / "sys" / "bus" / "pci" / "devices"
    links.mkdir(parents=True, exist_ok=True)
    (links / folder.name).symlink_to(f"../../../devices/{path}")
    return folder


def test_the_place_of_a_device_is_the_chain_of_bridges_above_it_and_its_numa_node(tmp_path):
    (device(tmp_path, GPU) / "numa_node").write_text("1\n")
    for address in ("00000000:18:00.0", "0000:18:00.0"):
        assert place(address, tmp_path) == Place(address, GPU, 1)


def test_a_device_that_is_not_there(tmp_path):
    link = tmp_path / "sys/bus/pci/devices/0000:18:00.0"
    nowhere = Missing(Why.NOT_THERE, str(link))
    assert place("00000000:18:00.0", tmp_path) == Place("00000000:18:00.0", nowhere, nowhere)
    link.parent.mkdir(parents=True)
    link.symlink_to(link)
    assert place("0000:18:00.0", tmp_path).pci_path.missing == Why.UNREADABLE


@pytest.mark.parametrize(
    ("real", "chain"),
    [
        ("/sys/devices/pci0000:00/0000:00:03.0/virtio2/net/eth0", "pci0000:00/0000:00:03.0"),
        # A domain of its own behind a volume management device, and one that Hyper-V passes through.
        ("/sys/devices/pci0000:00/0000:00:0e.0/pci10000:e0/10000:e0:06.0/10000:e1:00.0", "pci10000:e0/10000:e0:06.0/10000:e1:00.0"),
        ("/sys/devices/LNXSYSTM:00/VMBUS:00/1a2b/pci0001:00/0001:00:00.0", "pci0001:00/0001:00:00.0"),
    ],
)
def test_the_chain_begins_at_the_last_host_bridge(real, chain, tmp_path):
    assert chain_of(tmp_path / real.removeprefix("/")) == chain


def test_a_path_without_a_pci_device_is_none(tmp_path):
    assert chain_of(tmp_path / "virtual/net/lo").missing == Why.UNREADABLE
    assert chain_of(tmp_path / "pci0000:00").missing == Why.UNREADABLE


@pytest.mark.parametrize(
    ("path", "numa", "expected"),
    [
        (GPU.removesuffix("0") + "1", 0, Distance.PIX),  # another function of the same slot
        (NIC_SAME_SWITCH, 0, Distance.PIX),
        (NIC_NEXT_SWITCH, 0, Distance.PXB),
        (NIC_SAME_HOST_BRIDGE, 0, Distance.PHB),
        (NIC_OTHER_HOST_BRIDGE, 0, Distance.NODE),
        (NIC_OTHER_HOST_BRIDGE, 1, Distance.SYS),
    ],
)
def test_distances_are_those_of_nvidia_smi_topo(path, numa, expected):
    assert distance(GPU, path, 0, numa) == expected == distance(path, GPU, numa, 0)


def test_numa_nodes_count_only_where_host_bridges_differ():
    unknown = Missing(Why.NOT_SUPPORTED, "0000:18:00.0: the kernel knows no NUMA node of it")
    assert distance("pci0000:00/0000:00:06.0", "pci0000:00/0000:00:0a.0", unknown, 0) == Distance.PHB  # a flat virtual machine
    assert distance(GPU, NIC_OTHER_HOST_BRIDGE, unknown, 0) == distance(GPU, NIC_OTHER_HOST_BRIDGE, 0, unknown) == unknown


@pytest.mark.parametrize(("text", "expected"), [("0\n", 0), ("1\n", 1), ("-1\n", Why.NOT_SUPPORTED), ("none\n", Why.UNREADABLE)])
def test_a_numa_node(text, expected, tmp_path):
    (tmp_path / "numa_node").write_text(text)
    found = numa_node(tmp_path)
    assert (found.missing if isinstance(found, Missing) else found) == expected


def test_the_nearest_are_all_at_the_least_distance():
    """An unknown distance counts only where none is known to be nearer."""
    unknown = Missing(Why.NOT_SUPPORTED)
    assert nearest({"mlx5_0": Distance.SYS, "mlx5_2": Distance.PIX, "mlx5_1": Distance.PIX}) == ("mlx5_1", "mlx5_2")
    assert nearest({"mlx5_0": Distance.NODE, "mlx5_1": Distance.SYS}) == ("mlx5_0",)
    assert nearest({}) == ()
    assert nearest({"mlx5_0": unknown, "mlx5_1": Distance.PHB}) == ("mlx5_1",)
    assert nearest({"mlx5_0": unknown, "mlx5_1": Distance.NODE}) == nearest({"mlx5_0": unknown}) == unknown


@given(st.text())
def test_no_text_breaks_the_addresses(text):
    with suppress(ValueError):
        assert sysfs_address(nvml_bus_id(text)) == sysfs_address(text)


def test_every_device_of_this_machine_has_a_path():
    devices = Path("/sys/bus/pci/devices")
    for link in devices.iterdir() if devices.is_dir() else ():
        path = place(link.name).pci_path
        assert isinstance(path, str)
        assert path.startswith("pci")
        assert path.endswith(f"/{link.name}")


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


@pytest.mark.parametrize("content", ["", "nonsense", None])
@pytest.mark.parametrize("file", ["vendor", "class"])
def test_a_device_that_does_not_say_what_it_is_is_unreadable(file, content, tmp_path):
    root = bus(tmp_path / "extra", gpu=("0x10de", "0x030200"))
    path = root / "bus/pci/devices/0000:00:00.0" / file
    path.unlink() if content is None else path.write_text(content, encoding="ascii")
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
