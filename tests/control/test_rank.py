import pytest

from gpu_acceptance.control.rank import LaunchError, Rank, speaks_for_node, who_am_i

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "job-17",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TORCHELASTIC_MAX_RESTARTS": "0",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "RANK": "11",
    "LOCAL_RANK": "3",
    "WORLD_SIZE": "16",
    "LOCAL_WORLD_SIZE": "8",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "MASTER_ADDR": "node-00",
    "MASTER_PORT": "29400",
}


def environment(*parts):
    """Return variables as text; None is a variable that is not there."""
    merged = {name: value for part in parts for name, value in part.items()}
    return {name: str(value) for name, value in merged.items() if value is not None}


def srun(rank, *, nodes="node[03-04]", **changes):
    """The variables of Slurm 22.05 for a task of 2 nodes with 8 tasks each."""
    number = {"SLURM_PROCID": rank, "SLURM_LOCALID": rank % 8, "SLURM_STEP_NUM_TASKS": 16, "SLURM_NODEID": rank // 8}
    job = {"SLURM_JOB_ID": 4711, "SLURM_STEP_ID": 2, "SLURM_STEP_TASKS_PER_NODE": "8(x2)", "SLURM_STEP_NODELIST": nodes}
    return environment(number, job, changes)


def open_mpi(rank, **changes):
    number = {"OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_LOCAL_RANK": rank % 8, "OMPI_COMM_WORLD_SIZE": 16}
    job = {"OMPI_COMM_WORLD_LOCAL_SIZE": 8, "OMPI_MCA_ess_base_jobid": 729874433, "MASTER_ADDR": "node-07"}
    return environment(number, job, changes)


def hydra(rank, **changes):
    """The variables of mpiexec of MPICH 4 and of Intel MPI 2021.18."""
    number = {"PMI_RANK": rank, "MPI_LOCALRANKID": rank % 8, "PMI_SIZE": 16, "MPI_LOCALNRANKS": 8, "MASTER_ADDR": "node-07"}
    return environment(number, changes)


def bare(rank, **changes):
    number = {"RANK": rank, "LOCAL_RANK": rank % 8, "WORLD_SIZE": 16, "LOCAL_WORLD_SIZE": 8}
    return environment(number, {"MASTER_ADDR": "node-07", "MASTER_PORT": 29501}, changes)


def of_16(host, port, run_id, launcher):
    """Rank 11 of 2 nodes of 8."""
    return Rank(11, 3, 16, 8, 1, 2, host, port, run_id, launcher)


OF_TORCHRUN = of_16("node-00", 29400, "job-17", "torchrun")
BY_SRUN = of_16("node03", 20000 + 4711 + 2, "slurm-4711.2", "srun")
BY_MPIRUN = of_16("node-07", 29500, "mpirun-729874433", "mpirun")
DAEMON_OF_SRUN = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}


@pytest.mark.parametrize(
    "outer",
    [
        {},
        {"FLUX_JOB_SIZE": "2", "FLUX_TASK_RANK": "1"},
        {"PMIX_RANK": "1"},
        {"PALS_RANKID": "0"},
        {"PMI_RANK": "0", "MPI_LOCALNRANKS": "1"},
        srun(1, SLURM_STEP_NUM_TASKS=2, SLURM_STEP_TASKS_PER_NODE="1(x2)"),
        open_mpi(1, OMPI_COMM_WORLD_SIZE=2),
        {"SLURM_STEP_NUM_TASKS": "1"},
    ],
)
def test_torchrun_alone_and_one_in_each_task_of_a_launcher(outer):
    assert who_am_i({**outer, **TORCHRUN}) == OF_TORCHRUN
    assert not OF_TORCHRUN.has_own_store


