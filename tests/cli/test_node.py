"""One node on one screen: what it says of a whole server, of one that says nothing, and of one that lies."""

import copy

import pytest
from snapshots import NUM_GPUS, changed, healthy_h200, leaves, snapshot_of

from gpu_acceptance.cli.devices import WIDTH
from gpu_acceptance.cli.node import inventory_lines

ONE_SCREEN = 48
MOST_COLUMNS = 160
NOT_PERMITTED = {"missing": "not permitted", "detail": "nvml: Insufficient Permissions"}
HOSTILE = '\x1b[31m</td>\n"; \u202e\N{NO-BREAK SPACE}' + "x" * 300


def lines_of(plain):
    return inventory_lines(snapshot_of(plain))


def text_of(plain):
    return "\n".join(lines_of(plain))


def bus_id(number):
    return f"00000000:{0x18 + number:02X}:00.0"


def rdma_device(number):
    """A ConnectX-7 on the switch of the GPU with its number."""
    port = {
        "number": 1,
        "link_layer": "InfiniBand",
        "state": "ACTIVE",
        "phys_state": "LinkUp",
        "rate": {"gbit_per_s": 400.0, "width": "4X", "speed": "NDR"},
        "lid": 42,
        "sm_lid": 1,
        "gid_types": ["IB/RoCE v1"],
        "counters": [],
        "hw_counters": [],
    }
    return {
        "name": f"mlx5_{number}",
        "hca_type": "MT4129",
        "board_id": "MT_0000000838",
        "firmware": "28.39.2048",
        "node_guid": "a088:c203:0016:8f42",
        "sys_image_guid": "a088:c203:0016:8f42",
        "pci_address": f"0000:{0x58 + number:02x}:00.0",
        "pci_path": f"{switch(number)}/0000:{0x78 + number:02x}:02.0/0000:{0x58 + number:02x}:00.0",
        "numa_node": number // 4,
        "netdevs": [{"name": f"ib{number}", "mtu_bytes": 4092}],
        "ports": [port],
        "hw_counters": [],
    }


def switch(number):
    return f"pci0000:{0x10 + number:02x}/0000:{0x10 + number:02x}:01.0/0000:{0x78 + number:02x}:00.0"


def xid(number, gpu, at_s, text=""):
    missing = {"missing": "not there", "detail": "the line names none"}
    return {"number": number, "pci_bus_id": bus_id(gpu), "at_s": at_s, "pid": missing, "process": missing, "text": text}


def kernel_log(*xids):
    reach = {
        "first_sequence": 0,
        "first_s": 0.0,
        "last_s": 7200.5,
        "num_records": 2323,
        "num_lost": 0,
        "num_unreadable": 0,
        "is_cut_short": False,
        "is_since_boot": True,
    }
    none = {"sxids": [], "lost_gpus": [], "pcie_errors": [], "host_errors": [], "unreadable": [], "num_left_out": 0}
    return {"reach": reach, "xids": list(xids), **none}


