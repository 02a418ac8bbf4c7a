"""A Slurm job, its nodes and its partition, from Slurm's own commands, and findings in them: metric, answer, unit, detail."""

import os
import re
import secrets
import shlex
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import psutil

from gpu_acceptance.inventory.answer import (
    Answer,
    Missing,
    Unlimited,
    Why,
    all_missing,
    as_cpu_list,
    combine,
    cpus_in,
    detail_of,
    join_fitting,
    join_names,
    one_line,
    parsed,
    then,
)

_KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT")  # address of the controller, and credentials
_OPTIONS = ("SLURM_", "SRUN_", "SCONTROL_")  # the job's own: each is an option of a command that runs in it
_TIMEOUT_S = 60.0  # commands wait MessageTimeout, 10 s, for each controller in slurm.conf that is down
_MOST_CHARACTERS, _MOST_DETAIL = 64 << 20, 200  # a node has 0.8 kB
JOB, NODE = "SLURM_JOB_ID", "SLURMD_NODENAME"  # in the environment of every process of a job
HOSTS = re.compile(r"[\w.,\[\]-]+", re.ASCII)  # `node[01-16],login`
_CONTROLLER = re.compile(r"Slurmctld\((\w+)\) at (\S+) is (UP|DOWN)", re.ASCII)
# `gpu:h200:8(IDX:0-7)`, `gpu:1g.10gb+me:2`, `shard:h200:8(0/8,8/8)`: names and types are any text of gres.conf(5) without `:` and `,`.
_GRES = re.compile(r"([^\s:,()=]+)(?::[^\s:,()=]+){0,2}:([0-9]{1,9})([KMGTP]?)(?:\([^()]*\))?", re.ASCII)
_FACTOR = {suffix: 1024**power for power, suffix in enumerate(("", *"KMGTP"))}
_FREE_TEXT = re.compile(r"\s(?:Reason|Comment|Extra)=(.*)", re.DOTALL)  # text of people, up to the end of the line
_SETTING = re.compile(r"(\w+)\s*= ?(.*)", re.ASCII)
_SHARE = re.compile(r"\sNodes=(\S+) CPU_IDs=(\S+) Mem=([0-9]{1,12}) GRES=(\S*)")
# `MIXED+DRAIN`, `REBOOT*+DRAIN`, `ALLOCATED+`, `DOWN+?`: any word may carry marks, and `?` is a flag that this scontrol does not know
# (node_state_string and node_state_flag_string in Slurm's src/common/slurm_protocol_defs.c).
_STATE = re.compile(r"[A-Z_]+[*~#!%$@^-]*(?:\+(?:[A-Z_]+|\?)[*~#!%$@^-]*)*\+?", re.ASCII)
_NONCE = "GPU_ACCEPTANCE_NONCE"
_LABELLED = re.compile(r"\s*([0-9]+): (.*)")  # srun(1), --label
# --overlap: the step that runs the suite has all that the job has. --immediate: srun would wait for it as long as the job lasts.
_STEP = "--overlap", "--ntasks-per-node=1", "--immediate=30", "--time=1", "--gres=none", "--mpi=none", "--input=none", "--quiet", "--label"
_ROW = re.compile(r"(?P<pid>[0-9]+|-1)\s+(?P<job>[0-9]+)\s+[\w+.]+\s+[0-9-]+\s+[0-9-]+", re.ASCII)
Findings = Iterator[tuple[str, Answer[bool] | Answer[int] | Answer[float], str, str]]

_AT_WORK = {"ALLOCATED", "MIXED"}
# sinfo(1), Node State Codes: plans and reservations are no faults; an unknown flag is one.
_SOUND = {"CLOUD", "DYNAMIC_NORM", "MAINTENANCE", "PLANNED", "RESERVED", "-", "$"}
_OUT = {"DRAIN", "FAIL", "NOT_RESPONDING", "POWERED_DOWN", "POWERING_DOWN", "INVALID_REG", "*"}  # flags with which no job starts on a node


class Share(NamedTuple):
    """Share of a job in each of these nodes. `memory_mib` 0: Slurm does not count memory."""

    hosts: str
    num_threads: int  # of the machine
    memory_mib: int
    num_gpus: int


class Job(NamedTuple):
    """A job. `ends_s`: seconds since the epoch; None: no limit."""

    partition: str
    hosts: str
    ends_s: int | None
    shares: tuple[Share, ...]


class Node(NamedTuple):
    """A node. `flags`: words beside the state, like DRAIN or NOT_RESPONDING; `reason`: text of the person who set it."""

    name: str
    state: str
    flags: tuple[str, ...]
    reason: str
    memory_mib: int


class Partition(NamedTuple):
    name: str
    state: str
    hosts: str