def test_a_node_is_named_with_its_host_and_ranks(monkeypatch):
    monkeypatch.setattr("socket.gethostname", lambda: "node-01")
    assert OF_TORCHRUN.node_name == "node 1 (node-01, ranks 8-15)"
    assert Rank().node_name == "node 0 (node-01, rank 0)"


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"WORLD_SIZE": "1"},
        {"SLURM_STEP_NUM_TASKS": "1", "SLURM_RESTART_COUNT": "0"},
        {"SLURM_STEP_NUM_TASKS": "1", "PMIX_RANK": "0"},  # srun --mpi=pmix
        {"OMPI_COMM_WORLD_SIZE": "1", "PMIX_RANK": "0"},
        {"PMI_SIZE": "1", "PMI_RANK": "0", "MPI_LOCALNRANKS": "1"},
        {"WORLD_SIZE": "1", "PALS_RANKID": "0"},
        open_mpi(0, OMPI_COMM_WORLD_SIZE=1),
        bare(0, WORLD_SIZE=1),
        srun(0, SLURM_STEP_NUM_TASKS=1),
    ],
)
def test_one_rank_needs_no_launcher(environ):
    assert who_am_i(environ) == Rank()
    assert not Rank().has_own_store


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (srun(11), BY_SRUN),
        (srun(11, MASTER_ADDR="192.0.2.3", MASTER_PORT=29400), of_16("192.0.2.3", 29400, "slurm-4711.2", "srun")),
        (srun(11, PMI_SIZE=16, PMI_RANK=11), BY_SRUN),  # --mpi=pmi2
        (srun(11, RANK=11, LOCAL_RANK=3, WORLD_SIZE=16), BY_SRUN),  # the same once more
        (open_mpi(11), BY_MPIRUN),
        (open_mpi(11, PMIX_NAMESPACE="prterun-9@1"), of_16("node-07", 29500, "mpirun-prterun-9@1", "mpirun")),
        ({**DAEMON_OF_SRUN, **open_mpi(11)}, BY_MPIRUN),
        ({**DAEMON_OF_SRUN, **hydra(11)}, of_16("node-07", 29500, "mpiexec", "mpiexec")),
        (hydra(11, MASTER_PORT=29400), of_16("node-07", 29400, "mpiexec", "mpiexec")),
        (hydra(11, I_MPI_HYDRA_UUID="445c0000-6b75"), of_16("node-07", 29500, "mpiexec-445c0000-6b75", "mpiexec")),
        (bare(11), of_16("node-07", 29501, "none", "")),
    ],
)
def test_ranks_of_other_launchers(environ, expected):
    place = who_am_i(environ)
    assert place == expected
    assert place.has_own_store
    assert not place.has_agent


@pytest.mark.parametrize(
    ("environ", "host"),
    [
        (srun(0, nodes="login"), "login"),
        (srun(0, nodes="node[03-07,12],login"), "node03"),
        (srun(0, nodes="node-[12,14-15]"), "node-12"),
        (srun(0, nodes="rack[1-2]-n[004-008]-ib"), "rack1-n004-ib"),
        (srun(0, nodes="gpu7,gpu[1-2]"), "gpu7"),
        # One node needs no address.
        (srun(3, SLURM_STEP_NUM_TASKS=8, SLURM_STEP_TASKS_PER_NODE=8, SLURM_STEP_NODELIST=None), "127.0.0.1"),
        (open_mpi(3, OMPI_COMM_WORLD_SIZE=8, MASTER_ADDR=None), "127.0.0.1"),
        (hydra(3, PMI_SIZE=8, MASTER_ADDR=None), "127.0.0.1"),
    ],
)
def test_the_host_of_the_store(environ, host):
    assert who_am_i(environ).store_host == host