def server():
    """The healthy node with what a folder of files does not bring: its PCI bus, 8 NICs and a kernel log."""
    plain = healthy_h200()
    node = plain["node"]
    for number, gpu in enumerate(node["gpus"]["gpus"]):
        gpu["pci_bus_id"] = bus_id(number)
    node["bus"]["gpus"] = [f"0000:{0x18 + number:02x}:00.0" for number in range(NUM_GPUS)]
    node["gpu_places"] = [
        {"pci_bus_id": bus_id(number), "pci_path": f"{switch(number)}/0000:{0x78 + number:02x}:01.0/x", "numa_node": number // 4}
        for number in range(NUM_GPUS)
    ]
    node["infiniband"]["devices"] = [rdma_device(number) for number in range(NUM_GPUS)]
    node["kernel_log"] = kernel_log()
    return plain


SERVER = server()


def test_a_whole_server_fits_on_one_screen():
    lines = lines_of(SERVER)
    assert len(lines) <= ONE_SCREEN
    assert max(map(len, lines)) <= WIDTH
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == [
        *("node", "host", "system", "CPU", "memory", "GPUs", "peers", "topology", "RDMA", "mounts", "allowed", "log"),
    ]
    assert "healthy" not in "\n".join(lines)


@pytest.mark.parametrize(
    "line",
    [
        "node      node-07, as of 2026-11-20T12:00:00+00:00",
        "host      vendor NVIDIA, product DGXH200, serial 1660224000123, chassis serial 1660224000124, BIOS 1.05.07 of 05/15/2024",
        "system    Ubuntu 22.04.5 LTS (Jammy Jellyfish), kernel 6.8.0-45-generic, booted 2026-11-20 06:48:44 UTC",
        "          hypervisor none, container none, clock source tsc of tsc hpet acpi_pm, kernel parameters iommu=pt",
        "CPU       Intel(R) Xeon(R) Platinum 8480C, sockets 2, cores 4, threads 8, SMT on",
        "          governor performance (8 CPUs), up to 3800 MHz; CPUs isolated none, offline none, for this process 0-3",
        "          NUMA 0: 1007.5 GiB, CPUs 0-1,4-5; 1: 1007.9 GiB, CPUs 2-3,6-7",
        "memory    2015.4 GiB, available 1957.2 GiB, swap 7.9 GiB; huge pages 64 of 2 MiB (60 free), 0 of 1 GiB (0 free);",
        "            transparent huge pages madvise; NUMA balancing off",
        "GPUs      8 in NVML, 8 on the PCI bus; driver 580.159.04, CUDA 13.0, VBIOS 96.00.A5.00.1A",
        "  GPU  name         serial         PCI bus id        memory      ECC  MIG  power limit  temp  NVLinks   PCIe gen  procs",
        "  3    NVIDIA H200  1653924100004  00000000:1B:00.0  143771 MiB  on   off  700 W        34 C  18 of 18  5 x16     0",
        "peers     read, write and nvlink ok in all 56 pairs",
        "  device  port  type    link        state          rate         firmware    NUMA  PCI address   interfaces",
        "  mlx5_7  1     MT4129  InfiniBand  ACTIVE LinkUp  400 Gb/s 4X  28.39.2048  1     0000:5f:00.0  ib7",
        "allowed   locked memory unlimited, open files 1024 (up to 1048576), processes 8254567, stack 8 MiB (up to unlimited),",
        "log       kernel log from 2026-11-20 06:48:44 UTC to 2026-11-20 08:48:44 UTC: all since boot",
        "          XIDs 0, SXids 0, lost GPUs 0, PCIe errors 0, errors of the host 0, in no known form 0, not listed 0",
    ],
)
def test_what_it_says(line):
    assert any(said.startswith(line) for said in lines_of(SERVER))


def words_of(plain):
    """As one paragraph, wherever the lines were broken."""
    return " ".join(text_of(plain).split())


def test_each_gpu_has_its_nearest_rdma_device():
    said = words_of(SERVER)
    assert "topology NUMA node and nearest RDMA device of GPU 0: 0, mlx5_0 PIX; GPU 1: 0, mlx5_1 PIX; GPU 2" in said
    assert "GPU 7: 1, mlx5_7 PIX RDMA" in said


def test_gpus_that_sit_alike_share_a_line():
    plain = copy.deepcopy(SERVER)
    plain["node"]["infiniband"]["devices"] = [rdma_device(0)]
    said = words_of(plain)
    assert "of GPU 0: 0, mlx5_0 PIX; GPU 1-3: 0, mlx5_0 NODE; GPU 4-7: 1, mlx5_0 SYS RDMA" in said


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("node.infiniband.devices", [], "of GPU 0-3: 0, none; GPU 4-7: 1, none RDMA 0 devices;"),
        ("node.infiniband.devices", NOT_PERMITTED, "of GPU 0-3: 0, ? (not permitted);"),
        ("node.gpu_places", [], "of GPU 0-7: ? (not there), ? (not there) RDMA"),
        ("node.gpu_places.2.pci_path", NOT_PERMITTED, "GPU 2: 0, ? (not permitted);"),
        ("node.gpus.gpus.2.pci_bus_id", NOT_PERMITTED, "GPU 2: ? (not permitted), ? (not permitted);"),
        ("node.virtualization.hypervisor", "kvm", "mlx5_7 PIX in a virtual machine: as its hypervisor shows it RDMA"),
        ("node.infiniband.devices.0.pci_path", NOT_PERMITTED, "GPU 0: 0, ? (not permitted);"),
    ],
)
def test_what_is_not_known_of_the_topology(path, value, says):
    assert says in words_of(changed(SERVER, path, value))


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("node.gpus.gpus.3.nvlinks.5.is_active", False, "700 W 34 C 17 of 18 5 x16 0"),
        ("node.gpus.gpus.3.nvlinks.5.is_active", False, "NVLinks not up: GPU 3: 5 peers"),
        ("node.gpus.gpus.3.nvlinks.5.is_active", NOT_PERMITTED, "? (not permitted: nvml: Insufficient Permissions): NVLinks (GPU 3) peers"),
        ("node.gpus.gpus.3.pcie.generation", 1, "18 of 18 1 x16 of 5 x16 0"),
        ("node.gpus.gpus.3.pcie.max_width", NOT_PERMITTED, "1653924100004 00000000:1B:00.0 143771 MiB on off 700 W 34 C 18 of 18 5 x16 0"),
        ("node.gpus.gpus.3.mig_is_on", True, "143771 MiB on on 700 W"),
        ("node.gpus.gpus.3.vbios", "96.00.74.00.01", "driver 580.159.04, CUDA 13.0 GPU name"),
        ("node.gpus.gpus.3.vbios", "96.00.74.00.01", "18 of 18 5 x16 0 96.00.74.00.01"),
        ("node.gpus.gpus.3.processes", [{"pid": 4711, "used_bytes": 2**30}], "processes: GPU 3 pid 4711 1 GiB peers"),
        (
            "node.gpus.gpus.3.processes",
            [{"pid": pid, "used_bytes": NOT_PERMITTED} for pid in range(10)],
            "GPU 3 pid 7 ? (not permitted), 2 more",
        ),
        ("node.gpus.gpus.3.nvlinks", NOT_PERMITTED, "? (not permitted: nvml: Insufficient Permissions): NVLinks (GPU 3)"),
        ("node.bus.unreadable", ["0000:18:00.0"], "8 in NVML, 8 on the PCI bus, 1 device unreadable;"),
        ("node.gpus.peers.26.nvlink", "topology not supported", "nvlink: ok (55 pairs); topology not supported (GPU 3 to 6)"),
        ("node.gpus.peers.26.read", NOT_PERMITTED, "read: ok (55 pairs); ? (not permitted) (GPU 3 to 6) write: ok (all 56 pairs)"),
        ("node.gpus.peers", [], "peers no pair of GPUs"),
        ("node.gpus.gpus", [], "GPUs 0 in NVML, 8 on the PCI bus; driver 580.159.04, CUDA 13.0 peers"),
        (
            "node.gpus.gpus",
            NOT_PERMITTED,
            "GPUs ? (not permitted: nvml: Insufficient Permissions); 8 on the PCI bus peers ? (not permitted)",
        ),
    ],
)
def test_what_differs_on_one_gpu(path, value, says):
    assert says in words_of(changed(SERVER, path, value))


