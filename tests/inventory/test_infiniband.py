"""RDMA devices from a tree of files, and the two ways of GPUDirect RDMA."""

from contextlib import suppress

import pytest
from host_root import as_nobody, reachable_root
from hypothesis import given
from hypothesis import strategies as st
from inventory.rdma_trees import COUNTERS, DOWN_PORT, HW_COUNTERS, NDR_PORT, ROCE_PORT, add_device, fill

from gpu_acceptance.inventory import counters, fabric_reader, infiniband, infiniband_health
from gpu_acceptance.inventory.answer import Missing, Why
from gpu_acceptance.inventory.gpu import Gpu
from gpu_acceptance.inventory.infiniband import Counter, Netdev, Rate
from gpu_acceptance.inventory.pci_topology import Distance, Place, distance

IB_PATH = "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0"
ROCE_PATH = "pci0000:37/0000:37:01.0/0000:38:00.1"


def only_device(root):
    (device,) = infiniband.read(root).devices
    return device


def only_port(root):
    (port,) = only_device(root).ports
    return port


def test_a_connectx_7_on_infiniband(tmp_path):
    add_device(tmp_path, "mlx5_0", IB_PATH, ports={"1": NDR_PORT}, netdevs={"ibp24s0": 4092})
    device = only_device(tmp_path)
    assert (device.name, device.hca_type, device.board_id, device.firmware) == ("mlx5_0", "MT4129", "MT_0000000838", "28.39.2048")
    assert device.node_guid == device.sys_image_guid == "a088:c203:0016:8f42"
    assert (device.pci_address, device.pci_path, device.numa_node) == ("0000:18:00.0", IB_PATH, 0)
    assert device.netdevs == (Netdev("ibp24s0", 4092),)
    gpu = "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:01.0/0000:19:00.0"
    assert distance(gpu, device.pci_path, 0, device.numa_node) == Distance.PIX
    (port,) = device.ports
    assert (port.number, port.link_layer, port.state, port.phys_state) == (1, "InfiniBand", "ACTIVE", "LinkUp")
    assert port.rate == Rate(400.0, "4X", "NDR")
    assert (port.lid, port.sm_lid, port.gid_types) == (42, 1, ("IB/RoCE v1",))
    assert port.counters == tuple(Counter(name, value) for name, value in COUNTERS.items())
    assert port.hw_counters == tuple(Counter(name, value) for name, value in HW_COUNTERS.items() if name != "lifespan")


def test_a_port_of_roce(tmp_path):
    add_device(tmp_path, "mlx5_1", ROCE_PATH, ports={"1": ROCE_PORT}, netdevs={"ens3f1np1": 9000}, numa=1)
    device = only_device(tmp_path)
    assert (device.pci_address, device.numa_node, device.netdevs) == ("0000:38:00.1", 1, (Netdev("ens3f1np1", 9000),))
    (port,) = device.ports
    assert (port.link_layer, port.rate, port.lid, port.sm_lid) == ("Ethernet", Rate(100.0, "4X", "EDR"), 0, 0)
    assert port.gid_types == ("IB/RoCE v1", "RoCE v2")


def test_a_port_that_is_down_shows_the_lowest_rate(tmp_path):
    add_device(tmp_path, "mlx5_0", IB_PATH, ports={"1": DOWN_PORT})
    port = only_port(tmp_path)
    assert (port.state, port.phys_state, port.rate) == ("DOWN", "Polling", Rate(10.0, "4X", "SDR"))
    assert port.lid == 0xFFFF


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("800 Gb/sec (4X XDR)", Rate(800.0, "4X", "XDR")),
        ("200 Gb/sec (2X NDR)", Rate(200.0, "2X", "NDR")),
        ("56 Gb/sec (4X FDR)", Rate(56.0, "4X", "FDR")),
        ("2.5 Gb/sec (1X SDR)", Rate(2.5, "1X", "SDR")),
        ("10 Gb/sec (4X)", Rate(10.0, "4X", Missing(Why.NOT_THERE, "older kernels name no speed for SDR"))),
    ],
)
def test_rates(text, rate, tmp_path):
    add_device(tmp_path, "mlx5_0", IB_PATH, ports={"1": {**NDR_PORT, "rate": text}})
    assert only_port(tmp_path).rate == rate


def test_devices_and_ports_in_order(tmp_path):
    add_device(tmp_path, "mlx5_1", ROCE_PATH, ports={"1": ROCE_PORT})
    add_device(tmp_path, "mlx5_0", IB_PATH, ports={str(number): NDR_PORT for number in (10, 2, 1)})
    devices = infiniband.read(tmp_path).devices
    assert [device.name for device in devices] == ["mlx5_0", "mlx5_1"]
    assert [port.number for port in devices[0].ports] == [1, 2, 10]


