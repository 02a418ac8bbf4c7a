"""Kernel, distribution, clock: and nothing of the kernel's command line that could be a secret."""

import pytest
from host_root import fill, x86_node

from gpu_acceptance.inventory import system
from gpu_acceptance.inventory.answer import Missing, Why
from gpu_acceptance.inventory.system import System


@pytest.fixture
def node(tmp_path):
    return x86_node(tmp_path)


def parameters(root, command_line):
    return system.read(fill(root, {"proc/cmdline": command_line})).kernel_parameters


def test_a_server(node):
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


@pytest.mark.parametrize(
    "kept",
    [
        "intel_iommu=on",
        "iommu.passthrough=1",
        "pci=realloc=off,nocrs",
        "numa_balancing=disable",
        "mitigations=off",
        "default_hugepagesz=1G",
        "transparent-hugepage=never",  # the kernel takes both - and _
        "nvidia.NVreg_EnableGpuFirmware=0",
        "nvidia_uvm.uvm_disable_hmm=1",
        "nosmt",
    ],
)
def test_a_parameter_that_changes_results_is_kept(node, kept):
    assert parameters(node, f"root=/dev/sda1 {kept} quiet\n") == (kept,)


@pytest.mark.parametrize(
    "dropped",
    [
        "ip=192.0.2.7:::255.255.255.0:node-03",
        "password=pci=hunter2",
        "my_iommu=on",
        'note="a numa=off b"',  # one parameter, whatever it holds
        "init=/bin/sh -- mitigations=off",  # for the first process, not for the kernel
    ],
)
def test_no_other_parameter_is_kept(node, dropped):
    assert parameters(node, dropped) == ()


def test_quotes_are_read_as_the_kernel_reads_them(node):
    assert parameters(node, 'nvidia.NVreg_RegistryDwords="A=1; B=2" "pci=x y" numa=off') == (
        "nvidia.NVreg_RegistryDwords=A=1; B=2",
        "pci=x y",
        "numa=off",
    )


def test_a_quote_that_never_ends(node):
    assert parameters(node, 'numa=off pci="x y') == ("numa=off", "pci=x y")


def test_of_a_distribution_with_a_short_version_that(node):
    fill(node, {"etc/os-release": "NAME='Alpine Linux'\nVERSION_ID=3.20.1\n"})
    assert (system.read(node).os_name, system.read(node).os_version) == ("Alpine Linux", "3.20.1")


def test_a_distribution_without_a_version(node):
    fill(node, {"etc/os-release": 'NAME="Arch Linux"\n'})
    assert system.read(node).os_version == Missing(Why.NOT_THERE, f"{node / 'etc/os-release'} has no VERSION_ID")


def test_the_vendors_own_file_where_etc_has_none(node):
    (node / "etc/os-release").unlink()
    fill(node, {"usr/lib/os-release": 'NAME="Fedora Linux"\n'})
    assert system.read(node).os_name == "Fedora Linux"


@pytest.mark.parametrize("value", ['"Ubuntu', "Ubuntu Linux", '""', "'\x1b[2J'"])
def test_a_name_that_no_shell_would_read_is_none(node, value):
    fill(node, {"etc/os-release": f"NAME={value}\n"})
    assert system.read(node).os_name.missing is Why.UNREADABLE


def test_a_machine_that_says_nothing(tmp_path):
    found = system.read(tmp_path)
    assert {answer.missing for answer in vars(found).values()} == {Why.NOT_THERE}


def test_an_uptime_that_is_none(node):
    assert system.read(fill(node, {"proc/uptime": "soon"})).uptime_s == Missing(Why.UNREADABLE, f"{node / 'proc/uptime'} says 'soon'")
