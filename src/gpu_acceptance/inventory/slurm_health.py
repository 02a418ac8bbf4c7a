"""Findings in a Slurm job by topic: metric, answer, unit, detail. docs/limits.md explains each."""

import os
import re
import secrets
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import psutil

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
    parsed,
    then,
)
from gpu_acceptance.inventory.slurm import JOB, NODE, Job, Node, Partition, Share, ask, own_node

_NONCE = "GPU_ACCEPTANCE_NONCE"
_LABELLED = re.compile(r"\s*([0-9]+): (.*)")  # srun(1), --label
# --overlap: the step that runs the suite has all that the job has. --immediate: srun would wait for it as long as the job lasts.
_OPTIONS = (
    *("--overlap", "--ntasks-per-node=1", "--immediate=30", "--time=1", "--gres=none", "--mpi=none", "--input=none"),
    *("--quiet", "--label"),
)
_ROW = re.compile(r"(?P<pid>[0-9]+|-1)\s+(?P<job>[0-9]+)\s+[\w+.]+\s+[0-9-]+\s+[0-9-]+", re.ASCII)
_HEADER = "PID JOBID STEPID LOCALID GLOBALID"
Findings = Iterator[tuple[str, Answer[bool] | Answer[int] | Answer[float], str, str]]

_AT_WORK = {"ALLOCATED", "MIXED"}
# sinfo(1), Node State Codes: plans and reservations are no faults; an unknown flag is one.
_SOUND = {"CLOUD", "DYNAMIC_NORM", "MAINTENANCE", "PLANNED", "RESERVED", "-"}
_OUT = {"DRAIN", "FAIL", "NOT_RESPONDING", "POWERED_DOWN", "POWERING_DOWN", "INVALID_REG", "*"}  # flags with which no job starts on a node
_WORKING = {"IDLE", *_AT_WORK}


class RoundTrip(NamedTuple):
    """Nodes without an answer. `error`: reason why srun itself failed; all nodes are lost then."""

    lost: tuple[str, ...]
    error: str


def make_round_trip(nodes: Answer[Sequence[Node]], environ: Mapping[str, str] = os.environ) -> Answer[RoundTrip]:
    """Run one task on each of these nodes of the job, within 60 s. Missing where there is no srun."""
    if isinstance(nodes, Missing):
        return nodes
    names, nonce = tuple(node.name for node in nodes), secrets.token_hex(16)
    size = (f"--jobid={environ.get(JOB, '')}", f"--nodes={len(names)}", f"--ntasks={len(names)}")
    output = ask("srun", *size, *_OPTIONS, "printenv", NODE, _NONCE, environ={**environ, _NONCE: nonce})
    if isinstance(output, Missing):
        return output if output.missing is Why.NOT_THERE else RoundTrip(names, output.detail)
    back = _nodes_back(output, nonce)
    return RoundTrip(tuple(name for name in names if name not in back), "")


def _nodes_back(output: str, nonce: str) -> set[str]:
    """Return the nodes whose task printed last its name and the nonce; a site's TaskProlog may print other lines before."""
    by_task: dict[str, list[str]] = {}
    for match in map(_LABELLED.fullmatch, output.splitlines()):
        if match:
            by_task.setdefault(match[1], []).append(match[2])
    return {lines[-2] for lines in by_task.values() if len(lines) > 1 and lines[-1] == nonce}


def read_leftovers(environ: Mapping[str, str] = os.environ) -> Answer[tuple[str, ...]]:
    """Return leftover processes of this node by name and pid: `python 4711`. scontrol asks the slurmd of its own node, no controller."""
    listed = then(own_node(environ), lambda node: ask("scontrol", "listpids", "*", node, environ=environ))
    pids = parsed(listed, "pids of Slurm", leftover_pids)
    return then(pids, lambda pids: leftovers_of(os.getuid(), pids, environ.get(JOB, ""), os.getpid()))


def leftover_pids(text: str) -> dict[int, str]:
    """Return the job of each process, of all steps on this node."""
    head, *lines = text.splitlines() or [""]
    rows = [_ROW.fullmatch(line.strip()) for line in lines]
    if head.split() != _HEADER.split() or not all(rows):
        raise ValueError(f"no list of processes: {text!r:.80}")
    return {int(row["pid"]): row["job"] for row in rows if row and row["pid"] != "-1"}  # -1: a step without a process yet


