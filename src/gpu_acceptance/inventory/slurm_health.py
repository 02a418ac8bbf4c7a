"""What of a Slurm job is judged, by topic: metric, answer, unit, and what it is of. docs/limits.md explains each. Pure."""

import os
import re
import secrets
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import psutil

from gpu_acceptance.inventory.answer import MOST_TEXT, Answer, Missing, Unlimited, Why, as_cpu_list, join_fitting, join_names
from gpu_acceptance.inventory.slurm import JOB, NODE, Job, Node, Partition, Promise, ask, own_node, parsed

_NONCE = "GPU_ACCEPTANCE_NONCE"
_LABELLED = re.compile(r"\s*([0-9]+): (.*)")  # srun(1), --label
# --overlap: the step that runs the suite has all that the job has. --immediate: or srun would wait for it for as long as the job lasts.
_OPTIONS = (
    *("--overlap", "--ntasks-per-node=1", "--immediate=30", "--time=1", "--gres=none", "--mpi=none", "--input=none"),
    *("--quiet", "--label"),
)
_ROW = re.compile(r"(?P<pid>[0-9]+|-1)\s+(?P<job>[0-9]+)\s+[\w+.]+\s+[0-9-]+\s+[0-9-]+", re.ASCII)
_HEADER = "PID JOBID STEPID LOCALID GLOBALID"
Findings = Iterator[tuple[str, Answer[bool] | Answer[int] | Answer[float], str, str]]

_AT_WORK = {"ALLOCATED", "MIXED"}
# sinfo(1), Node State Codes: plans and reservations are no faults; whatever is not known is one.
_SOUND = {"CLOUD", "DYNAMIC_NORM", "MAINTENANCE", "PLANNED", "RESERVED", "-"}
_OUT = {"DRAIN", "FAIL", "NOT_RESPONDING", "POWERED_DOWN", "POWERING_DOWN", "INVALID_REG", "*"}  # flags with which no job starts on a node
_WORKING = {"IDLE", *_AT_WORK}


class RoundTrip(NamedTuple):
    """`error`: why srun itself failed; all nodes are lost then."""

    lost: tuple[str, ...]
    error: str


def make_round_trip(nodes: Answer[Sequence[Node]], environ: Mapping[str, str] = os.environ) -> Answer[RoundTrip]:
    """One task on each of these nodes of the job, within 60 s. Missing where there is no srun."""
    if isinstance(nodes, Missing):
        return nodes
    names, nonce = tuple(node.name for node in nodes), secrets.token_hex(16)
    size = (f"--jobid={environ.get(JOB, '')}", f"--nodes={len(names)}", f"--ntasks={len(names)}")
    said = ask("srun", *size, *_OPTIONS, "printenv", NODE, _NONCE, environ={**environ, _NONCE: nonce})
    if isinstance(said, Missing):
        return said if said.missing is Why.NOT_THERE else RoundTrip(names, said.detail)
    back = came_back(said, nonce)
    return RoundTrip(tuple(name for name in names if name not in back), "")


def came_back(said: str, nonce: str) -> set[str]:
    """The nodes whose task said at last its name and the nonce: before it a site's TaskProlog may print what it likes."""
    by_task: dict[str, list[str]] = {}
    for match in map(_LABELLED.fullmatch, said.splitlines()):
        if match:
            by_task.setdefault(match[1], []).append(match[2])
    return {lines[-2] for lines in by_task.values() if len(lines) > 1 and lines[-1] == nonce}


def read_leftovers(environ: Mapping[str, str] = os.environ) -> Answer[tuple[str, ...]]:
    """Of this node, by name and pid: `python 4711`. scontrol asks the slurmd of its own node, no controller."""
    node = own_node(environ)
    if isinstance(node, Missing):
        return node
    listed = parsed(ask("scontrol", "listpids", "*", node, environ=environ), "pids", leftover_pids)
    return listed if isinstance(listed, Missing) else leftovers_of(os.getuid(), listed, environ.get(JOB, ""), os.getpid())


