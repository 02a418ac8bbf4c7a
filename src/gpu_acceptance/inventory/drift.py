"""What must be alike on all nodes of a job, in words: a node that is not like its neighbours is where a handover goes wrong.

An answer that is missing is a word too: that a value cannot be read on one node alone is a difference.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping

from gpu_acceptance.inventory.allowances import Allowance
from gpu_acceptance.inventory.answer import Answer, Missing, T
from gpu_acceptance.inventory.gpu import GpuReading
from gpu_acceptance.inventory.infiniband import RdmaDevice
from gpu_acceptance.inventory.node import NodeReading

Fact = tuple[str, str]  # name, what is the case

_OF_A_RANK = {"CUDA_VISIBLE_DEVICES"}
_MOST_TEXT = 900  # characters: what a figure takes, and a message shows


def facts(node: NodeReading, variables: Mapping[str, str]) -> Iterator[Fact]:
    """`variables`: the environment variables that change results, by name."""
    yield from _machine(node)
    yield from _software(node)
    yield from _allowed(node)
    yield "gpus", _all_alike(node.gpus.gpus, _gpu)
    yield "rdma_devices", _all_alike(node.infiniband.devices, _rdma_device)
    yield "variables", _variables(variables)


def _machine(node: NodeReading) -> Iterator[Fact]:
    yield "product", f"{_word(node.dmi.sys_vendor)}, {_word(node.dmi.product_name)}"
    yield "bios", f"{_word(node.dmi.bios_version)} of {_word(node.dmi.bios_date)}"
    sockets, cores, threads = (_word(number) for number in (node.cpu.num_sockets, node.cpu.num_cores, node.cpu.num_threads))
    yield "cpu", f"{sockets} x {_word(node.cpu.model)}, {cores} cores, {threads} threads"
    yield "governor", _words(node.cpu.scaling_governors, lambda one: one.name)
    yield "numa", _words(node.cpu.numa_nodes, lambda one: f"{one.number}: CPUs {_word(one.cpu_list)}")
    yield "memory", _gibibytes(node.memory.total_bytes)
    yield "virtualization", f"hypervisor {_word(node.virtualization.hypervisor)}, container {_word(node.virtualization.container)}"


def _software(node: NodeReading) -> Iterator[Fact]:
    yield "os", f"{_word(node.system.os_name)} {_word(node.system.os_version)}"
    yield "kernel", _word(node.system.kernel_release)
    yield "kernel_parameters", _words(node.system.kernel_parameters, str)
    yield "clock_source", _word(node.system.clock_source)
    yield "transparent_hugepages", _word(node.memory.transparent_hugepages)
    yield "numa_balancing", _word(node.memory.numa_balancing_mode)
    yield "driver", f"{_word(node.gpus.driver)}, CUDA {_word(node.gpus.cuda)}"
    yield (
        "gpudirect",
        ", ".join(
            f"{name} {_word(answer)}"
            for name, answer in (
                ("peermem", node.infiniband.gpudirect.peermem_module),
                ("open kernel modules", node.infiniband.gpudirect.has_open_kernel_modules),
            )
        ),
    )


def _allowed(node: NodeReading) -> Iterator[Fact]:
    allowed = node.allowances
    yield "memlock", _allowance(allowed.memlock_bytes)
    yield "nofile", _allowance(allowed.nofile)
    yield "shm", _gibibytes(allowed.shm if isinstance(allowed.shm, Missing) else allowed.shm.size_bytes)
    yield "cgroup", f"{_word(allowed.cgroup.cpu_quota_cpus)} CPUs, memory {_word(allowed.cgroup.memory_bytes)}"


def _gpu(gpu: GpuReading) -> str:
    parts = (
        gpu.name,
        gpu.part_number,
        gpu.vbios,
        gpu.inforom,
        gpu.ecc.is_on,
        gpu.mig_is_on,
        gpu.persistence_is_on,
        gpu.compute_mode,
        gpu.power.enforced_limit_w,
        gpu.clocks.application_sm_mhz,
    )
    return ", ".join(_word(part) for part in parts)


def _rdma_device(device: RdmaDevice) -> str:
    return ", ".join(_word(part) for part in (device.hca_type, device.board_id, device.firmware))


def _all_alike(found: Answer[tuple[T, ...]], describe: Callable[[T], str]) -> str:
    """`8 x NVIDIA H200, ...`: each kind with its number, the rarest first: a message that is cut short still shows what is odd."""
    if isinstance(found, Missing):
        return str(found.missing)
    kinds: dict[str, int] = {}
    for one in found:
        kinds[describe(one)] = kinds.get(describe(one), 0) + 1
    return "; ".join(f"{number} x {kind}" for kind, number in sorted(kinds.items(), key=lambda item: (item[1], item[0]))) or "none"


def _words(found: Answer[tuple[T, ...]], describe: Callable[[T], str]) -> str:
    if isinstance(found, Missing):
        return str(found.missing)
    return "; ".join(describe(one) for one in found) or "none"


def _word(answer: object) -> str:
    """Without the detail of why an answer is missing: it names files and processes, which differ."""
    return str(answer.missing) if isinstance(answer, Missing) else str(answer)


def _gibibytes(num_bytes: Answer[int]) -> str:
    """To whole GiB: a kernel keeps back a little more or less at each boot."""
    return str(num_bytes.missing) if isinstance(num_bytes, Missing) else f"{round(num_bytes / 2**30)} GiB"


def _allowance(answer: Answer[Allowance]) -> str:
    return str(answer.missing) if isinstance(answer, Missing) else f"{answer.soft} of {answer.hard}"


def _variables(variables: Mapping[str, str]) -> str:
    """All of them, as far as they fit, behind a digest of all. Which GPUs a rank may see is its own."""
    kept = {name: value for name, value in sorted(variables.items()) if name not in _OF_A_RANK}
    digest = hashlib.sha256(json.dumps(kept).encode()).hexdigest()[:12]
    return f"{digest}: {'; '.join(f'{name}={value}' for name, value in kept.items()) or 'none'}"[:_MOST_TEXT]