NO_NUMBER = "in the environment is not a whole number from 0 up"
RESTARTED = "a restarted job runs until it passes, which proves nothing"
UNEQUAL_TASKS = "start as many tasks on every node (srun --ntasks-per-node=N)"
UNEQUAL_RANKS = "start as many ranks on every node"
UNKNOWN = "a launcher that is not known here started"
WHO = "RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT"
NO_SIZE = f"{UNKNOWN} this task, and no variable says how many there are"
PER_TASK = "start one torchrun per task, with --nnodes"
TORCHRUN_OF_1 = {**TORCHRUN, "WORLD_SIZE": "8", "RANK": "1", "LOCAL_RANK": "1", "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1"}
REFUSED = [
    ({**TORCHRUN, "TORCHELASTIC_MAX_RESTARTS": "3"}, f"TORCHELASTIC_MAX_RESTARTS=3: {RESTARTED}; start torchrun with --max-restarts=0"),
    ({**TORCHRUN, "TORCHELASTIC_RESTART_COUNT": "1"}, f"TORCHELASTIC_RESTART_COUNT=1: {RESTARTED}; start a new run"),
    ({**TORCHRUN, "SLURM_RESTART_COUNT": "2"}, f"SLURM_RESTART_COUNT=2: {RESTARTED}; submit with --no-requeue and start a new run"),
    (srun(0, SLURM_RESTART_COUNT=1), f"SLURM_RESTART_COUNT=1: {RESTARTED}; submit with --no-requeue and start a new run"),
    (
        {**TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE": "False"},
        "torchrun's agent hosts no store (TORCHELASTIC_USE_AGENT_STORE is not True): start it without overriding that",
    ),
    (
        {**TORCHRUN, "LOCAL_WORLD_SIZE": "4"},
        "WORLD_SIZE=16, but LOCAL_WORLD_SIZE=4 on 2 nodes: use the same --nnodes and --nproc-per-node on every node",
    ),
    *(
        ({**TORCHRUN, name: value}, f"{name}={value!r} {NO_NUMBER}")
        for name, value in [("RANK", "-1"), ("RANK", "٣"), ("MASTER_PORT", "http"), ("TORCHELASTIC_MAX_RESTARTS", "")]
    ),
    *(
        (environment(TORCHRUN, {name: None}), f"{name}=None {NO_NUMBER}")
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "MASTER_PORT")
    ),
    (environment(TORCHRUN, {"MASTER_ADDR": None}), "MASTER_ADDR is not in the environment, where torchrun puts the host of its store"),
    (
        srun(1, SLURM_LOCALID=0),
        "SLURM_PROCID=1 is SLURM_LOCALID=0 of 8 ranks on this node, 16 in all: number ranks node by node (srun --distribution=block)",
    ),
    (
        open_mpi(1, OMPI_COMM_WORLD_LOCAL_RANK=0),
        "OMPI_COMM_WORLD_RANK=1 is OMPI_COMM_WORLD_LOCAL_RANK=0 of 8 ranks on this node, 16 in all: "
        "number ranks node by node (mpirun --map-by slot)",
    ),
    (
        bare(16),
        "RANK=16 is LOCAL_RANK=0 of 8 ranks on this node, 16 in all: "
        "number ranks node by node (RANK = node * LOCAL_WORLD_SIZE + LOCAL_RANK)",
    ),
    *(
        (srun(0, SLURM_STEP_TASKS_PER_NODE=tasks), f"SLURM_STEP_TASKS_PER_NODE={tasks or ''!r}: {UNEQUAL_TASKS}")
        for tasks in ("8,7", None, "8(x2")
    ),
    (hydra(0, MPI_LOCALNRANKS=5), f"PMI_SIZE=16, but MPI_LOCALNRANKS=5: {UNEQUAL_RANKS}"),
    (hydra(0, MPI_LOCALNRANKS=0), f"PMI_SIZE=16, but MPI_LOCALNRANKS=0: {UNEQUAL_RANKS}"),
    (hydra(0, MPI_LOCALNRANKS=None), f"MPI_LOCALNRANKS=None {NO_NUMBER}"),
    (srun(0, SLURM_PROCID=None), f"SLURM_PROCID=None {NO_NUMBER}"),
    (srun(0, SLURM_JOB_ID="x"), f"SLURM_JOB_ID='x' {NO_NUMBER}"),
    (open_mpi(0, OMPI_COMM_WORLD_RANK="-1"), f"OMPI_COMM_WORLD_RANK='-1' {NO_NUMBER}"),
    *(
        (
            environ,
            f"{name} started ranks on 2 nodes, and MASTER_ADDR is not in the environment: name the host of rank 0 to all of them ({how})",
        )
        for environ, name, how in (
            (open_mpi(0, MASTER_ADDR=None), "mpirun", "mpirun -x MASTER_ADDR=HOST"),
            (hydra(0, MASTER_ADDR=""), "mpiexec", "mpiexec -genv MASTER_ADDR HOST"),
        )
    ),
    *(
        (
            srun(0, nodes=nodes),
            f"SLURM_STEP_NODELIST={nodes!r} names no first node: say where rank 0 is (export MASTER_ADDR=HOST)",
        )
        for nodes in ("node[03-07", "a b")
    ),
    (bare(0, MASTER_PORT=0), "MASTER_PORT=0: a port is from 1 to 65535"),
    (bare(0, MASTER_PORT=65536), "MASTER_PORT=65536: a port is from 1 to 65535"),
    (bare(0, MASTER_PORT="http"), f"MASTER_PORT='http' {NO_NUMBER}"),
    (
        {"WORLD_SIZE": "8", "RANK": "1", "MASTER_ADDR": "node-01", "MASTER_PORT": "23456"},  # a pod of Kubeflow without torchrun
        f"WORLD_SIZE=8 without torchrun, and without LOCAL_RANK, LOCAL_WORLD_SIZE: each rank wants {WHO}; or start one torchrun per node",
    ),
    *(
        (
            bare(0, **{name: None}),
            f"WORLD_SIZE=16 without torchrun, and without {name}: each rank wants {WHO}; or start one torchrun per node",
        )
        for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    ),
    *(
        (environ, f"RANK={environ['RANK']}, and {size}: say how many ranks there are, or unset RANK for a run of one")
        for environ, size in (
            ({"RANK": "1"}, "WORLD_SIZE is not in the environment"),
            ({"RANK": "0"}, "WORLD_SIZE is not in the environment"),
            (bare(3, WORLD_SIZE=1), "WORLD_SIZE=1"),
        )
    ),
    (srun(11, WORLD_SIZE=8), "srun says SLURM_STEP_NUM_TASKS=16, and the environment WORLD_SIZE=8: unset WORLD_SIZE"),
    (open_mpi(11, RANK=0), "mpirun says OMPI_COMM_WORLD_RANK=11, and the environment RANK=0: unset RANK"),
    *(
        (
            {**TORCHRUN, **outer},
            f"{name} started 16 tasks ({variable}=16), but torchrun's job has 2 nodes (GROUP_WORLD_SIZE=2): "
            "start one torchrun per task, with --nnodes=16; or 16 ranks without torchrun",
        )
        for outer, name, variable in ((srun(11), "srun", "SLURM_STEP_NUM_TASKS"), (open_mpi(1), "mpirun", "OMPI_COMM_WORLD_SIZE"))
    ),
    *(
        (environ, f"{seen}: {UNKNOWN} more tasks than this job has nodes ({nodes}): {PER_TASK}; or say to each who it is: {WHO}")
        for environ, seen, nodes in (
            ({"FLUX_JOB_SIZE": "16", "FLUX_TASK_RANK": "0"}, "FLUX_JOB_SIZE=16", 1),
            ({"MV2_COMM_WORLD_SIZE": "2", "MV2_COMM_WORLD_RANK": "1"}, "MV2_COMM_WORLD_SIZE=2", 1),
            ({"PMIX_RANK": "3"}, "PMIX_RANK=3", 1),
            ({"MVP_COMM_WORLD_SIZE": "2", "MVP_COMM_WORLD_RANK": "0"}, "MVP_COMM_WORLD_SIZE=2", 1),
            ({"MPI_LOCALNRANKS": "4"}, "MPI_LOCALNRANKS=4", 1),
            ({"PMI_RANK": "1"}, "PMI_RANK=1", 1),
            ({**TORCHRUN, "FLUX_JOB_SIZE": "16", "FLUX_TASK_RANK": "0"}, "FLUX_JOB_SIZE=16", 2),
        )
    ),
    *(
        (environ, f"{seen}: {NO_SIZE}: set WORLD_SIZE=1 if it is the only one; else {PER_TASK}; or say to each who it is: {WHO}")
        for environ, seen in (
            ({"PMIX_RANK": "0"}, "PMIX_RANK=0"),
            ({"PALS_RANKID": "0", "PALS_LOCAL_RANKID": "0"}, "PALS_RANKID=0"),
            ({"ALPS_APP_PE": "0"}, "ALPS_APP_PE=0"),
            ({"PMI_RANK": "0", "MPI_LOCALNRANKS": "1"}, "PMI_RANK=0"),
        )
    ),
    *(
        ({**TORCHRUN_OF_1, name: "0"}, f"{name}=0: {NO_SIZE}: unset {name} if it is the only one; else {PER_TASK}")
        for name in ("PMIX_RANK", "PALS_RANKID")
    ),
]


