"""Findings in a Slurm job, its nodes and its partition: metric, answer, unit, detail."""

import os
import re
import secrets
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from gpu_acceptance.inventory.answer import (
    Answer,
    Missing,
    Unlimited,
    Why,
    all_missing,
    as_cpu_list,
    combine,
    detail_of,
    join_fitting,
    join_names,
    then,
)
from gpu_acceptance.inventory.slurm import JOB, NODE, Job, Node, Partition, Share, State, ask

_NONCE = "GPU_ACCEPTANCE_NONCE"
_LABELLED = re.compile(r"\s*([0-9]+): (.*)")  # srun(1), --label
# --overlap: the step that runs the suite has all that the job has. --immediate: srun would wait for it as long as the job lasts.
_STEP = "--overlap", "--ntasks-per-node=1", "--immediate=30", "--time=1", "--gres=none", "--mpi=none", "--input=none", "--quiet", "--label"
Findings = Iterator[tuple[str, Answer[bool] | Answer[int] | Answer[float], str, str]]

_AT_WORK = {"ALLOCATED", "MIXED"}
# Flags of a node: sinfo(1), Node State Codes, and node_state_flags in Slurm's src/common/slurm_protocol_defs.c, 20.11 (POWER) to 25.11.
_FAULTS = {"DRAIN", "FAIL", "INVALID_REG", "NOT_RESPONDING", "POWER", "POWERED_DOWN", "POWERING_DOWN", "POWERING_UP", "REBOOT_ISSUED"}
# With these no job starts on a node that is idle, and those on it go on.
_CLOSED = {"BLOCKED", "MAINTENANCE", "PERFCTRS", "POWER_DOWN", "POWER_DRAIN", "POWER_UP", "RESERVED"}
# Plans, kinds of nodes, and COMPLETING: another job on the node ends.
_HARMLESS = {
    *("CLOUD", "COMPLETING", "DYNAMIC_FUTURE", "DYNAMIC_NORM", "EXTERNAL", "PLANNED"),
    *("REBOOT_CANCEL", "REBOOT_REQUESTED", "RESUME", "UNDRAIN"),
}


def controller(answers: Answer[Mapping[str, bool]]) -> Findings:
    if isinstance(answers, Missing):
        yield from all_missing("slurm.controller", answers, up="count", down="count")
        return
    up, down = ([place for place, answer in answers.items() if answer is wanted] for wanted in (True, False))
    yield "slurm.controller.up", len(up), "count", join_names(up)
    yield "slurm.controller.down", len(down), "count", join_names(down)


def allocation(allocated: Answer[Sequence[Node]], job: str, homes: Sequence[str]) -> Findings:
    """Yield unsound nodes of the job, and those on which not exactly one torchrun of this run is.

    `homes`: job and node of the first rank of each node of this run: `7 node1`.
    """
    if isinstance(allocated, Missing):
        yield from all_missing("slurm.allocation", allocated, unsound="count", unused="count", doubled="count", strangers="count")
        return
    sound = [(node, _is_sound(node)) for node in allocated]
    unsound = [state_of(node) for node, is_sound in sound if is_sound is False]
    lack = next((is_sound for _, is_sound in sound if isinstance(is_sound, Missing)), None)
    yield "slurm.allocation.unsound", len(unsound) if unsound or lack is None else lack, "count", join_names(unsound)
    wanted, used = {f"{job} {node.name}" for node in allocated}, Counter(homes)
    unused = sorted(wanted - used.keys())
    yield "slurm.allocation.unused", len(unused), "count", join_names([home.partition(" ")[2] for home in unused])
    doubled = [home.partition(" ")[2] for home, number in used.items() if number > 1]
    yield "slurm.allocation.doubled", len(doubled), "count", join_names(doubled)
    strangers = sorted(used.keys() - wanted)
    yield "slurm.allocation.strangers", len(strangers), "count", join_names([f"job and node {home!r}" for home in strangers])


def _is_sound(node: Node) -> Answer[bool]:
    """Return True for a node that does its work; an unknown flag proves nothing, unless the rest of the state is a fault."""
    if isinstance(node.state, Missing):
        return node.state
    if node.state.word not in _AT_WORK or _FAULTS & set(node.state.flags):
        return False
    unknown = _unknown(node.state)
    return Missing(Why.UNREADABLE, f"{state_of(node)}: unknown to this program: {join_names(unknown)}"[:200]) if unknown else True


def _unknown(state: State) -> list[str]:
    return [flag for flag in state.flags if flag not in _FAULTS | _CLOSED | _HARMLESS]


def partition(found: Answer[Partition]) -> Findings:
    detail = detail_of(found, lambda found: f"{found.name} {found.state}")
    yield "slurm.partition.up", then(found, lambda found: found.state == "UP"), "bool", detail


def partition_facts(nodes: Answer[Sequence[Node]]) -> Iterator[tuple[str, Answer[int] | Answer[str], str]]:
    """Yield number and names of the nodes on which no job starts, or in no known state: the verdict says that they are not tested."""
    out = then(nodes, lambda nodes: [node for node in nodes if isinstance(node.state, Missing) or not _starts_jobs(node.state)])
    yield "slurm.partition.untested", then(out, len), "count"
    yield "slurm.partition.untested_nodes", then(out, lambda out: join_fitting(list(map(state_of, out))) or "none"), "text"


def _starts_jobs(state: State) -> bool:
    if _FAULTS & set(state.flags) or _unknown(state):
        return False
    return state.word in _AT_WORK or (state.word == "IDLE" and not _CLOSED & set(state.flags))


def state_of(node: Node) -> str:
    """Return `node7 IDLE+DRAIN (fan [root@1795504588])`."""
    state = "in no known state" if isinstance(node.state, Missing) else "+".join([node.state.word, *node.state.flags])
    return f"{node.name} {state}{f' ({node.reason})' if node.reason else ''}"


