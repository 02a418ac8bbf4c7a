"""The launcher that started this process: torchrun, srun, mpirun, or none; and what torchrun is to be told."""

import contextlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpu_acceptance.control.rank import TORCHRUN, LaunchError, Rank

_TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "MASTER_PORT")
BY_HAND = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_PORT = 29500  # torchrun's own
_FIRST_SLURM_PORT, _NUM_SLURM_PORTS = 20_000, 12_000  # so that two jobs on one node rarely meet; Linux gives those from 32768 on to clients
_TASKS = re.compile(r"(?a:(\d+)(?:\(x\d+\))?)")  # of SLURM_STEP_TASKS_PER_NODE: 4, or 4(x2) for two such nodes
# Each would run a validation again until it passes: seen with torchrun, which restarts all ranks after one failed.
_RESTARTS = {
    "TORCHELASTIC_MAX_RESTARTS": "start torchrun with --max-restarts=0",
    "TORCHELASTIC_RESTART_COUNT": "start a new run",
    "SLURM_RESTART_COUNT": "submit with --no-requeue and start a new run",
}
_SAID = "gpu-acceptance.said"  # beside the folders of a node's ranks


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


# Of launchers that are not asked who a rank is: how many tasks there are, and which of them this one is.
# Flux, MVAPICH2, MVAPICH 3, jsrun of LSF, horovodrun.
_TOTALS = ("FLUX_JOB_SIZE", "MV2_COMM_WORLD_SIZE", "MVP_COMM_WORLD_SIZE", "JSM_NAMESPACE_SIZE", "HOROVOD_SIZE")
_OTHER_SIZES = (*_TOTALS, HYDRA.local_world_size)  # Hydra's on this node
_WITHOUT_SIZE = ("PMIX_RANK", "PALS_RANKID", "ALPS_APP_PE", "PMI_RANK")  # any launcher with PMIx, PALS and ALPS of HPE Cray, and PMI
_OTHER_RANKS = (
    *("FLUX_TASK_RANK", "MV2_COMM_WORLD_RANK", "MVP_COMM_WORLD_RANK", "JSM_NAMESPACE_RANK", "HOROVOD_RANK"),
    *_WITHOUT_SIZE,
)
_ALL_TOTALS = {*_TOTALS, *(one.world_size for one in (SRUN, OPEN_MPI, HYDRA))}
_SAY_WHO = f"or say to each who it is: {', '.join(BY_HAND)}"


def who_am_i(environ: Mapping[str, str] = os.environ) -> Rank:
    """The rank that torchrun, srun, mpirun, mpiexec or the environment made of this process, or a world of one. Raises LaunchError."""
    _refuse_restarts(environ)
    launcher = find_launcher(environ)
    if "TORCHELASTIC_RUN_ID" in environ:
        place = torchrun_rank(environ)
        if launcher and launcher is not BARE:  # its variables are torchrun's own
            _refuse_other_number(launcher, environ, place)
        else:
            _refuse_task_of_other(environ, place.num_nodes)
            if place.num_nodes == 1:
                _refuse_task_of_unknown_number(environ)
        return place
    if launcher is None:
        _refuse_part_of_unknown(environ)
        _refuse_task_of_other(environ, 1)
        _refuse_task_of_unknown_number(environ)
        return Rank()
    place = rank_of(launcher, environ)
    if launcher is not BARE:
        _refuse_other_place(launcher, environ)
    return place


def speaks_for_node(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this rank prints what is wrong with the start, which all ranks of its node see alike. One of them does, asked once.

    torchrun ends all ranks once the first has ended: it must be that one. So the first to leave a file in torchrun's folder prints.
    """
    error_file = Path(environ.get("TORCHELASTIC_ERROR_FILE", ""))
    if error_file.parent.name == environ.get(BARE.local_rank):
        with contextlib.suppress(OSError):
            os.close(os.open(error_file.parents[1] / _SAID, os.O_CREAT | os.O_EXCL))
            return True
        if (error_file.parents[1] / _SAID).exists():
            return False
    local_ranks = (environ.get(one.local_rank) for one in (BARE, OPEN_MPI, HYDRA, SRUN))
    return next((local_rank for local_rank in local_ranks if local_rank), "0") == "0"


def _refuse_restarts(environ: Mapping[str, str]) -> None:
    for variable, remedy in _RESTARTS.items():
        if number(environ, variable, default=0) > 0:
            raise LaunchError(f"{variable}={environ[variable]}: a restarted job runs until it passes, which proves nothing; {remedy}")


def _refuse_part_of_unknown(environ: Mapping[str, str]) -> None:
    """Who has a number among ranks and takes itself for all there is would judge a part as the whole."""
    rank, size = number(environ, BARE.rank, default=0), environ.get(BARE.world_size)
    if rank > 0 or (BARE.rank in environ and not size):
        says = f"{BARE.world_size}={size}" if size else f"{BARE.world_size} is not in the environment"
        raise LaunchError(f"{BARE.rank}={rank}, and {says}: say how many ranks there are, or unset {BARE.rank} for a run of one")


def _refuse_task_of_other(environ: Mapping[str, str], num_nodes: int) -> None:
    """Each task would be a run of its own, and judge a part. `num_nodes`: of this job, one task on each."""
    seen = [name for name in _OTHER_SIZES if number(environ, name, default=1) > num_nodes]
    seen += [name for name in _OTHER_RANKS if number(environ, name, default=0) >= num_nodes]
    if seen:
        raise LaunchError(
            f"{seen[0]}={environ[seen[0]]}: a launcher that is not known here started more tasks than this job has nodes ({num_nodes}): "
            f"start one torchrun per task, with --nnodes; {_SAY_WHO}"
        )


def _refuse_task_of_unknown_number(environ: Mapping[str, str]) -> None:
    """The first of several tasks looks like the only one, where its launcher tells no number of them."""
    seen = next((name for name in _WITHOUT_SIZE if name in environ), "")
    if not seen or environ.keys() & _ALL_TOTALS:
        return
    only, also = f"set {BARE.world_size}=1", f"; {_SAY_WHO}"
    if "TORCHELASTIC_RUN_ID" in environ:
        only, also = f"unset {seen}", ""  # WORLD_SIZE is torchrun's own: of its ranks, and not of the tasks
    elif BARE.world_size in environ:
        return
    raise LaunchError(
        f"{seen}={environ[seen]}: a launcher that is not known here started this task, and no variable says how many there are: "
        f"{only} if it is the only one; else start one torchrun per task, with --nnodes{also}"
    )


def _refuse_other_number(launcher: Launcher, environ: Mapping[str, str], place: Rank) -> None:
    """Each task of an outer launcher is one torchrun, all of one job: several jobs would each judge a part, and none the whole."""
    tasks = number(environ, launcher.world_size)
    if tasks != place.num_nodes:
        raise LaunchError(
            f"{launcher.name} started {tasks} tasks ({launcher.world_size}={tasks}), but torchrun's job has {place.num_nodes} nodes "
            f"(GROUP_WORLD_SIZE={place.num_nodes}): start one torchrun per task, with --nnodes={tasks}; or {tasks} ranks without torchrun"
        )


def _refuse_other_place(launcher: Launcher, environ: Mapping[str, str]) -> None:
    for own, theirs in ((BARE.rank, launcher.rank), (BARE.local_rank, launcher.local_rank), (BARE.world_size, launcher.world_size)):
        if own in environ and environ[own] != environ[theirs]:
            raise LaunchError(f"{launcher.name} says {theirs}={environ[theirs]}, and the environment {own}={environ[own]}: unset {own}")
