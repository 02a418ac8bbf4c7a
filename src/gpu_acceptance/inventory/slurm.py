"""Slurm, as its own commands describe the job, its nodes, and the partition."""

import os
import re
import shlex
import subprocess
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

from gpu_acceptance.inventory import answer
from gpu_acceptance.inventory.answer import Answer, Missing, Why

T = TypeVar("T")

_KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT")  # where the controller is, and who asks
_OPTIONS = ("SLURM_", "SRUN_", "SCONTROL_")  # the job's own: each is an option of a command that runs in it
_TIMEOUT_S = 60.0  # a controller that is down is given up after MessageTimeout, 10 s, for each that slurm.conf names
_MOST_CHARACTERS = 64 << 20  # a node is 0.8 kB
_MOST_TOLD = 200
HOSTS = re.compile(r"[\w.,\[\]-]+", re.ASCII)  # `node[01-16],login`
_CONTROLLER = re.compile(r"Slurmctld\((\w+)\) at (\S+) is (UP|DOWN)", re.ASCII)
_STATE = re.compile(r"([A-Z_]+)((?:\+[A-Z_]+)*)([*~#!%$@^-]?)")
_GRES = re.compile(r"(\w+)(?::[\w.-]+)?:([0-9]{1,9})[KMGT]?(?:\([^()]*\))?", re.ASCII)  # `gpu:h200:8(IDX:0-7)`
_WORDS = re.compile(r"\s(?:Reason|Comment|Extra)=(?P<said>.*)", re.DOTALL)  # from here on a line holds what somebody wrote
_SETTING = re.compile(r"(\w+)\s*= ?(.*)", re.ASCII)
_SHARE = re.compile(r"\sNodes=(\S+) CPU_IDs=(\S+) Mem=([0-9]{1,12}) GRES=(\S*)")
JOB, NODE = "SLURM_JOB_ID", "SLURMD_NODENAME"  # of every process of a job
_NUMBER = re.compile(r"[0-9]{1,10}")


