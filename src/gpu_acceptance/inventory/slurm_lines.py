"""The forms in which Slurm's commands write, parsed strictly: each function raises ValueError over what is not of its form. Pure."""

import re
from typing import NamedTuple

from gpu_acceptance.inventory import parsing

HOSTS = re.compile(r"[\w.,\[\]-]+", re.ASCII)  # `node[01-16],login`
_CONTROLLER = re.compile(r"Slurmctld\((\w+)\) at (\S+) is (UP|DOWN)", re.ASCII)
_STATE = re.compile(r"([A-Z_]+)((?:\+[A-Z_]+)*)([*~#!%$@^-]?)")
_GRES = re.compile(r"(\w+)(?::[\w.-]+)?:([0-9]{1,9})[KMGT]?(?:\([^()]*\))?", re.ASCII)  # `gpu:h200:8(IDX:0-7)`
_WORDS = re.compile(r"\s(?:Reason|Comment|Extra)=(?P<said>.*)", re.DOTALL)  # from here on a line holds what somebody wrote
_SETTING = re.compile(r"(\w+)\s*= ?(.*)", re.ASCII)
_SHARE = re.compile(r"\sNodes=(\S+) CPU_IDs=(\S+) Mem=([0-9]{1,12}) GRES=(\S*)")


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


def controllers(text: str) -> dict[str, bool]:
    found = {f"{role} at {host}": state == "UP" for role, host, state in _CONTROLLER.findall(text)}
    if not found:
        raise ValueError(f"names none: {text!r:.80}")
    return found


def job(text: str) -> Job:
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
    found = [Share(hosts, len(parsing.cpus_in(cpus)), int(mib), _num_gpus(gres)) for hosts, cpus, mib, gres in _SHARE.findall(part)]
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


def partition(text: str) -> Partition:
    hosts = _field(text, "Nodes", HOSTS.pattern)
    return Partition(_field(text, "PartitionName", r"[\w.-]+"), _field(text, "State", "[A-Z]+"), hosts)


def nodes(text: str) -> tuple[Node, ...]:
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
        parsing.one_line(words["said"][:200]) if words and words["said"].strip() else "",
        int(_field(told, "RealMemory", "[0-9]{1,12}")),
    )


def names(text: str) -> tuple[str, ...]:
    return tuple(_matched(HOSTS, line)[0] for line in text.split())


def config(text: str) -> dict[str, str]:
    found = {match[1]: match[2] for match in map(_SETTING.fullmatch, map(str.strip, text.splitlines())) if match}
    if "TaskPlugin" not in found:
        raise ValueError(f"no TaskPlugin: {text!r:.80}")
    return found


def _matched(pattern: re.Pattern[str], text: str) -> re.Match[str]:
    match = pattern.fullmatch(text)
    if match is None:
        raise ValueError(f"not of the form {pattern.pattern}: {text!r:.80}")
    return match