@pytest.mark.parametrize("first_with_card", [0, 1])
def test_where_every_second_gpu_has_a_card_the_others_do_not_choose_those_of_storage(first_with_card):
    """NVIDIA/nccl#1357: 4 cards, each below the switch of one of 8 GPUs; the order of the GPUs says nothing."""
    paths = {f"mlx5_{gpu}": f"pci0000:{gpu:02x}/0000:0{gpu}:00.0/0000:1{gpu}:01.0" for gpu in range(first_with_card, 8, 2)}
    paths |= {"storage": "pci0000:f0/0000:f0:00.0/0000:f1:00.0"}
    places = [Place(str(gpu), f"pci0000:{gpu:02x}/0000:0{gpu}:00.0/0000:1{gpu}:00.0", 0) for gpu in range(8)]
    names = infiniband.names_near(places, paths, dict.fromkeys(paths, 0))
    assert names == tuple(sorted(paths.keys() - {"storage"}))


def test_a_machine_without_rdma(tmp_path):
    assert infiniband.read(tmp_path).devices == Missing(Why.NOT_THERE, str(tmp_path / "sys/class/infiniband"))
    (tmp_path / "sys/class/infiniband").mkdir(parents=True)  # a driver without a device
    assert infiniband.read(tmp_path).devices == ()


def test_a_device_made_of_software_sits_on_no_bus(tmp_path):
    fill(tmp_path / "sys/class/infiniband/rxe0", {"node_guid": "5054:00ff:fe12:3456", "ports": {"1": ROCE_PORT}})
    device = only_device(tmp_path)
    assert device.pci_address == device.pci_path == Missing(Why.NOT_THERE, str(tmp_path / "sys/class/infiniband/rxe0/device"))
    assert [answer.missing for answer in (device.numa_node, device.netdevs, device.board_id)] == [Why.NOT_THERE] * 3
    assert device.ports[0].state == "ACTIVE"


def test_a_port_without_counters(tmp_path):
    port = {name: value for name, value in NDR_PORT.items() if name not in {"counters", "hw_counters", "gid_attrs"}}
    add_device(tmp_path, "mlx5_0", IB_PATH, ports={"1": port})
    read = only_port(tmp_path)
    assert {answer.missing for answer in (read.counters, read.hw_counters, read.gid_types)} == {Why.NOT_THERE}


def test_a_device_may_have_counters_of_its_own(tmp_path):
    add_device(tmp_path, "mana_0", IB_PATH, ports={"1": NDR_PORT}, hw_counters={"lifespan": 10, "sent_cnps": 5})
    assert only_device(tmp_path).hw_counters == (Counter("sent_cnps", 5),)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("N/A (no PMA)", Why.NOT_SUPPORTED),
        *((content, Why.UNREADABLE) for content in ("-1", "1_000", "", "twelve", "9" * 21)),
    ],
)
def test_a_counter_without_a_number_is_missing_and_never_0(content, why, tmp_path):
    add_device(tmp_path, "mlx5_0", IB_PATH, ports={"1": {**NDR_PORT, "counters": {**COUNTERS, "link_downed": content}}})
    counters = {counter.name: counter.value for counter in only_port(tmp_path).counters}
    assert counters["link_downed"].missing == why
    assert counters["symbol_error"] == 17


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("ports/1/state", "ACTIVE"),
        ("ports/1/state", "4: "),
        ("ports/1/phys_state", "LinkUp"),
        ("ports/1/rate", "400 Gb/s"),
        ("ports/1/rate", "1e9 Gb/sec (4X NDR)"),
        ("ports/1/lid", "42"),
        ("ports/1/sm_lid", "0x"),
        ("ports/1/link_layer", ""),
        ("ports/1/link_layer", "a\nb"),
        ("board_id", "\x1b[31m"),
        ("node_guid", "a088c20300168f42"),
        ("fw_ver", "x" * 101),
    ],
)
def test_a_file_of_another_form_is_unreadable_and_the_rest_stays(file, content, tmp_path):
    folder = add_device(tmp_path, "mlx5_0", IB_PATH, ports={"1": NDR_PORT})
    fill(folder, {file: content})
    device = only_device(tmp_path)
    name = {"fw_ver": "firmware"}.get(file, file.rsplit("/", 1)[-1])
    answer = getattr(device.ports[0] if "/" in file else device, name)
    assert answer.missing == Why.UNREADABLE
    assert answer.detail.startswith(f"{tmp_path / 'sys/class/infiniband/mlx5_0' / file} says ")
    assert device.hca_type == "MT4129"


def test_a_port_that_is_no_number_makes_the_ports_unreadable(tmp_path):
    add_device(tmp_path, "mlx5_0", IB_PATH, ports={"1": NDR_PORT, "one": NDR_PORT})
    assert only_device(tmp_path).ports.missing == Why.UNREADABLE