def test_a_gpu_that_fell_off_the_bus_is_a_line_of_question_marks():
    plain = copy.deepcopy(SERVER)
    lost = {"missing": "unreadable", "detail": "nvmlDeviceGetHandleByIndex: GPU is lost"}
    for path in leaves(plain["node"]["gpus"]["gpus"][3]):
        if path != "index" and not path.startswith("nvlinks."):
            plain = changed(plain, f"node.gpus.gpus.3.{path}", lost)
    plain = changed(plain, "node.gpus.gpus.3.nvlinks", lost)
    said = words_of(plain)
    assert " 3 ? ? ? ? ? ? ? ? ? ? ? ? 4 NVIDIA" in said
    assert "? (unreadable: nvmlDeviceGetHandleByIndex: GPU is lost): name, serial, PCI bus id, memory, ECC, MIG, power limit," in said
    assert "procs, VBIOS (GPU 3)" in said


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("ports.0.state", "DOWN", "mlx5_2 1 MT4129 InfiniBand DOWN LinkUp 400 Gb/s 4X"),
        ("ports.0.phys_state", NOT_PERMITTED, "? (not permitted: nvml: Insufficient Permissions): state (mlx5_2 port 1)"),
        ("ports", [], "? (not there: the device has no port): port, link, state, rate (mlx5_2)"),
        ("ports", NOT_PERMITTED, "? (not permitted: nvml: Insufficient Permissions): port, link, state, rate (mlx5_2)"),
        ("netdevs", [], "0000:5a:00.0 none mlx5_3"),
    ],
)
def test_what_differs_on_one_rdma_device(path, value, says):
    assert says in words_of(changed(SERVER, f"node.infiniband.devices.2.{path}", value))


