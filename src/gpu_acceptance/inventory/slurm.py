"""A Slurm job, its nodes and its partition, from Slurm's own commands."""

import os
import re
import shlex
import subprocess
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import psutil

from gpu_acceptance.inventory.answer import (
    Answer,
    Missing,
    Why,
    combine,
    cpus_in,
    parsed,
    shown,
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
# As `TresPerNode` of a job has them they begin with `gres/`, in older releases with `gres:`.
_GRES = re.compile(r"(?:gres[/:])?([^\s:,()=]+)(?::[^\s:,()=]+){0,2}:([0-9]{1,9})([KMGTP]?)(?:\([^()]*\))?", re.ASCII)
_FACTOR = {suffix: 1024**power for power, suffix in enumerate(("", *"KMGTP"))}
_FREE_TEXT = re.compile(r"\s(?:Reason|Comment|Extra)=(.*)", re.DOTALL)  # text of people, up to the end of the record
# Before and behind the fields that are read; `--oneliner` keeps the order of slurm_sprint_job_info (src/api/job_info.c).
_JOB_NAME = re.compile(r"\sJobName=.*?\s(?=UserId=)", re.DOTALL)
_FREE_TEXT_OF_JOB = re.compile(r"\s(?:Features|Reservation|Command|WorkDir|AdminComment|SystemComment|Comment|Extra)=")
_SETTING = re.compile(r"(\w+)\s*= ?(.*)", re.ASCII)
_SHARE = re.compile(r"\sNodes=(\S+) CPU_IDs=(\S+) Mem=([0-9]{1,12}) GRES=(\S*)")
# `MIXED+DRAIN`, `REBOOT*+DRAIN`, `ALLOCATED+`, `DOWN+?`: any word may carry marks, and `?` is a flag that this scontrol does not know
# (node_state_string and node_state_flag_string in Slurm's src/common/slurm_protocol_defs.c).
_STATE = re.compile(r"[A-Z_]+[*~#!%$@^-]*(?:\+(?:[A-Z_]+|\?)[*~#!%$@^-]*)*\+?", re.ASCII)
_MARKS = {  # sinfo(1), Node State Codes
    "*": "NOT_RESPONDING",
    "~": "POWERED_DOWN",
    "#": "POWERING_UP",
    "%": "POWERING_DOWN",
    "!": "POWER_DOWN",
    "$": "MAINTENANCE",
    "@": "REBOOT_REQUESTED",
    "^": "REBOOT_ISSUED",
    "-": "PLANNED",
}
_ROW = re.compile(r"(?P<pid>[0-9]+|-1)\s+(?P<job>[0-9]+)\s+[\w+.]+\s+[0-9-]+\s+[0-9-]+", re.ASCII)


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


class State(NamedTuple):
    """A node's state. `flags`: words beside it, like DRAIN and NOT_RESPONDING, and `?`."""

    word: str
    flags: tuple[str, ...]


class Node(NamedTuple):
    """A node. `reason`: text of the person who set its state."""

    name: str
    state: Answer[State]
    reason: str
    memory_mib: Answer[int]


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
    answer = ask("scontrol", "--details", "--oneliner", "show", "job", number, environ=environ)
    return parsed(answer, "job of Slurm", partial(parse_job, number=number))


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
            memory_mib = share.memory_mib or then(_nodes(own, environ), lambda nodes: nodes[0].memory_mib)
            return memory_mib if isinstance(memory_mib, Missing) else share._replace(memory_mib=memory_mib)
    return Missing(Why.NOT_THERE, f"the job has no share of node {own}; its nodes: {job.hosts}"[:_MOST_DETAIL])


def _nodes(hosts: str, environ: Mapping[str, str]) -> Answer[tuple[Node, ...]]:
    return parsed(ask("scontrol", "--oneliner", "show", "node", hosts, environ=environ), "nodes of Slurm", parse_nodes)


def parse_controllers(text: str) -> dict[str, bool]:
    """Parse the output of `scontrol ping`. Like all parsers here it raises ValueError over another form."""
    found = {f"{role} at {host}": state == "UP" for role, host, state in _CONTROLLER.findall(text)}
    if not found:
        raise ValueError(f"no controller in {text!r:.80}")
    return found


def parse_job(text: str, number: str) -> Job:
    """Parse the job of this number among all tasks of its array, or all parts of a heterogeneous job.

    CPU_IDs names threads, also where slurm.conf counts cores as CPUs (22.05: 0-7 for four CPUs with two threads each).
    """
    records = [record for record in _records(text, "JobId") if re.match(rf"JobId={number}\s", record)]
    if len(records) != 1:
        raise ValueError(f"{len(records)} records of job {number}: {text!r:.80}")
    text = _JOB_NAME.sub(" ", records[0], count=1)
    text = _FREE_TEXT_OF_JOB.split(text, maxsplit=1)[0]
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
    """Parse nodes. One whose state or memory has another form is a node all the same, without that."""
    found = []
    for record in _records(text, "NodeName"):
        free = _FREE_TEXT.search(record)
        fields = record[: free.start()] if free else record
        name, reason = _field(fields, "NodeName", r"[\w.-]+"), shown(free[1], _MOST_DETAIL) if free else ""
        state = parsed(fields, name, lambda fields: _state(_field(fields, "State")))
        memory_mib = parsed(fields, name, lambda fields: int(_field(fields, "RealMemory", "[0-9]{1,12}")))
        found.append(Node(name, state, reason, memory_mib))
    if not found:
        raise ValueError("no node")
    return tuple(found)


def _records(text: str, head: str) -> list[str]:
    """Return the records, each of which begins a line with `NodeName=`: free text in them may have several lines, also with --oneliner."""
    before, *records = re.split(rf"^(?={head}=)", text, flags=re.MULTILINE)
    if before.strip():
        raise ValueError(f"no {head}=: {before!r:.80}")
    return records


def _state(text: str) -> State:
    """Return the state, and its flags, each once: `DOWN*+DRAIN` is DOWN with NOT_RESPONDING and DRAIN. A last `+` is COMPLETING."""
    if not _STATE.fullmatch(text):
        raise ValueError(f"not of the form {_STATE.pattern}: {text!r:.80}")
    word, *flags = re.findall(r"[A-Z_]+|[?*~#!%$@^-]", f"{text}COMPLETING" if text.endswith("+") else text)
    return State(word, tuple(dict.fromkeys(_MARKS.get(flag, flag) for flag in flags)))


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
