"""Who am I: the rank that a launcher made of this process. Reads the environment, nothing else."""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from gpu_acceptance.ranges import named

# Each would run a validation again until it passes: seen with torchrun, which restarts all ranks after one failed.
_RESTARTS = {
    "TORCHELASTIC_MAX_RESTARTS": "start torchrun with --max-restarts=0",
    "TORCHELASTIC_RESTART_COUNT": "start a new run",
    "SLURM_RESTART_COUNT": "submit with --no-requeue and start a new run",
}
_TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "MASTER_PORT")
_BARE_LAUNCHERS = {"srun": "SLURM_STEP_NUM_TASKS", "mpirun": "OMPI_COMM_WORLD_SIZE", "mpiexec": "PMI_SIZE"}  # the last: MPICH, Intel MPI


class LaunchError(ValueError):
    """The way this process was started; the text says what was seen and what is allowed."""


@dataclass(frozen=True)
class Rank:
    """One rank as its launcher promised it. `store_port` 0: nobody hosts a store yet (a world of one)."""

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    node: int = 0
    num_nodes: int = 1
    store_host: str = "127.0.0.1"
    store_port: int = 0
    run_id: str = "none"  # the launcher's own, so that two runs on one store never meet

    @property
    def host(self) -> str:
        return socket.gethostname()

    @property
    def node_name(self) -> str:
        """`node 1 (node-01, ranks 8-15)`: torchrun numbers the ranks node by node."""
        first = self.rank - self.local_rank
        return f"node {self.node} ({self.host}, {named('rank', range(first, first + self.local_world_size))})"


def who_am_i(environ: Mapping[str, str] = os.environ) -> Rank:
    """The rank that torchrun made of this process, or a world of one. Raises LaunchError."""
    _refuse_restarts(environ)
    if "TORCHELASTIC_RUN_ID" in environ:
        return _torchrun_rank(environ)
    for launcher, variable in _BARE_LAUNCHERS.items():
        if _number(environ, variable, default=1) > 1:
            raise LaunchError(
                f"started by {launcher} with {variable}={environ[variable]}, but without torchrun: "
                "start one torchrun per node, its agent hosts the control plane that must outlive every rank"
            )
    if _number(environ, "WORLD_SIZE", default=1) > 1:
        raise LaunchError(f"WORLD_SIZE={environ['WORLD_SIZE']} without torchrun (no TORCHELASTIC_RUN_ID): start one torchrun per node")
    return Rank()


def _refuse_restarts(environ: Mapping[str, str]) -> None:
    for variable, remedy in _RESTARTS.items():
        if _number(environ, variable, default=0) > 0:
            raise LaunchError(f"{variable}={environ[variable]}: a restarted job runs until it passes, which proves nothing; {remedy}")


def _torchrun_rank(environ: Mapping[str, str]) -> Rank:
    if not environ.get("MASTER_ADDR"):
        raise LaunchError("MASTER_ADDR is not in the environment, where torchrun puts the host of its store")
    if environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        raise LaunchError("torchrun's agent hosts no store (TORCHELASTIC_USE_AGENT_STORE is not True): start it without overriding that")
    rank, local_rank, world_size, local_world_size, node, num_nodes, port = (_number(environ, name) for name in _TORCHRUN)
    if world_size != local_world_size * num_nodes:
        raise LaunchError(
            f"WORLD_SIZE={world_size}, but LOCAL_WORLD_SIZE={local_world_size} on {num_nodes} nodes: "
            "use the same --nproc-per-node on every node"
        )
    return Rank(
        rank, local_rank, world_size, local_world_size, node, num_nodes, environ["MASTER_ADDR"], port, environ["TORCHELASTIC_RUN_ID"]
    )


def _number(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environ.get(name)
    if text is None and default is not None:
        return default
    if text is None or not (text.isascii() and text.isdecimal()):
        raise LaunchError(f"{name}={text!r} in the environment is not a whole number from 0 up")
    return int(text)