def ask(*command: str, environ: Mapping[str, str] = os.environ, codes: tuple[int, ...] = (0,)) -> Answer[str]:
    """What it printed, and why nothing that counts: it is not there, did not end within 60 s, or ended with another of these codes."""
    name = shlex.join(command)[:80]
    try:
        done = subprocess.run(
            command,
            env=_environment(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="backslashreplace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError:
        return Missing(Why.NOT_THERE, f"{command[0]} is not on PATH")
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return Missing(Why.UNREADABLE, f"{name}: {type(error).__name__}: {error}"[:_MOST_TOLD])
    if done.returncode not in codes or len(done.stdout) > _MOST_CHARACTERS:
        said = " ".join((done.stderr or done.stdout).split())
        return Missing(Why.UNREADABLE, f"{name}: exit code {done.returncode}, {len(done.stdout)} characters: {said}"[:_MOST_TOLD])
    return done.stdout


def parsed(printed: Answer[str], what: str, parse: Callable[[str], T]) -> Answer[T]:
    """Return what `parse` makes of it; it raises ValueError over what is not of such a form. `what` stands in that message."""
    if isinstance(printed, Missing):
        return printed
    try:
        return parse(printed)
    except ValueError as error:
        return Missing(Why.UNREADABLE, f"{what} of Slurm: {error}"[:_MOST_TOLD])


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Times as seconds since the epoch, whatever the time zone of the node."""
    plain = {name: value for name, value in environ.items() if name in _KEPT or not name.startswith(_OPTIONS)}
    return {**plain, "SLURM_TIME_FORMAT": "%s", "LC_ALL": "C"}


class Share(NamedTuple):
    """What a job has of each of these nodes. `memory_mib` 0: Slurm does not count memory."""

    hosts: str
    num_threads: int  # of the machine
    memory_mib: int
    num_gpus: int


class Job(NamedTuple):
    """`ends_s`: since the epoch; None: no limit."""

    partition: str
    hosts: str
    ends_s: int | None
    shares: tuple[Share, ...]


class Node(NamedTuple):
    """`flags`: what stands beside the state, DRAIN or NOT_RESPONDING; `reason`: what whoever set it wrote."""

    name: str
    state: str
    flags: tuple[str, ...]
    reason: str
    memory_mib: int


class Partition(NamedTuple):
    name: str
    state: str
    hosts: str


def _field(text: str, name: str, pattern: str = r"\S*") -> str:
    """The only value of this name: where somebody wrote another into a comment, nobody can say which is Slurm's."""
    found = re.findall(rf"(?:^|\s){re.escape(name)}=(\S*)", text)
    if len(found) != 1 or not re.fullmatch(pattern, found[0], re.ASCII):
        raise ValueError(f"{name}= stands there as {found!r:.80}, wanted once, of the form {pattern}")
    return str(found[0])


def parse_controllers(text: str) -> dict[str, bool]:
    found = {f"{role} at {host}": state == "UP" for role, host, state in _CONTROLLER.findall(text)}
    if not found:
        raise ValueError(f"names none: {text!r:.80}")
    return found


def parse_job(text: str) -> Job:
    ends = _field(text, "EndTime", "[0-9]{1,12}|Unknown|NONE")
    return Job(
        _field(text, "Partition", r"[\w.-]+"),
        _field(text, "NodeList", HOSTS.pattern),
        int(ends) if ends.isdecimal() else None,
        tuple(_shares(text)),
    )


def _shares(text: str) -> list[Share]:
    """They stand between two fields, in which nobody writes what he likes.

    CPU_IDs names threads, also where slurm.conf counts cores as CPUs (seen of 22.05: 0-7 of four CPUs with two threads each).
    """
    _field(text, "JOB_GRES")
    _field(text, "MinCPUsNode")
    part = text.partition(" JOB_GRES=")[2].partition(" MinCPUsNode=")[0]
    found = [Share(hosts, len(answer.cpus_in(cpus)), int(mib), _num_gpus(gres)) for hosts, cpus, mib, gres in _SHARE.findall(part)]
    if not found or part.count(" Nodes=") != len(found) or not all(HOSTS.fullmatch(one.hosts) for one in found):
        raise ValueError(f"{len(found)} shares of nodes in {part!r:.80}")
    return found


def _num_gpus(gres: str) -> int:
    """Of `gpu:2(IDX:0-1)`, `gpu:a:4(IDX:0-3),gpu:b:4(IDX:4,6)`, nothing or `(null)`."""
    if gres in {"", "(null)"}:
        return 0
    if not re.fullmatch(rf"{_GRES.pattern}(?:,{_GRES.pattern})*", gres, re.ASCII):
        raise ValueError(f"no generic resources: {gres!r:.80}")
    return sum(int(number) for name, number in _GRES.findall(gres) if name == "gpu")


def parse_partition(text: str) -> Partition:
    hosts = _field(text, "Nodes", HOSTS.pattern)
    return Partition(_field(text, "PartitionName", r"[\w.-]+"), _field(text, "State", "[A-Z]+"), hosts)


def parse_nodes(text: str) -> tuple[Node, ...]:
    found = tuple(_node(line) for line in text.splitlines() if line.strip())
    if not found:
        raise ValueError("no node")
    return found


def _node(line: str) -> Node:
    words = _WORDS.search(line)
    told = line[: words.start()] if words else line
    state, flags, mark = _matched(_STATE, _field(told, "State")).groups()
    return Node(
        _field(told, "NodeName", r"[\w.-]+"),
        state,
        (*flags.split("+")[1:], *([mark] if mark else [])),
        answer.one_line(words["said"][:200]) if words and words["said"].strip() else "",
        int(_field(told, "RealMemory", "[0-9]{1,12}")),
    )


def names(text: str) -> tuple[str, ...]:
    return tuple(_matched(HOSTS, line)[0] for line in text.split())


def parse_config(text: str) -> dict[str, str]:
    found = {match[1]: match[2] for match in map(_SETTING.fullmatch, map(str.strip, text.splitlines())) if match}
    if "TaskPlugin" not in found:
        raise ValueError(f"no TaskPlugin: {text!r:.80}")
    return found


def _matched(pattern: re.Pattern[str], text: str) -> re.Match[str]:
    match = pattern.fullmatch(text)
    if match is None:
        raise ValueError(f"not of the form {pattern.pattern}: {text!r:.80}")
    return match


class Promise(NamedTuple):
    """What a job has of its node. `memory_mib`: where Slurm does not count memory, all that it says the node has."""

    num_threads: int
    memory_mib: int
    num_gpus: int


def is_in_job(environ: Mapping[str, str] = os.environ) -> bool:
    return bool(environ.get(JOB))


def own_node(environ: Mapping[str, str] = os.environ) -> Answer[str]:
    """The name that Slurm has for the node of this process."""
    name = environ.get(NODE, "")
    return name if HOSTS.fullmatch(name) else Missing(Why.NOT_THERE, f"{NODE}={name!r:.80}: Slurm sets it in each step of a job")


def controllers(environ: Mapping[str, str] = os.environ) -> Answer[dict[str, bool]]:
    """Whether each answers, by place: `primary at head-01`. scontrol(1) ends with 1 where one does not."""
    return parsed(ask("scontrol", "ping", environ=environ, codes=(0, 1)), "controllers", parse_controllers)


def job(environ: Mapping[str, str] = os.environ) -> Answer[Job]:
    number = environ.get(JOB, "")
    if not _NUMBER.fullmatch(number):
        return Missing(Why.NOT_THERE, f"{JOB}={number!r:.80} is no number of a job")
    return parsed(ask("scontrol", "--details", "--oneliner", "show", "job", number, environ=environ), "job", parse_job)


def partition_of(told: Answer[Job], environ: Mapping[str, str] = os.environ) -> Answer[Partition]:
    if isinstance(told, Missing):
        return told
    return parsed(ask("scontrol", "--oneliner", "show", "partition", told.partition, environ=environ), "partition", parse_partition)


def nodes_of(told: Answer[Job] | Answer[Partition], environ: Mapping[str, str] = os.environ) -> Answer[tuple[Node, ...]]:
    """The nodes of a job or of a partition."""
    if isinstance(told, Missing):
        return told
    return _nodes(told.hosts, environ)


def config(environ: Mapping[str, str] = os.environ) -> Answer[dict[str, str]]:
    """slurm.conf as the controller has it, and cgroup.conf where a plugin of it is in use."""
    return parsed(ask("scontrol", "show", "config", environ=environ), "config", parse_config)


def promise(told: Answer[Job], own: Answer[str], environ: Mapping[str, str] = os.environ) -> Answer[Promise]:
    """What the job has of its own node."""
    if isinstance(told, Missing):
        return told
    if isinstance(own, Missing):
        return own
    share, found = _share(told, own, environ), _nodes(own, environ)
    if isinstance(share, Missing):
        return share
    if isinstance(found, Missing):
        return found
    return Promise(share.num_threads, share.memory_mib or found[0].memory_mib, share.num_gpus)


def _share(told: Job, node: str, environ: Mapping[str, str]) -> Answer[Share]:
    for one in told.shares:
        among = parsed(ask("scontrol", "show", "hostnames", one.hosts, environ=environ), "names", names)  # asks no controller
        if isinstance(among, Missing):
            return among
        if node in among:
            return one
    return Missing(Why.NOT_THERE, f"the job has nothing of node {node}: {told.hosts}"[:200])


def _nodes(hosts: str, environ: Mapping[str, str]) -> Answer[tuple[Node, ...]]:
    return parsed(ask("scontrol", "--oneliner", "show", "node", hosts, environ=environ), "nodes", parse_nodes)
