import pytest

from gpu_acceptance.launch import LaunchError, Rank, who_am_i

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


def test_torchrun():
    assert who_am_i(TORCHRUN) == Rank(
        rank=11,
        local_rank=3,
        world_size=16,
        local_world_size=8,
        node=1,
        num_nodes=2,
        store_host="node-00",
        store_port=29400,
        run_id="job-17",
    )


def test_a_node_is_named_with_its_host_and_ranks(monkeypatch):
    monkeypatch.setattr("socket.gethostname", lambda: "node-01")
    assert who_am_i(TORCHRUN).node_name == "node 1 (node-01, ranks 8-15)"
    assert Rank().node_name == "node 0 (node-01, rank 0)"


@pytest.mark.parametrize("environ", [{}, {"WORLD_SIZE": "1"}, {"SLURM_STEP_NUM_TASKS": "1", "SLURM_RESTART_COUNT": "0"}])
def test_nobody_is_a_world_of_one(environ):
    place = who_am_i(environ)
    assert place == Rank()
    assert (place.rank, place.world_size, place.store_port) == (0, 1, 0)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"TORCHELASTIC_MAX_RESTARTS": "3"},
            "TORCHELASTIC_MAX_RESTARTS=3: a restarted job runs until it passes, which proves nothing; start torchrun with --max-restarts=0",
        ),
        (
            {"TORCHELASTIC_RESTART_COUNT": "1"},
            "TORCHELASTIC_RESTART_COUNT=1: a restarted job runs until it passes, which proves nothing; start a new run",
        ),
        (
            {"SLURM_RESTART_COUNT": "2"},
            "SLURM_RESTART_COUNT=2: a restarted job runs until it passes, which proves nothing; "
            "submit with --no-requeue and start a new run",
        ),
        (
            {"TORCHELASTIC_USE_AGENT_STORE": "False"},
            "torchrun's agent hosts no store (TORCHELASTIC_USE_AGENT_STORE is not True): start it without overriding that",
        ),
        (
            {"LOCAL_WORLD_SIZE": "4"},
            "WORLD_SIZE=16, but LOCAL_WORLD_SIZE=4 on 2 nodes: use the same --nproc-per-node on every node",
        ),
        ({"RANK": "-1"}, "RANK='-1' in the environment is not a whole number from 0 up"),
        ({"RANK": "٣"}, "RANK='٣' in the environment is not a whole number from 0 up"),
        ({"MASTER_PORT": "http"}, "MASTER_PORT='http' in the environment is not a whole number from 0 up"),
        ({"TORCHELASTIC_MAX_RESTARTS": ""}, "TORCHELASTIC_MAX_RESTARTS='' in the environment is not a whole number from 0 up"),
    ],
)
def test_a_torchrun_that_cannot_be_used(changes, text):
    with pytest.raises(LaunchError) as caught:
        who_am_i({**TORCHRUN, **changes})
    assert str(caught.value) == text


@pytest.mark.parametrize("name", ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "MASTER_PORT"])
def test_torchrun_must_say_everything(name):
    with pytest.raises(LaunchError, match=f"{name}=None in the environment is not a whole number from 0 up"):
        who_am_i({key: value for key, value in TORCHRUN.items() if key != name})


@pytest.mark.parametrize(
    ("environ", "text"),
    [
        ({"SLURM_STEP_NUM_TASKS": "8"}, "started by srun with SLURM_STEP_NUM_TASKS=8, but without torchrun: start one torchrun per node"),
        ({"OMPI_COMM_WORLD_SIZE": "8"}, "started by mpirun with OMPI_COMM_WORLD_SIZE=8, but without torchrun: start one torchrun per node"),
        ({"PMI_SIZE": "8"}, "started by mpiexec with PMI_SIZE=8, but without torchrun: start one torchrun per node"),
        ({"WORLD_SIZE": "8"}, r"WORLD_SIZE=8 without torchrun \(no TORCHELASTIC_RUN_ID\): start one torchrun per node"),
        ({"SLURM_RESTART_COUNT": "1"}, "SLURM_RESTART_COUNT=1: a restarted job runs until it passes"),
    ],
)
def test_other_launchers_are_refused(environ, text):
    with pytest.raises(LaunchError, match=text):
        who_am_i(environ)