def ask(*command: str, environ: Mapping[str, str] = os.environ, codes: tuple[int, ...] = (0,)) -> Answer[str]:
    """Return the output of a command of Slurm that ends within 60 s with one of these exit codes."""
    name = shlex.join(command)[:80]
    plain = {name: value for name, value in environ.items() if name in _KEPT or not name.startswith(_OPTIONS)}
    plain |= {"SLURM_TIME_FORMAT": "%s", "LC_ALL": "C"}  # seconds since the epoch: independent of the time zone
    pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "errors": "backslashreplace"}
    try:
        done: subprocess.CompletedProcess[str] = subprocess.run(command, env=plain, timeout=_TIMEOUT_S, check=False, **pipes)
    except FileNotFoundError:
        return Missing(Why.NOT_THERE, f"{command[0]} is not on PATH")
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return Missing(Why.UNREADABLE, f"{name}: {type(error).__name__}: {error}"[:_MOST_DETAIL])
    if done.returncode not in codes or len(done.stdout) > _MOST_CHARACTERS:
        output = " ".join((done.stderr or done.stdout).split())
        return Missing(Why.UNREADABLE, f"{name}: exit code {done.returncode}, {len(done.stdout)} characters: {output}"[:_MOST_DETAIL])
    return done.stdout


def is_in_job(environ: Mapping[str, str] = os.environ) -> bool:
    return bool(environ.get(JOB))


def own_node(environ: Mapping[str, str] = os.environ) -> Answer[str]:
    """Return Slurm's name for the node of this process."""
    name = environ.get(NODE, "")
    return name if HOSTS.fullmatch(name) else Missing(Why.NOT_THERE, f"{NODE}={name!r:.80}: Slurm sets it in each step of a job")


def controllers(environ: Mapping[str, str] = os.environ) -> Answer[dict[str, bool]]:
    """Return True for each controller that answers, by place: `primary at head-01`. scontrol(1) ends with 1 where one is down."""
    return parsed(ask("scontrol", "ping", environ=environ, codes=(0, 1)), "controllers of Slurm", parse_controllers)


def job(environ: Mapping[str, str] = os.environ) -> Answer[Job]:
    number = environ.get(JOB, "")
    if not re.fullmatch("[0-9]{1,10}", number):
        return Missing(Why.NOT_THERE, f"{JOB}={number!r:.80} is not the number of a job")
    return parsed(ask("scontrol", "--details", "--oneliner", "show", "job", number, environ=environ), "job of Slurm", parse_job)


def partition_of(job: Answer[Job], environ: Mapping[str, str] = os.environ) -> Answer[Partition]:
    shown = then(job, lambda job: ask("scontrol", "--oneliner", "show", "partition", job.partition, environ=environ))
    return parsed(shown, "partition of Slurm", parse_partition)


def nodes_of(group: Answer[Job] | Answer[Partition], environ: Mapping[str, str] = os.environ) -> Answer[tuple[Node, ...]]:
    """Return the nodes of a job or of a partition."""
    return combine(lambda group: _nodes(group.hosts, environ), group)


def config(environ: Mapping[str, str] = os.environ) -> Answer[dict[str, str]]:
    """Return slurm.conf as the controller has it, and cgroup.conf where a plugin for cgroups is in use."""
    return parsed(ask("scontrol", "show", "config", environ=environ), "config of Slurm", parse_config)


def promise(job: Answer[Job], own: Answer[str], environ: Mapping[str, str] = os.environ) -> Answer[Share]:
    """Return the share of the job in this node; all memory of the node where Slurm does not count memory."""
    if isinstance(job, Missing):
        return job
    if isinstance(own, Missing):
        return own
    for share in job.shares:
        shown = ask("scontrol", "show", "hostnames", share.hosts, environ=environ)  # this asks no controller
        among = parsed(shown, "names of Slurm", parse_names)
        if isinstance(among, Missing):
            return among
        if own in among:
            nodes = _nodes(own, environ)
            return nodes if isinstance(nodes, Missing) else share._replace(memory_mib=share.memory_mib or nodes[0].memory_mib)
    return Missing(Why.NOT_THERE, f"the job has no share of node {own}; its nodes: {job.hosts}"[:_MOST_DETAIL])


def _nodes(hosts: str, environ: Mapping[str, str]) -> Answer[tuple[Node, ...]]:
    return parsed(ask("scontrol", "--oneliner", "show", "node", hosts, environ=environ), "nodes of Slurm", parse_nodes)


def parse_controllers(text: str) -> dict[str, bool]:
    """Parse the output of `scontrol ping`. Like all parsers here it raises ValueError over another form."""
    found = {f"{role} at {host}": state == "UP" for role, host, state in _CONTROLLER.findall(text)}
    if not found:
        raise ValueError(f"no controller in {text!r:.80}")
    return found


