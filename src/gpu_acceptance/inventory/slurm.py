"""What Slurm says of its controllers, of the job that this process is in, of the job's nodes and of its own configuration."""

import os
import re
from collections.abc import Mapping
from typing import NamedTuple

from gpu_acceptance.inventory import slurm_lines
from gpu_acceptance.inventory.answer import Answer, Missing, Why
from gpu_acceptance.inventory.slurm_commands import ask, parsed
from gpu_acceptance.inventory.slurm_lines import HOSTS, Job, Node, Partition, Share

JOB, NODE = "SLURM_JOB_ID", "SLURMD_NODENAME"  # of every process of a job
_NUMBER = re.compile(r"[0-9]{1,10}")


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
    return parsed(ask("scontrol", "ping", environ=environ, codes=(0, 1)), slurm_lines.controllers)


def job(environ: Mapping[str, str] = os.environ) -> Answer[Job]:
    number = environ.get(JOB, "")
    if not _NUMBER.fullmatch(number):
        return Missing(Why.NOT_THERE, f"{JOB}={number!r:.80} is no number of a job")
    return parsed(ask("scontrol", "--details", "--oneliner", "show", "job", number, environ=environ), slurm_lines.job)


def partition_of(told: Answer[Job], environ: Mapping[str, str] = os.environ) -> Answer[Partition]:
    if isinstance(told, Missing):
        return told
    return parsed(ask("scontrol", "--oneliner", "show", "partition", told.partition, environ=environ), slurm_lines.partition)


def nodes_of(told: Answer[Job] | Answer[Partition], environ: Mapping[str, str] = os.environ) -> Answer[tuple[Node, ...]]:
    """The nodes of a job or of a partition."""
    if isinstance(told, Missing):
        return told
    return _nodes(told.hosts, environ)


def config(environ: Mapping[str, str] = os.environ) -> Answer[dict[str, str]]:
    """slurm.conf as the controller has it, and cgroup.conf where a plugin of it is in use."""
    return parsed(ask("scontrol", "show", "config", environ=environ), slurm_lines.config)


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
        among = parsed(ask("scontrol", "show", "hostnames", one.hosts, environ=environ), slurm_lines.names)  # asks no controller
        if isinstance(among, Missing):
            return among
        if node in among:
            return one
    return Missing(Why.NOT_THERE, f"the job has nothing of node {node}: {told.hosts}"[:200])


def _nodes(hosts: str, environ: Mapping[str, str]) -> Answer[tuple[Node, ...]]:
    return parsed(ask("scontrol", "--oneliner", "show", "node", hosts, environ=environ), slurm_lines.nodes)
