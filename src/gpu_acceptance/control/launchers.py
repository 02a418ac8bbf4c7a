"""What each launcher says to the ranks that it starts, and where they meet. What it does not say is asked for, never guessed."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from gpu_acceptance.control.rank import TORCHRUN, LaunchError, Rank

_TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "MASTER_PORT")
BY_HAND = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_PORT = 29500  # torchrun's own
_FIRST_SLURM_PORT, _NUM_SLURM_PORTS = 20_000, 12_000  # so that two jobs on one node rarely meet; Linux gives those from 32768 on to clients
_TASKS = re.compile(r"(?a:(\d+)(?:\(x\d+\))?)")  # of SLURM_STEP_TASKS_PER_NODE: 4, or 4(x2) for two such nodes


@dataclass(frozen=True)
class Launcher:
    """One that starts every rank itself: its variables for rank, local rank, ranks, ranks of this node, and its words for two things."""

    name: str
    rank: str
    local_rank: str
    world_size: str
    local_world_size: str
    node_by_node: str  # how ranks are numbered so
    pass_on: str  # how a variable comes to all ranks

    def started(self, environ: Mapping[str, str]) -> bool:
        """More than one rank; one alone needs no launcher."""
        return number(environ, self.world_size, default=1) > 1


SRUN = Launcher(
    "srun",
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_STEP_TASKS_PER_NODE",
    "srun --distribution=block",
    "export MASTER_ADDR=HOST",
)
OPEN_MPI = Launcher(
    "mpirun",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "mpirun --map-by slot",
    "mpirun -x MASTER_ADDR=HOST",
)
HYDRA = Launcher(  # of MPICH and Intel MPI
    "mpiexec", "PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE", "MPI_LOCALNRANKS", "mpiexec -ppn N", "mpiexec -genv MASTER_ADDR HOST"
)
BARE = Launcher(
    "", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "RANK = node * LOCAL_WORLD_SIZE + LOCAL_RANK", "MASTER_ADDR=HOST"
)


def find_launcher(environ: Mapping[str, str]) -> Launcher | None:
    """Who started this process as one of several, and is not torchrun. The innermost: mpirun may start its own daemons by srun."""
    if OPEN_MPI.started(environ):
        return OPEN_MPI
    if HYDRA.started(environ) and (HYDRA.local_world_size in environ or not SRUN.started(environ)):  # srun --mpi=pmi2 sets PMI_SIZE too
        return HYDRA
    return next((one for one in (SRUN, BARE) if one.started(environ)), None)


def torchrun_rank(environ: Mapping[str, str]) -> Rank:
    """The rank that torchrun made of this process; its agent hosts the store. Raises LaunchError."""
    if not environ.get("MASTER_ADDR"):
        raise LaunchError("MASTER_ADDR is not in the environment, where torchrun puts the host of its store")
    if environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        raise LaunchError("torchrun's agent hosts no store (TORCHELASTIC_USE_AGENT_STORE is not True): start it without overriding that")
    rank, local_rank, world_size, local_world_size, node, num_nodes, port = (number(environ, name) for name in _TORCHRUN)
    if world_size != local_world_size * num_nodes:
        raise LaunchError(
            f"WORLD_SIZE={world_size}, but LOCAL_WORLD_SIZE={local_world_size} on {num_nodes} nodes: "
            "use the same --nnodes and --nproc-per-node on every node"
        )
    where = (environ["MASTER_ADDR"], port, environ["TORCHELASTIC_RUN_ID"])
    return Rank(rank, local_rank, world_size, local_world_size, node, num_nodes, *where, launcher=TORCHRUN)


def rank_of(launcher: Launcher, environ: Mapping[str, str]) -> Rank:
    """The rank that another launcher made of this process; rank 0 hosts the store. Raises LaunchError."""
    if launcher is BARE and (missing := [name for name in BY_HAND if not environ.get(name)]):
        raise LaunchError(
            f"WORLD_SIZE={environ['WORLD_SIZE']} without torchrun, and without {', '.join(missing)}: each rank wants {', '.join(BY_HAND)}; "
            "or start one torchrun per node"
        )
    rank, local_rank, world_size = (number(environ, name) for name in (launcher.rank, launcher.local_rank, launcher.world_size))
    local_world_size = _slurm_tasks(environ) if launcher is SRUN else number(environ, launcher.local_world_size)
    if local_world_size < 1 or world_size % local_world_size:
        raise LaunchError(
            f"{launcher.world_size}={world_size}, but {launcher.local_world_size}={local_world_size}: start as many ranks on every node"
        )
    node, position = divmod(rank, local_world_size)
    if position != local_rank or rank >= world_size:
        raise LaunchError(
            f"{launcher.rank}={rank} is {launcher.local_rank}={local_rank} of {local_world_size} ranks on this node, {world_size} in all: "
            f"number ranks node by node ({launcher.node_by_node})"
        )
    num_nodes = world_size // local_world_size
    where = (_store_host(launcher, environ, num_nodes), _store_port(launcher, environ), _run_id(launcher, environ))
    return Rank(rank, local_rank, world_size, local_world_size, node, num_nodes, *where, launcher=launcher.name)


def number(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    """A variable that holds a whole number. Raises LaunchError."""
    text = environ.get(name)
    if text is None and default is not None:
        return default
    if text is None or not (text.isascii() and text.isdecimal()):
        raise LaunchError(f"{name}={text!r} in the environment is not a whole number from 0 up")
    return int(text)


def _slurm_tasks(environ: Mapping[str, str]) -> int:
    text = environ.get(SRUN.local_world_size, "")
    groups = [_TASKS.fullmatch(group) for group in text.split(",")]
    sizes = {group[1] for group in groups if group}
    if len(sizes) != 1 or not all(groups):
        raise LaunchError(f"{SRUN.local_world_size}={text!r}: start as many tasks on every node (srun --ntasks-per-node=N)")
    return int(sizes.pop())


def _store_host(launcher: Launcher, environ: Mapping[str, str], num_nodes: int) -> str:
    """As the user says; else this host, of one node, or the first of Slurm's nodes, where rank 0 is."""
    if address := environ.get("MASTER_ADDR"):
        return address
    if num_nodes == 1:
        return "127.0.0.1"
    if launcher is SRUN:
        return first_host(environ.get("SLURM_STEP_NODELIST", ""))
    raise LaunchError(
        f"{launcher.name} started ranks on {num_nodes} nodes, and MASTER_ADDR is not in the environment: "
        f"name the host of rank 0 to all of them ({launcher.pass_on})"
    )


