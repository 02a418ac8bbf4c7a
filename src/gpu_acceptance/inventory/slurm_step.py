"""A step of this Slurm job and back: a nonce goes out to each node by srun, and each node says it with its own name."""

import os
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gpu_acceptance.inventory.answer import Answer, Missing, Why
from gpu_acceptance.inventory.slurm import JOB, NODE
from gpu_acceptance.inventory.slurm_commands import ask
from gpu_acceptance.inventory.slurm_lines import Node

_NONCE = "GPU_ACCEPTANCE_NONCE"
_LABELLED = re.compile(r"\s*([0-9]+): (.*)")  # srun(1), --label
# --overlap: the step that runs the suite has all that the job has. --immediate: or srun would wait for it for as long as the job lasts.
_OPTIONS = (
    *("--overlap", "--ntasks-per-node=1", "--immediate=30", "--time=1", "--gres=none", "--mpi=none", "--input=none"),
    *("--quiet", "--label"),
)


class RoundTrip(NamedTuple):
    """`error`: why srun itself failed; all nodes are lost then."""

    lost: tuple[str, ...]
    error: str


def make(nodes: Answer[Sequence[Node]], environ: Mapping[str, str] = os.environ) -> Answer[RoundTrip]:
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
