"""The host: name, kernel, distribution, clock, memory and firmware. A secret of the kernel's command line is never kept."""

import shutil
import socket

import pytest
from host_root import DMI, as_nobody, fill, reachable_root

from gpu_acceptance.inventory import system
from gpu_acceptance.inventory.answer import Missing, Why
from gpu_acceptance.inventory.system import Dmi, HugePages, Memory, System

FIRMWARE = "sys/class/dmi/id"
POOLS = "sys/kernel/mm/hugepages"


def parameters(root, command_line):
    return system.read(fill(root, {"proc/cmdline": command_line})).kernel_parameters


def test_a_server(node):
    assert system.read_dmi(node) == Dmi(**DMI)
    assert system.read(node) == System(
        kernel_release="6.8.0-45-generic",
        kernel_parameters=("iommu=pt", "nvidia-drm.modeset=0"),
        os_name="Ubuntu",
        os_version="22.04.5 LTS (Jammy Jellyfish)",
        boot_time_s=1795157324,
        uptime_s=350735.47,
        clock_source="tsc",
        available_clock_sources=("tsc", "hpet", "acpi_pm"),
    )
    assert system.read_memory(node) == Memory(
        total_bytes=2113385208 * 1024,
        available_bytes=2052304364 * 1024,
        swap_bytes=8388604 * 1024,
        hugepages=(HugePages(2 * 2**20, 64, 60), HugePages(2**30, 0, 0)),
        transparent_hugepages="madvise",
        numa_balancing_mode=0,
    )


@pytest.mark.parametrize("read", [system.read, system.read_dmi])
def test_a_machine_without_these_files(tmp_path, read):
    assert {answer.missing for answer in vars(read(tmp_path)).values()} == {Why.NOT_THERE}


@pytest.mark.parametrize(
    "kept",
    [
        *("intel_iommu=on", "iommu.passthrough=1", "pci=realloc=off,nocrs", "numa_balancing=disable", "mitigations=off", "nosmt"),
        "transparent-hugepage=never",  # the kernel takes both - and _
        *("default_hugepagesz=1G", "nvidia.NVreg_EnableGpuFirmware=0", "nvidia_uvm.uvm_disable_hmm=1"),
    ],
)
def test_a_parameter_that_changes_results_is_kept(node, kept):
    assert parameters(node, f"root=/dev/sda1 {kept} quiet\n") == (kept,)


@pytest.mark.parametrize(
    ("command_line", "kept"),
    [
        ("ip=192.0.2.7:::255.255.255.0:node-03", ()),
        ("password=pci=hunter2", ()),
        ("my_iommu=on", ()),
        ('note="a numa=off b"', ()),  # one parameter with a quoted value
        ("init=/bin/sh -- mitigations=off", ()),  # for the first process, not for the kernel
        (
            'nvidia.NVreg_RegistryDwords="A=1; B=2" "pci=x y" numa=off',
            ("nvidia.NVreg_RegistryDwords=A=1; B=2", "pci=x y", "numa=off"),
        ),
        ('numa=off pci="x y', ("numa=off", "pci=x y")),
    ],
)
def test_other_parameters_are_dropped_and_quotes_are_the_kernels(node, command_line, kept):
    assert parameters(node, command_line) == kept


@pytest.mark.parametrize(
    ("release", "name", "version"),
    [
        ("NAME='Alpine Linux'\nVERSION_ID=3.20.1\n", "Alpine Linux", "3.20.1"),
        ('NAME="Arch Linux"\n', "Arch Linux", Why.NOT_THERE),
        *((f"NAME={value}\n", Why.UNREADABLE, Why.NOT_THERE) for value in ('"Ubuntu', "Ubuntu Linux", '""', "'\x1b[2J'")),
    ],
)
def test_a_distribution(node, release, name, version):
    fill(node, {"etc/os-release": release})
    found = system.read(node)
    assert getattr(found.os_name, "missing", found.os_name) == name
    assert getattr(found.os_version, "missing", found.os_version) == version


def test_the_vendors_own_file_where_etc_has_none(node):
    (node / "etc/os-release").unlink()
    fill(node, {"usr/lib/os-release": 'NAME="Fedora Linux"\n'})
    assert system.read(node).os_name == "Fedora Linux"


def test_an_uptime_of_another_form(node):
    assert system.read(fill(node, {"proc/uptime": "soon"})).uptime_s == Missing(Why.UNREADABLE, f"{node / 'proc/uptime'} says 'soon'")


def test_a_kernel_without_huge_pages_and_numa(node):
    shutil.rmtree(node / "sys/kernel")
    (node / "proc/sys/kernel/numa_balancing").unlink()
    found = system.read_memory(node)
    assert found.hugepages == Missing(Why.NOT_THERE, str(node / POOLS))
    assert (found.transparent_hugepages.missing, found.numa_balancing_mode.missing) == (Why.NOT_THERE, Why.NOT_THERE)


