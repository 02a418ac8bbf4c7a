"""Who am I: the rank that a launcher made of this process. Reads the environment, nothing else."""

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from gpu_acceptance.control.launchers import BARE, BY_HAND, HYDRA, OPEN_MPI, SRUN, Launcher, find_launcher, number, rank_of, torchrun_rank
from gpu_acceptance.control.rank import LaunchError, Rank

# Each would run a validation again until it passes: seen with torchrun, which restarts all ranks after one failed.
_RESTARTS = {
    "TORCHELASTIC_MAX_RESTARTS": "start torchrun with --max-restarts=0",
    "TORCHELASTIC_RESTART_COUNT": "start a new run",
    "SLURM_RESTART_COUNT": "submit with --no-requeue and start a new run",
}
_SAID = "gpu-acceptance.said"  # beside the folders of a node's ranks
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