def isolation(config: Answer[Mapping[str, str]]) -> Findings:
    """Yield True where this configuration keeps a job to its own CPUs, memory and GPUs, and ends its processes."""
    if isinstance(config, Missing):
        yield from all_missing("slurm.isolation", config, cpus="bool", memory="bool", gpus="bool", processes="bool")
        return
    plugins = _plugins(config, "TaskPlugin")
    by_cgroup = {name for name, value in config.items() if value.lower() == "yes"} if "cgroup" in plugins else set()
    detail = f"TaskPlugin={config['TaskPlugin']}"
    yield "slurm.isolation.cpus", "affinity" in plugins or "ConstrainCores" in by_cgroup, "bool", detail
    yield "slurm.isolation.memory", "ConstrainRAMSpace" in by_cgroup, "bool", detail
    yield "slurm.isolation.gpus", "ConstrainDevices" in by_cgroup, "bool", detail
    tracking = config.get("ProctrackType", "")
    yield "slurm.isolation.processes", _plugins(config, "ProctrackType") == {"cgroup"}, "bool", f"ProctrackType={tracking}"


def _plugins(config: Mapping[str, str], setting: str) -> set[str]:
    """Return plugins without their kind, which slurm.conf may leave out: `task/cgroup` and `cgroup` (Slurm, src/interfaces/task.c)."""
    return {name.strip().rpartition("/")[2] for name in config.get(setting, "").split(",")}


def cpus(given: Answer[Share], bound: frozenset[int]) -> Findings:
    """Yield CPUs that are lacking or too many. `bound`: CPUs on which any rank of this node may run."""
    detail = detail_of(given, lambda given: f"CPUs {as_cpu_list(bound)}; Slurm gave {given.num_threads}")
    yield "slurm.cpus.lacking", then(given, lambda given: max(given.num_threads - len(bound), 0)), "count", detail
    yield "slurm.cpus.beyond", then(given, lambda given: max(len(bound) - given.num_threads, 0)), "count", detail


def memory(given: Answer[Share], total_bytes: Answer[int], limit_bytes: Answer[int | Unlimited]) -> Findings:
    """Yield the memory that is lacking. `limit_bytes`: bound by the cgroups of this process."""
    bytes_ = combine(lambda _, total, limit: total if isinstance(limit, str) else min(total, limit), given, total_bytes, limit_bytes)
    usable: Answer[int] = then(bytes_, lambda number: number // (1 << 20))
    lacking = combine(lambda given, usable: max(given.memory_mib - usable, 0), given, usable)
    detail = detail_of(combine(lambda given, usable: f"{usable} MiB; Slurm gave {given.memory_mib}", given, usable), str)
    yield "slurm.memory.lacking", lacking, "MiB", detail


def gpus(given: Answer[Share], num_seen: int) -> Findings:
    detail = detail_of(given, lambda given: f"{num_seen} seen; Slurm gave {given.num_gpus}")
    yield "slurm.gpus.lacking", then(given, lambda given: max(given.num_gpus - num_seen, 0)), "count", detail
    yield "slurm.gpus.beyond", then(given, lambda given: max(num_seen - given.num_gpus, 0)), "count", detail


def round_trip(nodes: Answer[Sequence[Node]], environ: Mapping[str, str] = os.environ) -> Findings:
    """Run one task on each of these nodes of the job, within 60 s, and yield the nodes without an answer; missing where there is no srun.

    An answer is the node's name and the nonce, as the last lines of its task: a site's TaskProlog may print other lines before.
    """
    names = [] if isinstance(nodes, Missing) else [node.name for node in nodes]
    nonce = secrets.token_hex(16)
    size = (f"--jobid={environ.get(JOB, '')}", f"--nodes={len(names)}", f"--ntasks={len(names)}")
    command = ("srun", *size, *_STEP, "printenv", NODE, _NONCE)
    output = then(nodes, lambda _: ask(*command, environ={**environ, _NONCE: nonce}))
    if isinstance(output, Missing):
        has_failed = output is not nodes and output.missing is not Why.NOT_THERE  # srun itself: all nodes are lost
        yield "slurm.round_trip.lost", len(names) if has_failed else output, "count", output.detail if has_failed else ""
        return
    by_task: dict[str, list[str]] = {}
    for match in filter(None, map(_LABELLED.fullmatch, output.splitlines())):
        by_task.setdefault(match[1], []).append(match[2])
    back = {lines[-2] for lines in by_task.values() if len(lines) > 1 and lines[-1] == nonce}
    lost = [name for name in names if name not in back]
    yield "slurm.round_trip.lost", len(lost), "count", join_names(lost)


def time(job: Answer[Job], planned_end: str | None, now_s: float) -> Findings:
    """Yield the seconds by which the job ends before the end that this run plans with, SLURM_JOB_END_TIME (base/budget.py)."""
    ends_s = None if isinstance(job, Missing) else job.ends_s
    unplanned_s: Answer[int] = then(job, lambda _: 0)
    if ends_s is not None and planned_end and planned_end.isdecimal():
        unplanned_s = max(int(planned_end) - ends_s, 0)
    elif ends_s is not None:
        unplanned_s = Missing(Why.NOT_THERE, f"SLURM_JOB_END_TIME={planned_end!r:.40}: this run does not know when the job ends")
    yield "slurm.time.unplanned", unplanned_s, "s", "no limit" if ends_s is None else f"{ends_s - now_s:.0f} s left"


def leftovers(found: Answer[Sequence[str]]) -> Findings:
    yield "slurm.leftovers.processes", then(found, len), "count", detail_of(found, join_names)
