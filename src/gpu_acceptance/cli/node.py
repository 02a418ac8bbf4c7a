"""One node on one screen: a snapshot as lines for people. Pure; nothing is judged."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import TypeVar

from gpu_acceptance.base.text import plural
from gpu_acceptance.cli.devices import (
    Column,
    gpu_lines,
    moment,
    on_off,
    peer_lines,
    rdma_lines,
    say,
    say_all,
    say_why,
    section,
    size,
    table,
    topology_lines,
)
from gpu_acceptance.cli.snapshot_file import Snapshot
from gpu_acceptance.inventory.answer import Answer, Missing, Unlimited, known, then
from gpu_acceptance.inventory.cgroup import Allowance, Allowances
from gpu_acceptance.inventory.cpu import Cpu
from gpu_acceptance.inventory.kernel_records import Xid
from gpu_acceptance.inventory.mounts import Mount, Mounts
from gpu_acceptance.inventory.node import NodeReading
from gpu_acceptance.inventory.system import Memory
from gpu_acceptance.inventory.xids import Remedy, meaning_of

_MOST_KINDS = 4
T = TypeVar("T", int, float)

_MOST_MOUNTS = 8
_NUMA_BALANCING = {0: "off", 1: "on", 2: "memory tiering", 3: "on and memory tiering"}  # Documentation/admin-guide/sysctl/kernel.rst
_MOUNT_COLUMNS: tuple[Column[tuple[Mount, str]], ...] = (
    Column("mount point", 40, lambda row: row[0].mount_point),
    Column("type", 12, lambda row: row[0].fs_type),
    Column("source", 40, lambda row: row[0].source),
    Column("access", 6, lambda row: "ro" if row[0].read_only else "rw"),
    Column("size", 11, lambda row: then(row[0].space, lambda space: size(space.size_bytes))),
    Column("free", 11, lambda row: then(row[0].space, lambda space: size(space.free_bytes))),
    Column("holds", 26, lambda row: row[1]),
)


def kernel_log_lines(node: NodeReading) -> list[str]:
    """Return the time that the log covers, the number of each kind of event, and the XIDs with the most far-reaching remedies."""
    log, boot = node.kernel_log, node.system.boot_time_s
    if isinstance(log.reach, Missing):
        return section("log", say_why(log.reach))
    reach = log.reach
    gaps = {"overwritten before it": reach.first_sequence, "lost while it was read": reach.num_lost, "unreadable": reach.num_unreadable}
    holes = [f"{number} {what}" for what, number in gaps.items() if number] + ["not read to its end"] * reach.is_cut_short
    told = f" ({', '.join(holes)})" if holes else ""
    whole = "all since boot" if reach.is_since_boot else f"not all since boot{told}"
    counts = (
        f"XIDs {say(log.xids, _number)}",
        f"SXids {say(log.sxids, lambda found: _number(found, (str(one.number) for one in found)))}",
        f"lost GPUs {say(log.lost_gpus, lambda lost: ' '.join(one.pci_bus_id for one in lost) or '0')}",
        f"PCIe errors {say(log.pcie_errors, lambda found: _number(found, (say(one.severity) for one in found)))}",
        f"errors of the host {say(log.host_errors, lambda found: _number(found, (say(one.severity) for one in found)))}",
        *([f"fatal errors of devices {len(found)}"] if (found := known(log.device_errors)) else []),
        f"in no known form {say(log.unreadable, _number)}",
        f"not listed {say(log.num_left_out)}",
    )
    begin_and_end = f"kernel log from {_at(reach.first_s, boot)} to {_at(reach.last_s, boot)}: {whole}"
    return section("log", begin_and_end, ", ".join(counts), *_xid_texts(node))


def _at(since_boot_s: float, boot: Answer[int]) -> str:
    return f"{since_boot_s:.7g} s after boot" if isinstance(boot, Missing) else moment(boot, since_boot_s)


def _number(found: Sized, names: Iterable[str] = ()) -> str:
    """Return `3`, or `3 (corrected: 2, fatal: 1)` where they have names."""
    tally = _tally(names)
    return f"{len(found)} ({tally})" if tally else str(len(found))


def _tally(names: Iterable[str]) -> str:
    return ", ".join(f"{name}: {number}" for name, number in Counter(names).most_common())


def _xid_texts(node: NodeReading) -> Iterator[str]:
    """Yield the kinds of XID with the most far-reaching remedies, each once per GPU."""
    xids, boot = node.kernel_log.xids, node.system.boot_time_s
    if isinstance(xids, Missing):
        return
    gpus = () if isinstance(node.gpus.gpus, Missing) else node.gpus.gpus
    names = {gpu.pci_bus_id: f"GPU {gpu.index}" for gpu in gpus if not isinstance(gpu.pci_bus_id, Missing)}
    kinds: dict[tuple[int, str], list[Xid]] = {}
    for xid in xids:
        kinds.setdefault((xid.number, xid.pci_bus_id), []).append(xid)
    weight = list(Remedy).index  # listed there from the least to the most
    meanings = [max((meaning_of(xid.number, xid.text) for xid in found), key=lambda one: weight(one.remedy)) for found in kinds.values()]
    worst = sorted(zip(meanings, kinds.values(), strict=True), key=lambda one: -weight(one[0].remedy))
    for meaning, found in worst[:_MOST_KINDS]:
        where = say(names.get(found[0].pci_bus_id, found[0].pci_bus_id))
        often = f"{plural(len(found), 'time')}, last at {_at(found[-1].at_s, boot)}"
        by = " (mostly the application's own mistake)" if meaning.is_application else ""
        yield f"XID {meaning.number} on {where}, {often}: {say(meaning.name)}{by}; to do: {meaning.remedy}"
    if rest := worst[_MOST_KINDS:]:
        yield f"and {_tally(f'XID {meaning.number}' for meaning, found in rest for _ in found)}"


def inventory_lines(snapshot: Snapshot) -> list[str]:
    """Return the whole screen."""
    node = snapshot.node
    return [
        *section("node", f"{say(node.host)}, as of {say(snapshot.taken_at)}"),
        *_host_lines(node),
        *_cpu_lines(node.cpu),
        *section("memory", _memory(node.memory)),
        *gpu_lines(node),
        *peer_lines(node.gpus),
        *topology_lines(node),
        *rdma_lines(node.infiniband),
        *_mount_lines(node.mounts),
        *section("allowed", _allowances(node.allowances)),
        *kernel_log_lines(node),
    ]


def _host_lines(node: NodeReading) -> list[str]:
    firmware, system, virtualization = node.dmi, node.system, node.virtualization
    machine = f"vendor {say(firmware.sys_vendor)}, product {say(firmware.product_name)}, serial {say(firmware.product_serial)}"
    bios = f"chassis serial {say(firmware.chassis_serial)}, BIOS {say(firmware.bios_version)} of {say(firmware.bios_date)}"
    kernel = f"kernel {say(system.kernel_release)}, booted {say(system.boot_time_s, moment)}"
    around = f"hypervisor {say(virtualization.hypervisor)}, container {say(virtualization.container)}"
    clock = f"clock source {say(system.clock_source)} of {say_all(system.available_clock_sources, separator=' ')}"
    return [
        *section("host", f"{machine}, {bios}"),
        *section(
            "system",
            f"{say(system.os_name)} {say(system.os_version)}, {kernel}",
            f"{around}, {clock}, kernel parameters {say_all(system.kernel_parameters, separator=' ')}",
        ),
    ]


def _cpu_lines(cpu: Cpu) -> list[str]:
    counts = f"sockets {say(cpu.num_sockets)}, cores {say(cpu.num_cores)}, threads {say(cpu.num_threads)}"
    governors = say_all(cpu.scaling_governors, lambda one: f"{one.name} ({one.num_cpus} CPUs)")
    isolated, offline, affinity = _cpus(cpu.isolated_cpu_list), _cpus(cpu.offline_cpu_list), _cpus(cpu.affinity_cpu_list)
    return section(
        "CPU",
        f"{say(cpu.model)}, {counts}, SMT {say(cpu.smt_active, on_off)}",
        f"governor {governors}, up to {say(cpu.max_mhz, lambda mhz: f'{mhz:.0f} MHz')}; "
        f"CPUs isolated {isolated}, offline {offline}, for this process {affinity}",
        f"NUMA {say_all(cpu.numa_nodes, lambda one: f'{one.number}: {say(one.memory_bytes, size)}, CPUs {_cpus(one.cpu_list)}', '; ')}",
    )


def _cpus(answer: Answer[str]) -> str:
    return say(answer, lambda cpus: cpus or "none")


def _memory(memory: Memory) -> str:
    room = f"{say(memory.total_bytes, size)}, available {say(memory.available_bytes, size)}, swap {say(memory.swap_bytes, size)}"
    balancing = say(memory.numa_balancing_mode, lambda mode: _NUMA_BALANCING.get(mode, str(mode)))
    pools = say_all(memory.hugepages, lambda pool: f"{say(pool.num_pages)} of {size(pool.page_bytes)} ({say(pool.num_free)} free)")
    return f"{room}; huge pages {pools}; transparent huge pages {say(memory.transparent_hugepages)}; NUMA balancing {balancing}"


def _mount_lines(mounts: Mounts) -> list[str]:
    if isinstance(mounts.mounts, Missing):
        return section("mounts", say_why(mounts.mounts))
    holders = {
        "working folder": mounts.working_folder_mount_point,
        "/tmp": mounts.tmp_mount_point,  # noqa: S108 - only named
        "/dev/shm": mounts.shm_mount_point,  # noqa: S108
    }
    held = set(holders.values())
    rows = []
    for mount in sorted(mounts.mounts, key=lambda mount: mount.mount_point not in held):
        names = ", ".join(name for name, holder in holders.items() if holder == mount.mount_point)
        rows.append((mount, names or "-"))
    more = [f"{len(rows) - _MOST_MOUNTS} more"] if len(rows) > _MOST_MOUNTS else []
    unknown = [f"mount of {name}: {say_why(holder)}" for name, holder in holders.items() if isinstance(holder, Missing)]
    unknown += [f"a mount in no known form: {say(line)}" for line in mounts.odd_lines]
    return ["mounts", *table(_MOUNT_COLUMNS, rows[:_MOST_MOUNTS], lambda row: row[0].mount_point), *section("", *more, *unknown)]


def _allowances(allowances: Allowances) -> str:
    cgroup, shm = allowances.cgroup, allowances.shm
    room = say(shm, lambda space: f"{size(space.size_bytes)}, {size(space.free_bytes)} free")
    bounds = {
        "locked memory": _allowance(allowances.memlock_bytes, size),
        "open files": _allowance(allowances.nofile, str),
        "processes": _allowance(allowances.nproc, str),
        "stack": _allowance(allowances.stack_bytes, size),
    }
    cpus, memory = _bound(cgroup.cpu_quota_cpus, lambda quota: f"{quota:g} CPUs"), _bound(cgroup.memory_bytes, size)
    return (
        f"{', '.join(f'{name} {bound}' for name, bound in bounds.items())}, /dev/shm {room}; "
        f"cgroup: CPU time {cpus}, memory {memory}, CPUs {_cpus(cgroup.cpuset_cpu_list)}, NUMA nodes {_cpus(cgroup.cpuset_node_list)}"
    )


def _allowance(answer: Answer[Allowance], form: Callable[[int], str]) -> str:
    """Return the soft bound, and the hard one if it differs."""
    if isinstance(answer, Missing):
        return say(answer)
    soft, hard = _bound(answer.soft, form), _bound(answer.hard, form)
    return soft if soft == hard else f"{soft} (up to {hard})"


def _bound(bound: Answer[T | Unlimited], form: Callable[[T], str]) -> str:
    return say(bound) if isinstance(bound, Missing | str) else form(bound)