def leftovers_of(uid: int, listed: Mapping[int, str], job: str, own: int) -> Answer[tuple[str, ...]]:
    """Return processes of this user that are older than the job and in no step.

    `own`: a process of this job. If it is not listed, the list is not one of the processes that are visible here.
    """
    if uid == 0:
        return Missing(Why.NOT_SUPPORTED, "the job runs as root, to whom the processes of the system belong too")
    seen = {process.pid: process for process in psutil.process_iter(["name", "uids", "create_time"])}
    if listed.get(own) != job or own not in seen:
        detail = f"process {own} is of job {job}, and is missing in scontrol listpids: a container with its own PIDs?"
        return Missing(Why.UNREADABLE, detail)
    began_s = min(seen[pid].info["create_time"] for pid, of_job in listed.items() if of_job == job and pid in seen)
    left = [
        f"{process.info['name']} {pid}"
        for pid, process in seen.items()
        if pid not in listed and process.info["uids"] and process.info["uids"].real == uid and process.info["create_time"] < began_s
    ]
    return tuple(left)


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
    unsound = [state_of(node) for node in allocated if node.state not in _AT_WORK or set(node.flags) - _SOUND]
    yield "slurm.allocation.unsound", len(unsound), "count", join_names(unsound)
    wanted, used = {f"{job} {node.name}" for node in allocated}, Counter(homes)
    unused = sorted(wanted - used.keys())
    yield "slurm.allocation.unused", len(unused), "count", join_names([home.partition(" ")[2] for home in unused])
    doubled = [home.partition(" ")[2] for home, number in used.items() if number > 1]
    yield "slurm.allocation.doubled", len(doubled), "count", join_names(doubled)
    strangers = sorted(used.keys() - wanted)
    yield "slurm.allocation.strangers", len(strangers), "count", join_names([f"job and node {home!r}" for home in strangers])


def partition(found: Answer[Partition]) -> Findings:
    detail = detail_of(found, lambda found: f"{found.name} {found.state}")
    yield "slurm.partition.up", then(found, lambda found: found.state == "UP"), "bool", detail


def partition_facts(nodes: Answer[Sequence[Node]]) -> Iterator[tuple[str, Answer[int] | Answer[str], str]]:
    """Yield number and names of the nodes on which no job starts: the verdict says that they are not tested."""
    out = then(nodes, lambda nodes: [node for node in nodes if node.state not in _WORKING or set(node.flags) & _OUT])
    yield "slurm.partition.untested", then(out, len), "count"
    yield "slurm.partition.untested_nodes", then(out, lambda out: join_fitting(list(map(state_of, out))) or "none"), "text"


def state_of(node: Node) -> str:
    """Return `node7 IDLE+DRAIN (fan [root@1795504588])`."""
    return f"{node.name} {'+'.join([node.state, *node.flags])}{f' ({node.reason})' if node.reason else ''}"


def isolation(config: Answer[Mapping[str, str]]) -> Findings:
    """Yield True where this configuration keeps a job to its own CPUs, memory and GPUs, and ends its processes."""
    if isinstance(config, Missing):
        yield from all_missing("slurm.isolation", config, cpus="bool", memory="bool", gpus="bool", processes="bool")
        return
    plugins = [name.strip() for name in config["TaskPlugin"].split(",")]
    by_cgroup = {name for name, value in config.items() if value.lower() == "yes"} if "task/cgroup" in plugins else set()
    detail = f"TaskPlugin={config['TaskPlugin']}"
    yield "slurm.isolation.cpus", "task/affinity" in plugins or "ConstrainCores" in by_cgroup, "bool", detail
    yield "slurm.isolation.memory", "ConstrainRAMSpace" in by_cgroup, "bool", detail
    yield "slurm.isolation.gpus", "ConstrainDevices" in by_cgroup, "bool", detail
    tracking = config.get("ProctrackType", "")
    yield "slurm.isolation.processes", tracking == "proctrack/cgroup", "bool", f"ProctrackType={tracking}"


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


def round_trip(made: Answer[RoundTrip]) -> Findings:
    detail = detail_of(made, lambda made: made.error or join_names(made.lost))
    yield "slurm.round_trip.lost", then(made, lambda made: len(made.lost)), "count", detail


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
