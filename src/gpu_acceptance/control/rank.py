"""The rank of this process, by the variables of torchrun, srun, mpirun or another launcher; and reasons not to start a run."""

import contextlib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpu_acceptance.base.text import named
from gpu_acceptance.inventory.system import hostname

USAGE, NOT_WRITABLE, INTERRUPTED, INCOMPLETE = 4, 3, 2, 6  # exit codes
JOIN_S = 60.0  # for all ranks to say hello, unless --join-timeout says more: nodes of one job start within seconds of each other
TORCHRUN = "torchrun"
_TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "MASTER_PORT")
_BY_HAND = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
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


def interrupted(reason: str) -> "RefusedError":
    return RefusedError(f"interrupted by {reason} before the ranks had agreed on what to run", INTERRUPTED)


class RefusedError(ValueError):
    """The run may not start. Raised before any GPU is touched, with the same text and exit code on every rank.

    `run_id` is set where rank 0 knows that ranks are missing: all ranks note in that folder that they heard the refusal.
    """

    def __init__(self, message: str, exit_code: int = USAGE, run_id: str = "") -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.run_id = run_id


class JoinError(RefusedError):
    """This rank cannot reach the others, or their leader is gone. It finds that out by itself."""

    def __init__(self, message: str, *, is_cut_off: bool) -> None:
        super().__init__(message, INCOMPLETE)
        self.is_cut_off = is_cut_off


class LaunchError(ValueError):
    """The launcher started this process in a way that cannot work; the text says what was seen and what is allowed."""


@dataclass(frozen=True)
class Patience:
    """The time that ranks wait for missing ranks, and the function that reports the wait to people."""

    join_s: float = JOIN_S
    say: Callable[[str], None] = lambda line: None


@dataclass(frozen=True)
class Rank:
    """One rank of the job. Ranks are numbered node by node. `store_port` 0: no launcher hosts a store (a world of one)."""

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    node: int = 0
    num_nodes: int = 1
    store_host: str = "127.0.0.1"
    store_port: int = 0
    run_id: str = "none"  # the launcher's own, so that two runs on one store never meet
    launcher: str = ""  # the program whose end ends the run; empty where each rank was started by itself

    @property
    def host(self) -> str:
        return hostname()

    @property
    def node_name(self) -> str:
        """`node 1 (node-01, ranks 8-15)`."""
        first = self.rank - self.local_rank
        return f"node {self.node} ({self.host}, {named('rank', range(first, first + self.local_world_size))})"

    @property
    def has_agent(self) -> bool:
        """The launcher hosts the store: torchrun alone does. Else a process does that rank 0 starts."""
        return self.launcher == TORCHRUN

    @property
    def has_own_store(self) -> bool:
        """A process that rank 0 starts hosts the store."""
        return self.store_port != 0 and not self.has_agent


@dataclass(frozen=True)
class _Launcher:
    """A launcher that starts every rank itself: its variables for rank, local rank and sizes, and its options for two remedies."""

    name: str
    rank: str
    local_rank: str
    world_size: str
    local_world_size: str
    node_by_node: str  # numbers ranks node by node
    pass_on: str  # hands a variable to all ranks

    named_by: tuple[str, ...] = ()  # variables, of which the first that is there tells this run from others

    def started(self, environ: Mapping[str, str]) -> bool:
        """It started more than one rank; one alone needs no launcher."""
        return _number(environ, self.world_size, default=1) > 1

    def run_id(self, environ: Mapping[str, str]) -> str:
        """Return a name that differs from other runs, as far as the launcher has one."""
        if self is _SRUN:
            return f"slurm-{environ.get('SLURM_JOB_ID')}.{environ.get('SLURM_STEP_ID')}"
        number = next((environ[name] for name in self.named_by if environ.get(name)), "")
        return f"{self.name}-{number}" if number else self.name or "none"