def test_a_file_that_may_not_be_read_is_missing_by_itself():
    with reachable_root() as root:
        folder = add_device(root, "mlx5_0", IB_PATH, ports={"1": NDR_PORT})
        (folder / "ports/1/counters/link_downed").chmod(0o000)
        (folder / "ports/1/hw_counters").chmod(0o000)
        (folder / "fw_ver").chmod(0o000)
        with as_nobody():
            device = only_device(root)
        shown = root / "sys/class/infiniband/mlx5_0"
        assert device.firmware == Missing(Why.NOT_PERMITTED, str(shown / "fw_ver"))
        (port,) = device.ports
        counters = {counter.name: counter.value for counter in port.counters}
        assert counters["link_downed"] == Missing(Why.NOT_PERMITTED, str(shown / "ports/1/counters/link_downed"))
        assert counters["symbol_error"] == 17
        assert port.hw_counters == Missing(Why.NOT_PERMITTED, str(shown / "ports/1/hw_counters"))


@given(st.text(max_size=40))
def test_no_text_breaks_a_parser(text):
    for parse in (infiniband._rate, infiniband._state, infiniband._lid, infiniband._guid, infiniband._word, infiniband._counter_value):
        with suppress(ValueError):
            parse(text)


def test_this_machine():
    assert isinstance(infiniband.read_gpudirect().has_kernel_5_12, bool)
    found = infiniband.read()
    if isinstance(found.devices, Missing):
        assert found.devices.missing in {Why.NOT_THERE, Why.NOT_PERMITTED}
    else:
        assert all(device.name for device in found.devices)


OPEN = """NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (dvs-builder@U22-I3-H05-01-2)  Tue May 19 2026
GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2~24.04.1)"""
CLOSED = """NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023
GCC version:  gcc version 12.3.0 (Ubuntu 12.3.0-1ubuntu1~22.04)"""


def node(root, *, version=OPEN, kernel="6.8.0-45-generic", modules=("nvidia", "nvidia_peermem")):
    fill(root, {"proc/driver/nvidia/version": version, "proc/sys/kernel/osrelease": kernel})
    for module in ("kernel", *modules):
        (root / "sys/module" / module).mkdir(parents=True)
    return infiniband.read_gpudirect(root)


@pytest.mark.parametrize(
    ("changes", "field", "expected"),
    [
        ({}, "peermem_module", "nvidia_peermem"),
        ({"modules": ("nv_peer_mem",)}, "peermem_module", "nv_peer_mem"),
        ({"modules": ("nvidia",)}, "peermem_module", Why.NOT_THERE),
        ({}, "has_open_kernel_modules", True),
        ({"version": CLOSED}, "has_open_kernel_modules", False),
        *(
            ({"version": version}, "has_open_kernel_modules", Why.UNREADABLE)
            for version in ("", "NVRM version: something else", "Open Kernel Module")
        ),
        *(({"kernel": release}, "has_kernel_5_12", True) for release in ("5.12.0", "6.18.44", "10.0-rc1", "6.8.0-45-generic")),
        *(({"kernel": release}, "has_kernel_5_12", False) for release in ("5.11.22-generic", "4.18.0-553.el8_10.x86_64")),
        *(({"kernel": release}, "has_kernel_5_12", Why.UNREADABLE) for release in ("", "six", "6", "v5.15.0")),
    ],
)
def test_a_fact_of_gpudirect(changes, field, expected, tmp_path):
    found = getattr(node(tmp_path, **changes), field)
    assert (found.missing if isinstance(found, Missing) else found) == expected


def test_a_node_without_the_driver(tmp_path):
    assert {answer.missing for answer in vars(infiniband.read_gpudirect(tmp_path)).values()} == {Why.NOT_THERE}


def test_where_no_place_of_a_gpu_is_known_no_device_is_chosen(tmp_path):
    """As in a container without /sys/bus: one of these ports serves storage, and may rightly be down."""
    add_device(tmp_path, "mlx5_0", IB_PATH, ports={"1": NDR_PORT})
    add_device(tmp_path, "mlx5_9", ROCE_PATH, ports={"1": DOWN_PORT})
    near = fabric_reader.read([Gpu(index=0, name="", pci_bus_id="00000000:19:00.0")], tmp_path).devices
    assert near is None
    globs = infiniband.globs_of_job(infiniband.NEAREST, near)
    used = infiniband_health.chosen(infiniband.read(tmp_path), globs)
    assert {value for _, value, *_ in infiniband_health.ports(used)} == {infiniband.NEAREST_UNKNOWN}
    assert set(counters.read_ports(globs, tmp_path).values()) == {infiniband.NEAREST_UNKNOWN}
    assert infiniband.globs_of_job("mlx5_0", near) == "mlx5_0"
