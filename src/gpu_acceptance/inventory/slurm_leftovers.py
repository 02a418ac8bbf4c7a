"""Processes of the job's user that were on the node before the job, and that belong to no step which Slurm knows of.

An epilog should have ended them with the job that they came from.
"""

import os
import re
from collections.abc import Mapping

import psutil

from gpu_acceptance.inventory.answer import Answer, Missing, Why
from gpu_acceptance.inventory.slurm import JOB, own_node
from gpu_acceptance.inventory.slurm_commands import ask, parsed

_ROW = re.compile(r"(?P<pid>[0-9]+|-1)\s+(?P<job>[0-9]+)\s+[\w+.]+\s+[0-9-]+\s+[0-9-]+", re.ASCII)
_HEADER = "PID JOBID STEPID LOCALID GLOBALID"


def read(environ: Mapping[str, str] = os.environ) -> Answer[tuple[str, ...]]:
    """Of this node, by name and pid: `python 4711`. scontrol asks the slurmd of its own node, no controller."""
    node = own_node(environ)
    if isinstance(node, Missing):
        return node
    listed = parsed(ask("scontrol", "listpids", "*", node, environ=environ), pids)
    return listed if isinstance(listed, Missing) else of(os.getuid(), listed, environ.get(JOB, ""), os.getpid())


def pids(text: str) -> dict[int, str]:
    """Process -> its job, of all steps on this node."""
    head, *lines = text.splitlines() or [""]
    rows = [_ROW.fullmatch(line.strip()) for line in lines]
    if head.split() != _HEADER.split() or not all(rows):
        raise ValueError(f"no list of processes: {text!r:.80}")
    return {int(row["pid"]): row["job"] for row in rows if row and row["pid"] != "-1"}  # -1: a step that has no process yet


def of(uid: int, listed: Mapping[int, str], job: str, own: int) -> Answer[tuple[str, ...]]:
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