def first_host(nodes: str) -> str:
    """`node-[03-07,12],login` -> `node-03`. Raises LaunchError."""
    first = re.match(r"((?:[^,\[\]]|\[[^\[\]]+\])+)(?:,|$)", nodes)
    host = re.sub(r"\[([^,\-\]]+)[^\]]*\]", r"\1", first[1]) if first else ""
    if not re.fullmatch(r"(?a:[\w.\-]+)", host):
        raise LaunchError(f"SLURM_STEP_NODELIST={nodes!r} names no first node: say where rank 0 is ({SRUN.pass_on})")
    return host


def _store_port(launcher: Launcher, environ: Mapping[str, str]) -> int:
    if environ.get("MASTER_PORT"):
        port = number(environ, "MASTER_PORT")
        if not 1 <= port <= 65535:
            raise LaunchError(f"MASTER_PORT={port}: a port is from 1 to 65535")
        return port
    if launcher is SRUN:
        return _FIRST_SLURM_PORT + (number(environ, "SLURM_JOB_ID") + number(environ, "SLURM_STEP_ID")) % _NUM_SLURM_PORTS
    return _PORT


def _run_id(launcher: Launcher, environ: Mapping[str, str]) -> str:
    """Unlike that of another run, as far as the launcher has a name for it."""
    if launcher is SRUN:
        return f"slurm-{environ.get('SLURM_JOB_ID')}.{environ.get('SLURM_STEP_ID')}"
    if launcher is OPEN_MPI:
        return f"mpirun-{environ.get('PMIX_NAMESPACE') or environ.get('OMPI_MCA_ess_base_jobid')}"  # Open MPI 5, 4
    if launcher is HYDRA and (job := environ.get("I_MPI_HYDRA_UUID")):  # of Intel MPI; MPICH has none
        return f"mpiexec-{job}"
    return launcher.name or "none"