def leftover_pids(text: str) -> dict[int, str]:
    """Process -> its job, of all steps on this node."""
    head, *lines = text.splitlines() or [""]
    rows = [_ROW.fullmatch(line.strip()) for line in lines]
    if head.split() != _HEADER.split() or not all(rows):
        raise ValueError(f"no list of processes: {text!r:.80}")
    return {int(row["pid"]): row["job"] for row in rows if row and row["pid"] != "-1"}  # -1: a step that has no process yet


def leftovers_of(uid: int, listed: Mapping[int, str], job: str, own: int) -> Answer[tuple[str, ...]]:
    """`own`: a process of this job. Where it is not on the list, the list is not one of the processes that are seen here."""
    if uid == 0:
        return Missing(Why.NOT_SUPPORTED, "the job runs as root, to whom the processes of the system belong too")
    seen = {process.pid: process for process in psutil.process_iter(["name", "uids", "create_time"])}
    if listed.get(own) != job or own not in seen:
        said = f"process {own} is of job {job}, and scontrol listpids has it not: a container with PIDs of its own?"
        return Missing(Why.UNREADABLE, said)
    began_s = min(seen[pid].info["create_time"] for pid, of_job in listed.items() if of_job == job and pid in seen)
    left = [
        f"{process.info['name']} {pid}"
        for pid, process in seen.items()
        if pid not in listed and process.info["uids"] and process.info["uids"].real == uid and process.info["create_time"] < began_s
    ]
    return tuple(left)


def controller(answers: Answer[Mapping[str, bool]]) -> Findings:
    if isinstance(answers, Missing):
        yield from _unknown("controller", answers, up="count", down="count")
        return
    up, down = ([place for place, answer in answers.items() if answer is wanted] for wanted in (True, False))
    yield "slurm.controller.up", len(up), "count", join_names(up)
    yield "slurm.controller.down", len(down), "count", join_names(down)


def allocation(allocated: Answer[Sequence[Node]], job: str, homes: Sequence[str]) -> Findings:
    """`homes`: job and node of the first rank of each node of this run: `7 node1`."""
    if isinstance(allocated, Missing):
        yield from _unknown("allocation", allocated, unsound="count", unused="count", doubled="count", strangers="count")
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


def partition(told: Answer[Partition]) -> Findings:
    said = "" if isinstance(told, Missing) else f"{told.name} {told.state}"
    yield "slurm.partition.up", told if isinstance(told, Missing) else told.state == "UP", "bool", said


def partition_facts(nodes: Answer[Sequence[Node]]) -> Iterator[tuple[str, Answer[int] | Answer[str], str]]:
    """How many nodes no job starts on, and which: the verdict says of how many of them it does not speak."""
    out = nodes if isinstance(nodes, Missing) else [node for node in nodes if node.state not in _WORKING or set(node.flags) & _OUT]
    yield "slurm.partition.untested", out if isinstance(out, Missing) else len(out), "count"
    yield "slurm.partition.untested_nodes", out if isinstance(out, Missing) else join_fitting(list(map(state_of, out))) or "none", "text"


def state_of(node: Node) -> str:
    """`node7 IDLE+DRAIN (fan [root@1795504588])`."""
    return f"{node.name} {'+'.join([node.state, *node.flags])}{f' ({node.reason})' if node.reason else ''}"


def isolation(config: Answer[Mapping[str, str]]) -> Findings:
    """What this configuration keeps a job from: the CPUs, memory and GPUs of others, and leaving processes behind."""
    if isinstance(config, Missing):
        yield from _unknown("isolation", config, cpus="bool", memory="bool", gpus="bool", processes="bool")
        return
    plugins = [name.strip() for name in config["TaskPlugin"].split(",")]
    by_cgroup = {name for name, value in config.items() if value.lower() == "yes"} if "task/cgroup" in plugins else set()
    said = f"TaskPlugin={config['TaskPlugin']}"
    yield "slurm.isolation.cpus", "task/affinity" in plugins or "ConstrainCores" in by_cgroup, "bool", said
    yield "slurm.isolation.memory", "ConstrainRAMSpace" in by_cgroup, "bool", said
    yield "slurm.isolation.gpus", "ConstrainDevices" in by_cgroup, "bool", said
    tracking = config.get("ProctrackType", "")
    yield "slurm.isolation.processes", tracking == "proctrack/cgroup", "bool", f"ProctrackType={tracking}"


