"""What a node says of GPUDirect RDMA: each part for itself, and none of them a proof."""

import pytest
from inventory.trees import fill

from gpu_acceptance.inventory import infiniband
from gpu_acceptance.inventory.answer import Missing, Why

OPEN = """NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (dvs-builder@U22-I3-H05-01-2)  Tue May 19 2026
GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2~24.04.1)"""
CLOSED = """NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023
GCC version:  gcc version 12.3.0 (Ubuntu 12.3.0-1ubuntu1~22.04)"""


def node(root, *, version=OPEN, kernel="6.8.0-45-generic", modules=("nvidia", "nvidia_peermem")):
    fill(root, {"proc/driver/nvidia/version": version, "proc/sys/kernel/osrelease": kernel})
    for module in ("kernel", *modules):
        (root / "sys/module" / module).mkdir(parents=True)
    return infiniband.read_gpudirect(root)


def test_both_ways_are_there(tmp_path):
    found = node(tmp_path)
    assert (found.peermem_module, found.has_open_kernel_modules, found.has_kernel_5_12) == ("nvidia_peermem", True, True)


def test_the_older_module_counts_as_well(tmp_path):
    assert node(tmp_path, modules=("nv_peer_mem",)).peermem_module == "nv_peer_mem"


def test_no_module_is_no_module(tmp_path):
    detail = f"neither nvidia_peermem nor nv_peer_mem in {tmp_path / 'sys/module'}"
    assert node(tmp_path, modules=("nvidia",)).peermem_module == Missing(Why.NOT_THERE, detail)


def test_closed_kernel_modules(tmp_path):
    assert node(tmp_path, version=CLOSED).has_open_kernel_modules is False


@pytest.mark.parametrize("version", ["", "NVRM version: something else", "Open Kernel Module"])
def test_a_driver_that_says_neither_is_unreadable(version, tmp_path):
    assert node(tmp_path, version=version).has_open_kernel_modules.missing == Why.UNREADABLE


@pytest.mark.parametrize(
    ("release", "has_it"),
    [("5.12.0", True), ("5.11.22-generic", False), ("4.18.0-553.el8_10.x86_64", False), ("6.18.44", True), ("10.0-rc1", True)],
)
def test_the_kernels_version(release, has_it, tmp_path):
    assert node(tmp_path, kernel=release).has_kernel_5_12 is has_it


@pytest.mark.parametrize("release", ["", "six", "6", "v5.15.0"])
def test_a_release_that_is_none_is_unreadable(release, tmp_path):
    assert node(tmp_path, kernel=release).has_kernel_5_12.missing == Why.UNREADABLE


def test_a_node_without_the_driver(tmp_path):
    found = infiniband.read_gpudirect(tmp_path)
    assert {answer.missing for answer in (found.peermem_module, found.has_open_kernel_modules, found.has_kernel_5_12)} == {Why.NOT_THERE}


def test_this_machine():
    assert isinstance(infiniband.read_gpudirect().has_kernel_5_12, bool)