XIDS = (xid(13, 1, 60.0), xid(31, 1, 70.0), xid(43, 1, 71.0), xid(63, 2, 80.0), xid(79, 3, 90.0), xid(79, 3, 3690.0), xid(48, 3, 91.0))


def test_the_xids_with_the_heaviest_remedy_come_first():
    said = words_of(changed(SERVER, "node.kernel_log", kernel_log(*XIDS)))
    assert "XIDs 7, SXids 0," in said
    first = "XID 79 on GPU 3, 2 times, last at 2026-11-20 07:50:14 UTC: GPU has fallen off the bus; to do: reboot the node"
    second = "XID 63 on GPU 2, 1 time, last at 2026-11-20 06:50:04 UTC: row remapping or page retirement; to do: reset the GPU"
    assert said.index(first) < said.index(second) < said.index("XID 48 on GPU 3") < said.index("XID 13 on GPU 1")
    assert (
        "graphics engine exception (mostly the application's own mistake); to do: restart the application and XID 31: 1, XID 43: 1" in said
    )


def test_an_xid_of_a_gpu_that_nvml_does_not_show_is_named_by_its_address():
    plain = changed(
        SERVER, "node.kernel_log", kernel_log(xid(154, 9, 5.0, "GPU recovery action changed from 0x0 (None) to 0x2 (OS Reboot)"))
    )
    plain["node"]["system"]["boot_time_s"] = NOT_PERMITTED
    said = words_of(plain)
    assert f"XID 154 on {bus_id(9)}, 1 time, last at 5 s after boot: GPU recovery action changed; to do: reboot the node" in said
    assert "kernel log from 0 s after boot to 7200.5 s after boot: all since boot" in said


def test_what_else_the_log_holds_is_counted():
    log = kernel_log()
    error = {"pci_bus_id": bus_id(0), "at_s": 1.0, "text": ""}
    log["pcie_errors"] = [{**error, "severity": severity} for severity in ("corrected", "corrected", NOT_PERMITTED)]
    sxid = {"switch": "nvidia-nvswitch0", "pci_bus_id": bus_id(9), "at_s": 1.0, "is_fatal": True, "text": ""}
    log["sxids"] = [{**sxid, "number": 20034}]
    log["lost_gpus"] = [{"pci_bus_id": bus_id(3), "at_s": 2.0}]
    log["num_left_out"] = 17
    said = words_of(changed(SERVER, "node.kernel_log", log))
    assert f"XIDs 0, SXids 1 (20034: 1), lost GPUs {bus_id(3)}, PCIe errors 3 (corrected: 2, ? (not permitted): 1)," in said
    assert "not listed 17" in said


@pytest.mark.parametrize(
    ("reach", "says"),
    [
        ({"first_sequence": 3535}, "UTC: not all since boot (3535 overwritten before it) XIDs"),
        ({"num_lost": 1, "num_unreadable": 2}, "UTC: not all since boot (1 lost while it was read, 2 unreadable) XIDs"),
        ({"is_cut_short": True}, "UTC: not all since boot (not read to its end) XIDs"),
        ({}, "UTC: not all since boot XIDs"),
    ],
)
def test_a_log_that_does_not_begin_at_boot_says_so(reach, says):
    plain = copy.deepcopy(SERVER)
    plain["node"]["kernel_log"]["reach"] |= {**reach, "is_since_boot": False}
    assert says in words_of(plain)


def test_mounts_beyond_the_eighth_are_counted_and_those_that_a_job_works_on_come_first():
    plain = copy.deepcopy(SERVER)
    mounts = plain["node"]["mounts"]["mounts"]
    plain["node"]["mounts"]["mounts"] = [{**mounts[-1], "mount_point": f"/data/{number}"} for number in range(10)] + mounts
    lines = lines_of(plain)
    first = lines.index("mounts") + 2
    assert [line.split()[0] for line in lines[first : first + 8]] == ["/dev/shm", "/", "/raid", *(f"/data/{number}" for number in range(5))]
    assert "          7 more" in lines


def test_a_mount_in_no_known_form_is_shown():
    plain = copy.deepcopy(SERVER)
    plain["node"]["mounts"]["odd_lines"] = ["70 27 0:60 / /data rw - nfs4\x1b[2J"]
    assert "a mount in no known form: 70 27 0:60 / /data rw - nfs4\\x1b[2J" in words_of(plain)