def cpus(given: Answer[Promise], bound: frozenset[int]) -> Findings:
    """`bound`: those on which any rank of this node may run."""
    if isinstance(given, Missing):
        yield from _unknown("cpus", given, lacking="count", beyond="count")
        return
    said = f"CPUs {as_cpu_list(bound)}; Slurm gave {given.num_threads}"[:MOST_TEXT]
    yield "slurm.cpus.lacking", max(given.num_threads - len(bound), 0), "count", said
    yield "slurm.cpus.beyond", max(len(bound) - given.num_threads, 0), "count", said


def memory(given: Answer[Promise], total_bytes: Answer[int], limit_bytes: Answer[int | Unlimited]) -> Findings:
    """`limit_bytes`: of the process's cgroups."""
    lack = next((one for one in (given, total_bytes, limit_bytes) if isinstance(one, Missing)), None)
    if lack or isinstance(given, Missing) or isinstance(total_bytes, Missing) or isinstance(limit_bytes, Missing):
        assert lack
        yield "slurm.memory.lacking", lack, "MiB", ""
        return
    usable = (total_bytes if isinstance(limit_bytes, str) else min(total_bytes, limit_bytes)) // (1 << 20)
    yield "slurm.memory.lacking", max(given.memory_mib - usable, 0), "MiB", f"{usable} MiB; Slurm gave {given.memory_mib}"


def gpus(given: Answer[Promise], num_seen: int) -> Findings:
    if isinstance(given, Missing):
        yield from _unknown("gpus", given, lacking="count", beyond="count")
        return
    said = f"{num_seen} seen; Slurm gave {given.num_gpus}"
    yield "slurm.gpus.lacking", max(given.num_gpus - num_seen, 0), "count", said
    yield "slurm.gpus.beyond", max(num_seen - given.num_gpus, 0), "count", said


def round_trip(made: Answer[RoundTrip]) -> Findings:
    lost: Answer[int] = made if isinstance(made, Missing) else len(made.lost)
    yield "slurm.round_trip.lost", lost, "count", "" if isinstance(made, Missing) else made.error or join_names(made.lost)


def time(job: Answer[Job], planned_end: str | None, now_s: float) -> Findings:
    """How much earlier the job ends than this run reckons with, by SLURM_JOB_END_TIME (base/budget.py)."""
    known = None if isinstance(job, Missing) else job.ends_s
    left = "no limit" if known is None else f"{known - now_s:.0f} s left"
    yield "slurm.time.unplanned", job if isinstance(job, Missing) else _unplanned(known, planned_end), "s", left


def _unplanned(ends_s: int | None, planned_end: str | None) -> Answer[int]:
    if ends_s is None:
        return 0
    if planned_end is None or not planned_end.isdecimal():
        return Missing(Why.NOT_THERE, f"SLURM_JOB_END_TIME={planned_end!r:.40}: this run does not know when the job ends")
    return max(int(planned_end) - ends_s, 0)


def leftovers(found: Answer[Sequence[str]]) -> Findings:
    said = "" if isinstance(found, Missing) else join_names(found)
    yield "slurm.leftovers.processes", found if isinstance(found, Missing) else len(found), "count", said


def _unknown(topic: str, why: Missing, **units: str) -> Findings:
    """All metrics of a topic of which nothing is known."""
    yield from ((f"slurm.{topic}.{name}", why, unit, "") for name, unit in units.items())