@pytest.mark.parametrize(("environ", "text"), REFUSED, ids=[text[:40] for _, text in REFUSED])
def test_a_launch_that_cannot_work_is_refused(environ, text):
    with pytest.raises(LaunchError) as caught:
        who_am_i(environ)
    assert str(caught.value) == text


def test_one_rank_of_a_node_speaks_where_torchrun_has_a_folder_for_them(tmp_path):
    def ask(rank):
        (tmp_path / f"attempt_0/{rank}").mkdir(parents=True, exist_ok=True)
        return speaks_for_node({"LOCAL_RANK": rank, "TORCHELASTIC_ERROR_FILE": str(tmp_path / f"attempt_0/{rank}/error.json")})

    assert [ask(rank) for rank in "102"] == [True, False, False]


@pytest.mark.parametrize(
    ("environ", "speaks"),
    [
        ({}, True),
        ({"LOCAL_RANK": "0", "SLURM_LOCALID": "3"}, True),
        ({"LOCAL_RANK": "3"}, False),
        ({"SLURM_LOCALID": "1"}, False),
        ({"OMPI_COMM_WORLD_LOCAL_RANK": "1"}, False),
        ({"MPI_LOCALRANKID": "0"}, True),
        ({"LOCAL_RANK": "0", "TORCHELASTIC_ERROR_FILE": "/no/such/folder/0/error.json"}, True),
        ({"LOCAL_RANK": "1", "TORCHELASTIC_ERROR_FILE": "/no/such/folder/1/error.json"}, False),
        ({"LOCAL_RANK": "1", "TORCHELASTIC_ERROR_FILE": "/tmp/another-launcher.json"}, False),
    ],
)
def test_elsewhere_the_first_rank_of_a_node_speaks(environ, speaks):
    assert speaks_for_node(environ) is speaks