_SRUN = _Launcher(
    *("srun", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE"),
    *("srun --distribution=block", "export MASTER_ADDR=HOST"),
)
_OPEN_MPI = _Launcher(
    *("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    *("mpirun --map-by slot", "mpirun -x MASTER_ADDR=HOST"),
    ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"),  # Open MPI 5, 4
)
_HYDRA = _Launcher(  # of MPICH and Intel MPI
    *("mpiexec", "PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE", "MPI_LOCALNRANKS"),
    *("mpiexec -ppn N", "mpiexec -genv MASTER_ADDR HOST"),
    ("I_MPI_HYDRA_UUID",),  # of Intel MPI; MPICH has none
)
_BARE = _Launcher(
    *("", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    *("RANK = node * LOCAL_WORLD_SIZE + LOCAL_RANK", "MASTER_ADDR=HOST"),
)
# Launchers whose ranks are not read here: the number of tasks, and the number of this task.
# Flux, MVAPICH2, MVAPICH 3, jsrun of LSF, horovodrun.
_TOTALS = ("FLUX_JOB_SIZE", "MV2_COMM_WORLD_SIZE", "MVP_COMM_WORLD_SIZE", "JSM_NAMESPACE_SIZE", "HOROVOD_SIZE")
_OTHER_SIZES = (*_TOTALS, _HYDRA.local_world_size)  # Hydra's on this node
_WITHOUT_SIZE = ("PMIX_RANK", "PALS_RANKID", "ALPS_APP_PE", "PMI_RANK")  # any launcher with PMIx, PALS and ALPS of HPE Cray, and PMI
_OTHER_RANKS = (
    *("FLUX_TASK_RANK", "MV2_COMM_WORLD_RANK", "MVP_COMM_WORLD_RANK", "JSM_NAMESPACE_RANK", "HOROVOD_RANK"),
    *_WITHOUT_SIZE,
)
_ALL_TOTALS = {*_TOTALS, *(one.world_size for one in (_SRUN, _OPEN_MPI, _HYDRA))}
_SAY_WHO = f"or say to each who it is: {', '.join(_BY_HAND)}"


def who_am_i(environ: Mapping[str, str] = os.environ) -> Rank:
    """Return the rank that a launcher or the environment made of this process, or a world of one. Raises LaunchError."""
    for variable, remedy in _RESTARTS.items():
        if _number(environ, variable, default=0) > 0:
            raise LaunchError(f"{variable}={environ[variable]}: a restarted job runs until it passes, which proves nothing; {remedy}")
    launcher = _find_launcher(environ)
    if "TORCHELASTIC_RUN_ID" in environ:
        place = _rank_of_torchrun(environ)
        if launcher and launcher is not _BARE:  # its variables are torchrun's own
            tasks = _number(environ, launcher.world_size)
            if tasks != place.num_nodes:  # several jobs of torchrun, of which each would judge a part, and none the whole
                raise LaunchError(
                    f"{launcher.name} started {tasks} tasks ({launcher.world_size}={tasks}), but torchrun's job has {place.num_nodes} "
                    f"nodes (GROUP_WORLD_SIZE={place.num_nodes}): start one torchrun per task, with --nnodes={tasks}; "
                    f"or {tasks} ranks without torchrun"
                )
        else:
            _refuse_task_of_other(environ, place.num_nodes)
        return place
    if launcher is None:
        rank, size = _number(environ, _BARE.rank, default=0), environ.get(_BARE.world_size)
        if rank > 0 or (_BARE.rank in environ and not size):  # as a world of one it would judge a part as the whole
            says = f"{_BARE.world_size}={size}" if size else f"{_BARE.world_size} is not in the environment"
            raise LaunchError(f"{_BARE.rank}={rank}, and {says}: say how many ranks there are, or unset {_BARE.rank} for a run of one")
        _refuse_task_of_other(environ, 1)
        return Rank()
    place = _rank_of(launcher, environ)
    for own, theirs in ((_BARE.rank, launcher.rank), (_BARE.local_rank, launcher.local_rank), (_BARE.world_size, launcher.world_size)):
        if own in environ and environ[own] != environ[theirs]:
            raise LaunchError(f"{launcher.name} says {theirs}={environ[theirs]}, and the environment {own}={environ[own]}: unset {own}")
    return place


def speaks_for_node(environ: Mapping[str, str] = os.environ) -> bool:
    """Return True on the one rank of a node that prints a problem of the start, which all its ranks see alike. To be asked once.

    torchrun ends all ranks once the first has ended: it must be that one. So the first to leave a file in torchrun's folder prints.
    """
    error_file = Path(environ.get("TORCHELASTIC_ERROR_FILE", ""))
    if error_file.parent.name == environ.get(_BARE.local_rank):
        said = error_file.parents[1] / _SAID
        with contextlib.suppress(OSError):
            os.close(os.open(said, os.O_CREAT | os.O_EXCL))
            return True
        if said.exists():
            return False
    local_ranks = (environ.get(one.local_rank) for one in (_BARE, _OPEN_MPI, _HYDRA, _SRUN))
    return next((local_rank for local_rank in local_ranks if local_rank), "0") == "0"


def _find_launcher(environ: Mapping[str, str]) -> _Launcher | None:
    """Return the launcher, other than torchrun, that started several ranks. The innermost: mpirun may start its own daemons by srun."""
    if _OPEN_MPI.started(environ):
        return _OPEN_MPI
    if _HYDRA.started(environ) and (_HYDRA.local_world_size in environ or not _SRUN.started(environ)):  # srun --mpi=pmi2 sets PMI_SIZE too
        return _HYDRA
    return next((one for one in (_SRUN, _BARE) if one.started(environ)), None)


def _rank_of_torchrun(environ: Mapping[str, str]) -> Rank:
    if not environ.get("MASTER_ADDR"):
        raise LaunchError("MASTER_ADDR is not in the environment, where torchrun puts the host of its store")
    if environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        raise LaunchError("torchrun's agent hosts no store (TORCHELASTIC_USE_AGENT_STORE is not True): start it without overriding that")
    rank, local_rank, world_size, local_world_size, node, num_nodes, port = (_number(environ, name) for name in _TORCHRUN)
    if world_size != local_world_size * num_nodes:
        raise LaunchError(
            f"WORLD_SIZE={world_size}, but LOCAL_WORLD_SIZE={local_world_size} on {num_nodes} nodes: "
            "use the same --nnodes and --nproc-per-node on every node"
        )
    where = (environ["MASTER_ADDR"], port, environ["TORCHELASTIC_RUN_ID"])
    return Rank(rank, local_rank, world_size, local_world_size, node, num_nodes, *where, launcher=TORCHRUN)


def _rank_of(launcher: _Launcher, environ: Mapping[str, str]) -> Rank:
    """Return the rank that another launcher made of this process; rank 0 hosts the store."""
    if launcher is _BARE and (missing := [name for name in _BY_HAND if not environ.get(name)]):
        raise LaunchError(
            f"WORLD_SIZE={environ['WORLD_SIZE']} without torchrun, and without {', '.join(missing)}: "
            f"each rank wants {', '.join(_BY_HAND)}; or start one torchrun per node"
        )
    rank, local_rank, world_size = (_number(environ, name) for name in (launcher.rank, launcher.local_rank, launcher.world_size))
    local_world_size = _slurm_tasks(environ) if launcher is _SRUN else _number(environ, launcher.local_world_size)
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
    where = (_store_host(launcher, environ, num_nodes), _store_port(launcher, environ), launcher.run_id(environ))
    return Rank(rank, local_rank, world_size, local_world_size, node, num_nodes, *where, launcher=launcher.name)


def _number(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environ.get(name)
    if text is None and default is not None:
        return default
    if text is None or not (text.isascii() and text.isdecimal()):
        raise LaunchError(f"{name}={text!r} in the environment is not a whole number from 0 up")
    return int(text)


def _slurm_tasks(environ: Mapping[str, str]) -> int:
    text = environ.get(_SRUN.local_world_size, "")
    groups = [_TASKS.fullmatch(group) for group in text.split(",")]
    sizes = {group[1] for group in groups if group}
    if len(sizes) != 1 or not all(groups):
        raise LaunchError(f"{_SRUN.local_world_size}={text!r}: start as many tasks on every node (srun --ntasks-per-node=N)")
    return int(sizes.pop())


def _store_host(launcher: _Launcher, environ: Mapping[str, str], num_nodes: int) -> str:
    """Return MASTER_ADDR; else this host for one node, or the first of Slurm's nodes (`node-[03-07,12],login` -> `node-03`)."""
    if address := environ.get("MASTER_ADDR"):
        return address
    if num_nodes == 1:
        return "127.0.0.1"
    if launcher is not _SRUN:
        raise LaunchError(
            f"{launcher.name} started ranks on {num_nodes} nodes, and MASTER_ADDR is not in the environment: "
            f"name the host of rank 0 to all of them ({launcher.pass_on})"
        )
    nodes = environ.get("SLURM_STEP_NODELIST", "")
    first = re.match(r"((?:[^,\[\]]|\[[^\[\]]+\])+)(?:,|$)", nodes)
    host = re.sub(r"\[([^,\-\]]+)[^\]]*\]", r"\1", first[1]) if first else ""
    if not re.fullmatch(r"(?a:[\w.\-]+)", host):
        raise LaunchError(f"SLURM_STEP_NODELIST={nodes!r} names no first node: say where rank 0 is ({_SRUN.pass_on})")
    return host


def _store_port(launcher: _Launcher, environ: Mapping[str, str]) -> int:
    if not environ.get("MASTER_PORT"):
        number_of_step = (_number(environ, name) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID")) if launcher is _SRUN else None
        return _FIRST_SLURM_PORT + sum(number_of_step) % _NUM_SLURM_PORTS if number_of_step else _PORT
    port = _number(environ, "MASTER_PORT")
    if not 1 <= port <= 65535:
        raise LaunchError(f"MASTER_PORT={port}: a port is from 1 to 65535")
    return port


def _refuse_task_of_other(environ: Mapping[str, str], num_nodes: int) -> None:
    """Refuse one of several tasks: each would be a run of its own, and judge a part. `num_nodes`: of this job, one task on each."""
    seen = [name for name in _OTHER_SIZES if _number(environ, name, default=1) > num_nodes]
    seen += [name for name in _OTHER_RANKS if _number(environ, name, default=0) >= num_nodes]
    if seen:
        raise LaunchError(
            f"{seen[0]}={environ[seen[0]]}: a launcher that is not known here started more tasks than this job has nodes ({num_nodes}): "
            f"start one torchrun per task, with --nnodes; {_SAY_WHO}"
        )
    unsized = next((name for name in _WITHOUT_SIZE if name in environ), "")
    if num_nodes > 1 or not unsized or environ.keys() & _ALL_TOTALS:
        return
    # The first of several tasks looks like the only one, where its launcher does not tell their number.
    only, also = f"set {_BARE.world_size}=1", f"; {_SAY_WHO}"
    if "TORCHELASTIC_RUN_ID" in environ:
        only, also = f"unset {unsized}", ""  # WORLD_SIZE counts torchrun's ranks, not the tasks
    elif _BARE.world_size in environ:
        return
    raise LaunchError(
        f"{unsized}={environ[unsized]}: a launcher that is not known here started this task, and no variable says how many there are: "
        f"{only} if it is the only one; else start one torchrun per task, with --nnodes{also}"
    )