def parse_job(text: str) -> Job:
    """Parse a job. CPU_IDs names threads, also where slurm.conf counts cores as CPUs (22.05: 0-7 for four CPUs with two threads each)."""
    ends = _field(text, "EndTime", "[0-9]{1,12}|Unknown|NONE")
    _field(text, "JOB_GRES")
    _field(text, "MinCPUsNode")
    part = text.partition(" JOB_GRES=")[2].partition(" MinCPUsNode=")[0]  # between these two nobody writes free text
    shares = tuple(Share(hosts, len(cpus_in(cpus)), int(mib), _num_gpus(gres)) for hosts, cpus, mib, gres in _SHARE.findall(part))
    if not shares or part.count(" Nodes=") != len(shares) or not all(HOSTS.fullmatch(one.hosts) for one in shares):
        raise ValueError(f"{len(shares)} shares of nodes in {part!r:.80}")
    hosts = _field(text, "NodeList", HOSTS.pattern)
    return Job(_field(text, "Partition", r"[\w.-]+"), hosts, int(ends) if ends.isdecimal() else None, shares)


def parse_partition(text: str) -> Partition:
    hosts = _field(text, "Nodes", HOSTS.pattern)
    return Partition(_field(text, "PartitionName", r"[\w.-]+"), _field(text, "State", "[A-Z]+"), hosts)


def parse_nodes(text: str) -> tuple[Node, ...]:
    found = []
    for line in filter(str.strip, text.splitlines()):
        free = _FREE_TEXT.search(line)
        fields = line[: free.start()] if free else line
        state, flags = _state(_field(fields, "State"))
        reason = one_line(free[1][:200]) if free and free[1].strip() else ""
        found.append(Node(_field(fields, "NodeName", r"[\w.-]+"), state, flags, reason, int(_field(fields, "RealMemory", "[0-9]{1,12}"))))
    if not found:
        raise ValueError("no node")
    return tuple(found)


def _state(text: str) -> tuple[str, tuple[str, ...]]:
    """Return the state, and its flags and marks, each once: `DOWN*+DRAIN` is DOWN with `*` and DRAIN. A last `+` is COMPLETING."""
    if not _STATE.fullmatch(text):
        raise ValueError(f"not of the form {_STATE.pattern}: {text!r:.80}")
    state, *flags = re.findall(r"[A-Z_]+|[?*~#!%$@^-]", f"{text}COMPLETING" if text.endswith("+") else text)
    return state, tuple(dict.fromkeys(flags))


def parse_names(text: str) -> tuple[str, ...]:
    wrong = next((name for name in text.split() if not HOSTS.fullmatch(name)), None)
    if wrong is not None:
        raise ValueError(f"not of the form {HOSTS.pattern}: {wrong!r:.80}")
    return tuple(text.split())


def parse_config(text: str) -> dict[str, str]:
    found = {match[1]: match[2] for match in map(_SETTING.fullmatch, map(str.strip, text.splitlines())) if match}
    if "TaskPlugin" not in found:
        raise ValueError(f"no TaskPlugin: {text!r:.80}")
    return found


def _field(text: str, name: str, pattern: str = r"\S*") -> str:
    """Return the only value of this name: with a second one in a comment, Slurm's own cannot be told from it."""
    found: list[str] = re.findall(rf"(?:^|\s){re.escape(name)}=(\S*)", text)
    if len(found) != 1 or not re.fullmatch(pattern, found[0], re.ASCII):
        raise ValueError(f"{name}= has the values {found!r:.80}; wanted is one of the form {pattern}")
    return found[0]


def _num_gpus(gres: str) -> int:
    """Count GPUs in `gpu:2(IDX:0-1)`, `gpu:a:4(IDX:0-3),gpu:b:4(IDX:4,6)`, nothing or `(null)`."""
    if gres in {"", "(null)"}:
        return 0
    if not re.fullmatch(rf"{_GRES.pattern}(?:,{_GRES.pattern})*", gres, re.ASCII):
        raise ValueError(f"no generic resources: {gres!r:.80}")
    return sum(int(number) * _FACTOR[suffix] for name, number, suffix in _GRES.findall(gres) if name == "gpu")


def read_leftovers(environ: Mapping[str, str] = os.environ) -> Answer[tuple[str, ...]]:
    """Return leftover processes of this node by name and pid: `python 4711`. scontrol asks the slurmd of its own node, no controller."""
    listed = then(own_node(environ), lambda node: ask("scontrol", "listpids", "*", node, environ=environ))
    pids = parsed(listed, "pids of Slurm", leftover_pids)
    return then(pids, lambda pids: leftovers_of(os.getuid(), pids, environ.get(JOB, ""), os.getpid()))


def leftover_pids(text: str) -> dict[int, str]:
    """Return the job of each process, of all steps on this node."""
    head, *lines = text.splitlines() or [""]
    rows = [_ROW.fullmatch(line.strip()) for line in lines]
    if head.split() != ["PID", "JOBID", "STEPID", "LOCALID", "GLOBALID"] or not all(rows):
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
    left = (
        f"{process.info['name']} {pid}"
        for pid, process in seen.items()
        if pid not in listed and process.info["uids"] and process.info["uids"].real == uid and process.info["create_time"] < began_s
    )
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
    out = then(nodes, lambda nodes: [node for node in nodes if node.state not in {"IDLE", *_AT_WORK} or set(node.flags) & _OUT])
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
