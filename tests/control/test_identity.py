"""Schedulers that gave a job more nodes than a run has: their variables as their documentation shows them."""

import json

import pytest

from gpu_acceptance.control.identity import allocated_nodes, schedulers


@pytest.mark.parametrize(
    ("name", "environ"),
    [
        ("Slurm job", {"SLURM_JOB_NUM_NODES": "4", "SLURM_NNODES": "4"}),
        ("Slurm job", {"SLURM_NNODES": "4"}),
        (
            "heterogeneous Slurm job",
            {"SLURM_JOB_NUM_NODES_HET_GROUP_0": "1", "SLURM_JOB_NUM_NODES_HET_GROUP_1": "3", "SLURM_HET_SIZE": "2"},
        ),
        ("LSF job", {"LSB_MCPU_HOSTS": "hostA 8 hostB 8 hostC 8 hostD 8"}),
        ("LSF job", {"LSB_MCPU_HOSTS": "batch2 1 a01 42 a02 42 a03 42 a04 42", "JSM_NAMESPACE_SIZE": "4"}),
        (
            "job of TF_CONFIG",
            {"TF_CONFIG": json.dumps({"cluster": {"chief": ["a:1"], "worker": ["b:1", "c:1", "d:1"]}, "task": {"index": 0}})},
        ),
        ("dstack task", {"DSTACK_NODES_NUM": "4", "DSTACK_NODE_RANK": "0"}),
        ("Beaker experiment", {"BEAKER_REPLICA_COUNT": "4", "BEAKER_REPLICA_RANK": "0"}),
        ("Metaflow step", {"MF_PARALLEL_NUM_NODES": "4", "MF_PARALLEL_NODE_INDEX": "0"}),
        ("Volcengine job", {"MLP_WORKER_NUM": "4", "MLP_ROLE_INDEX": "0"}),
        ("ModelArts job", {"MA_NUM_HOSTS": "4", "MA_NUM_GPUS": "8"}),
        ("Fujitsu job", {"PJM_NODE": "4"}),
        ("Torque job", {"PBS_NUM_NODES": "4"}),
        ("Grid Engine job", {"NHOSTS": "4", "PE_HOSTFILE": "/var/spool/pe_hostfile"}),
        ("Flux job", {"FLUX_JOB_NNODES": "4"}),
        ("Cobalt job", {"COBALT_PARTSIZE": "4"}),
        ("HTCondor parallel job", {"_CONDOR_NPROCS": "4", "_CONDOR_PROCNO": "0"}),
        ("AWS Batch job", {"AWS_BATCH_JOB_NUM_NODES": "4"}),
        ("SageMaker job", {"SM_HOSTS": '["algo-1", "algo-2", "algo-3", "algo-4"]'}),
        (
            "Vertex AI job",
            {"CLUSTER_SPEC": json.dumps({"cluster": {"workerpool0": ["a:2222"], "workerpool1": ["b:2222", "c:2222", "d:2222"]}})},
        ),
        ("Azure ML job", {"AZUREML_NODE_COUNT": "4"}),
        ("Azure Batch task", {"AZ_BATCH_NODE_LIST": "192.0.2.4;192.0.2.5;192.0.2.6;192.0.2.7"}),
        ("SkyPilot cluster", {"SKYPILOT_NUM_NODES": "4"}),
        ("NGC job", {"NGC_ARRAY_SIZE": "4"}),
        ("Lepton job", {"LEPTON_JOB_TOTAL_WORKERS": "4"}),
        ("Runpod cluster", {"NUM_NODES": "4", "PRIMARY_ADDR": "192.0.2.2"}),
        ("job of PET_NNODES", {"PET_NNODES": "1:4"}),
        ("job of NODE_RANK", {"NODE_RANK": "3"}),
        ("Volcano job", {"VC_WORKER_NUM": "4", "VC_LAUNCHER_NUM": "1", "VC_WORKER_HOSTS": "a,b,c,d"}),
        ("LeaderWorkerSet group", {"LWS_GROUP_SIZE": "4"}),
        ("Kubernetes Job by its index", {"JOB_COMPLETION_INDEX": "3", "KUBERNETES_SERVICE_HOST": "192.0.2.1"}),
    ],
)
def test_each_scheduler_tells_its_nodes(name, environ):
    assert allocated_nodes(environ) == {name: 4}


@pytest.mark.parametrize(("name", "variable"), [("PBS job", "PBS_NODEFILE"), ("OAR job", "OAR_NODEFILE")])
def test_a_file_with_a_line_for_each_slot(tmp_path, name, variable):
    path = tmp_path / "nodes"
    path.write_text("node-01\nnode-01\nnode-02\n\nnode-02\n")
    assert allocated_nodes({variable: str(path)}) == {name: 2}
    assert allocated_nodes({variable: str(tmp_path / "gone")}) == {}


@pytest.mark.parametrize(
    "environ",
    [
        {"SLURM_JOB_NUM_NODES": "many", "SM_HOSTS": "[", "CLUSTER_SPEC": '{"cluster": 4}', "LSB_MCPU_HOSTS": "", "PBS_NUM_NODES": "-4"},
        {"NHOSTS": "4", "NUM_NODES": "4", "JOB_COMPLETION_INDEX": "3", "_CONDOR_NPROCS": "4"},
        {"CLUSTER_SPEC": "[" * 100_000},
        {"TF_CONFIG": '{"cluster": {}, "task": {"type": "worker"}}'},
    ],
    ids=["unreadable", "another program's name", "deep", "no cluster"],
)
def test_an_unreadable_variable_or_one_of_another_program_tells_nothing(environ):
    assert allocated_nodes(environ) == {}


def test_each_has_a_source():
    assert all(one.source for one in schedulers().values())