def test_a_pool_that_cannot_be_read_is_kept(node):
    (node / POOLS / "hugepages-2048kB/free_hugepages").unlink()
    found = system.read_memory(node).hugepages[0]
    assert (found.page_bytes, found.num_pages, found.num_free.missing) == (2 * 2**20, 64, Why.NOT_THERE)
    (node / POOLS / "hugepages-big").mkdir()
    assert system.read_memory(node).hugepages == Missing(Why.UNREADABLE, f"{node / POOLS} holds 'hugepages-big'")


def test_an_old_kernel_does_not_estimate_available_memory(node):
    fill(node, {"proc/meminfo": "MemTotal:       2113385208 kB\nSwapTotal:             0 kB\n"})
    found = system.read_memory(node)
    assert found.available_bytes == Missing(Why.NOT_THERE, f"{node / 'proc/meminfo'} has no MemAvailable")
    assert found.swap_bytes == 0


def test_a_serial_that_only_root_may_read():
    with reachable_root() as root:
        fill(root, {f"{FIRMWARE}/{field}": value for field, value in DMI.items()})
        serial = root / FIRMWARE / "product_serial"
        serial.chmod(0o400 if serial.stat().st_uid == 0 else 0)
        with as_nobody():
            found = system.read_dmi(root)
    assert found.product_serial == Missing(Why.NOT_PERMITTED, str(serial))
    assert found.chassis_serial == DMI["chassis_serial"]


def test_texts_of_the_firmware_that_are_blank_or_not_printable(tmp_path):
    texts = {"board_name": "  \n", "sys_vendor": "To be filled by O.E.M.\n", "product_name": "\x1b[2JDGX\n"}
    found = system.read_dmi(fill(tmp_path, {f"{FIRMWARE}/{name}": text for name, text in texts.items()}))
    assert found.board_name == Missing(Why.NOT_THERE, f"{tmp_path / FIRMWARE / 'board_name'} is blank")
    assert (found.sys_vendor, found.product_name.missing) == ("To be filled by O.E.M.", Why.UNREADABLE)


@pytest.mark.parametrize(
    ("variables", "name"),
    [
        ({"KUBERNETES_SERVICE_HOST": "192.0.2.1", "NODE_NAME": "gpu-07.example"}, "gpu-07.example"),
        ({"KUBERNETES_SERVICE_HOST": "192.0.2.1", "NODE_NAME": "x" * 300}, "x" * 253),
        ({"KUBERNETES_SERVICE_HOST": "192.0.2.1", "NODE_NAME": ""}, socket.gethostname()),
        ({"NODE_NAME": "gpu-07"}, socket.gethostname()),  # of other software
    ],
)
def test_a_pod_has_the_name_of_its_node(variables, name):
    assert system.hostname(variables) == name


def test_the_chassis_serial(tmp_path):
    fill(tmp_path, {"class/dmi/id/product_serial": "S510219X4\n", "folder/class/dmi/id/product_serial/x": ""})
    assert system.chassis_serial(tmp_path) == "S510219X4"
    assert system.chassis_serial(tmp_path / "folder") == system.chassis_serial(tmp_path / "nowhere") == ""


@pytest.mark.parametrize(
    ("hosts", "address"),
    [
        ("127.0.0.1 localhost\n127.0.1.1\tNAME.example NAME  # by the installer\n", "127.0.1.1"),
        ("::1 localhost NAME\n", "::1"),
        ("127.0.1.1 NAME\n192.0.2.7 NAME\n", ""),
        ("127.0.0.1 localhost\n192.0.2.7 NAME\n# 127.0.1.1 NAME\n127.0.1.1 NAMES\n", ""),
        ("", ""),
    ],
)
def test_a_node_whose_own_name_is_a_loopback_address(tmp_path, hosts, address):
    file = tmp_path / "hosts"
    file.write_text(hosts.replace("NAME", socket.gethostname()))
    assert system.own_loopback_address(file) == address
    assert system.own_loopback_address(tmp_path / "nowhere") == ""


@pytest.mark.parametrize(
    "name",
    [
        *("CUBLAS_WORKSPACE_CONFIG", "CUBLASLT_LOG_LEVEL", "CUDNN_LOGLEVEL_DBG", "GOMP_CPU_AFFINITY", "KMP_AFFINITY", "NCCL_ALGO"),
        *("NVIDIA_TF32_OVERRIDE", "TORCHINDUCTOR_MAX_AUTOTUNE", "UCX_TLS", "FI_PROVIDER", "SHARP_COLL_ENABLE_SAT", "MKL_NUM_THREADS"),
        *("CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH"),
    ],
)
def test_only_variables_that_change_results_are_kept(name, monkeypatch):
    others = {"PATH": "/bin", "MY_NCCL_ALGO": "Tree", "NVIDIA_REQUIRE_CUDA": "cuda>=13.0", "KUBERNETES_PORT": "tcp://192.0.2.1:443"}
    assert system.environment({**others, name: "1"}) == {name: "1"}
    monkeypatch.setenv(name, "1")
    assert system.environment()[name] == "1"


def test_long_and_foreign_values_fit_a_record():
    found = system.environment({"NCCL_A": "x" * 5000, "NCCL_B": "\udcff"})
    assert len(found["NCCL_A"]) <= system.MAX_VALUE
    assert found["NCCL_B"].encode("utf-8")
