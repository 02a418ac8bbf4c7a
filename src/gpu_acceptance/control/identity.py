"""What this rank says of itself and its node at the start, the size of its allocation included."""

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpu_acceptance.control.rank import Rank
from gpu_acceptance.inventory import needs, node, nvml, pci_topology, system, versions
from gpu_acceptance.inventory.answer import Missing, read_whole
from gpu_acceptance.record.job import RankIdentity

Count = Callable[[Mapping[str, str]], int]
_MOST_CHARACTERS = 1_000_000  # of a variable
_VOLCANO = re.compile(r"VC_[A-Z0-9_]{1,60}_NUM", re.ASCII)
_HET_GROUP = re.compile(r"SLURM_JOB_NUM_NODES_HET_GROUP_\d{1,4}", re.ASCII)
# For tests: a second /sys. It is read beside the real one, so it can show a GPU that is not there and never hide one that is.
EXTRA_SYSFS = "GPU_ACCEPTANCE_EXTRA_SYSFS"


@dataclass(frozen=True)
class Allocation:
    """One scheduler: its name as in `1 of 4 nodes of the Slurm job`, how its variables are read, and where it documents them."""

    name: str
    count: Count
    source: str


def allocated_nodes(environ: Mapping[str, str] = os.environ) -> dict[str, int]:
    """The number of nodes by the name of each scheduler that says one."""
    return {one.name: number for one in ALLOCATIONS if (number := one.count(environ)) > 0}


def _number(*names: str) -> Count:
    """The first of these that is a whole number; of torchrun's `1:4` the most."""
    return lambda environ: next((number for name in names if (number := _whole(environ.get(name, "").rpartition(":")[2]))), 0)


def _whole(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 8 else 0


def _sum(names: re.Pattern[str]) -> Count:
    return lambda environ: sum(_whole(value) for name, value in environ.items() if names.fullmatch(name))


def _largest(names: re.Pattern[str]) -> Count:
    """Tasks of other kinds, such as one that only launches, need no node of their own."""
    return lambda environ: max((_whole(value) for name, value in environ.items() if names.fullmatch(name)), default=0)


def _names_in(variable: str, separator: str) -> Count:
    """A list of host names."""
    return lambda environ: len(set(filter(None, environ.get(variable, "").split(separator))))


def _lsf_hosts(environ: Mapping[str, str]) -> int:
    """A number follows each host. Where jsrun starts the tasks, the first host runs the batch script and none of them."""
    hosts = dict.fromkeys(environ.get("LSB_MCPU_HOSTS", "").split()[::2])
    return len(hosts) - (1 if len(hosts) > 1 and "JSM_NAMESPACE_SIZE" in environ else 0)


def _names_in_file(*variables: str) -> Count:
    """A file with a line for each slot, which begins with its host."""
    return lambda environ: next((number for name in variables if (number := len(set(_first_words(environ.get(name, "")))))), 0)


def _first_words(path: str) -> Iterator[str]:
    text = read_whole(Path(path)) if path else ""
    yield from (words[0] for line in ("" if isinstance(text, Missing) else text).splitlines() if (words := line.split()))


def _names_in_json(variable: str, *keys: str) -> Count:
    """A list of hosts, or an object of such lists below `keys`."""

    def count(environ: Mapping[str, str]) -> int:
        try:
            value = json.loads(environ.get(variable, "")[:_MOST_CHARACTERS])
            for key in keys:
                value = value[key]
        except (ValueError, KeyError, TypeError, RecursionError):
            return 0
        lists = value.values() if isinstance(value, dict) else [value]
        return sum(len(one) for one in lists if isinstance(one, list))

    return count


def _index(variable: str, also: str = "") -> Count:
    """There is one more than this number says, at least."""
    return lambda environ: _whole(environ.get(variable, "")) + 1 if environ.get(variable) and (not also or also in environ) else 0


def _where(variable: str, count: Count) -> Count:
    """A variable with a common name, where another one says whose it is."""
    return lambda environ: count(environ) if variable in environ else 0


ALLOCATIONS = (
    Allocation("heterogeneous Slurm job", _sum(_HET_GROUP), "https://slurm.schedmd.com/heterogeneous_jobs.html"),
    Allocation("Slurm job", _number("SLURM_JOB_NUM_NODES", "SLURM_NNODES"), "https://slurm.schedmd.com/sbatch.html"),
    Allocation(
        "LSF job",
        _lsf_hosts,
        "https://www.ibm.com/docs/en/spectrum-lsf: Environment variables set for job execution; "
        "https://github.com/olcf-tutorials/Batch-Script-Examples, of jsrun",
    ),
    Allocation("Torque job", _number("PBS_NUM_NODES"), "Torque administrator guide, Exported batch environment variables"),
    Allocation("PBS job", _names_in_file("PBS_NODEFILE"), "PBS Professional reference guide, PBS_NODEFILE"),
    Allocation("Grid Engine job", _where("PE_HOSTFILE", _number("NHOSTS")), "qsub(1) of Grid Engine, NHOSTS and PE_HOSTFILE"),
    Allocation("Flux job", _number("FLUX_JOB_NNODES"), "https://flux-framework.readthedocs.io: flux-environment(7)"),
    Allocation("OAR job", _names_in_file("OAR_NODEFILE", "OAR_FILE_NODES"), "https://oar.readthedocs.io: oarsub, OAR_NODEFILE"),
    Allocation("Cobalt job", _number("COBALT_PARTSIZE"), "https://xgitlab.cels.anl.gov/aig-public/cobalt: qsub(1), COBALT_PARTSIZE"),
    Allocation(
        "HTCondor parallel job",
        _where("_CONDOR_PROCNO", _number("_CONDOR_NPROCS")),
        "HTCondor manual, Parallel Applications (parallel universe)",
    ),
    Allocation("AWS Batch job", _number("AWS_BATCH_JOB_NUM_NODES"), "https://docs.aws.amazon.com/batch/latest/userguide/job_env_vars.html"),
    Allocation("SageMaker job", _names_in_json("SM_HOSTS"), "https://github.com/aws/sagemaker-training-toolkit: SM_HOSTS"),
    Allocation(
        "Vertex AI job", _names_in_json("CLUSTER_SPEC", "cluster"), "https://cloud.google.com/vertex-ai/docs/training/distributed-training"
    ),
    Allocation(
        "job of TF_CONFIG",
        _names_in_json("TF_CONFIG", "cluster"),
        "https://www.alibabacloud.com/help/en/pai/user-guide/general-environment-variables; Vertex AI and Kubeflow set it too",
    ),
    Allocation("Azure ML job", _number("AZUREML_NODE_COUNT"), "https://learn.microsoft.com/azure/machine-learning: distributed training"),
    Allocation("Azure Batch task", _names_in("AZ_BATCH_NODE_LIST", ";"), "https://learn.microsoft.com/azure/batch: multi-instance tasks"),
    Allocation("SkyPilot cluster", _number("SKYPILOT_NUM_NODES"), "https://docs.skypilot.co/en/latest/running-jobs/distributed-jobs.html"),
    Allocation("dstack task", _number("DSTACK_NODES_NUM"), "https://dstack.ai/docs/concepts/tasks: distributed tasks"),
    Allocation("Beaker experiment", _number("BEAKER_REPLICA_COUNT"), "https://github.com/allenai/beaker-gantry: BEAKER_REPLICA_COUNT"),
    Allocation("Metaflow step", _number("MF_PARALLEL_NUM_NODES"), "https://github.com/Netflix/metaflow, metaflow/metaflow_current.py"),
    Allocation(
        "Volcengine job",
        _number("MLP_WORKER_NUM"),
        "https://huggingface.co/BechusRantus/injected_thinking: torchrun --nnodes $MLP_WORKER_NUM",
    ),
    Allocation(
        "ModelArts job", _number("MA_NUM_HOSTS"), "public scripts for Huawei ModelArts: NNODES=$MA_NUM_HOSTS, NODE_RANK=$VC_TASK_INDEX"
    ),
    Allocation("Fujitsu job", _number("PJM_NODE"), "public scripts for pjsub of Fujitsu: ranks per node are PJM_MPI_PROC / PJM_NODE"),
    Allocation("NGC job", _number("NGC_ARRAY_SIZE"), "https://docs.nvidia.com/base-command-platform/user-guide: NGC_ARRAY_SIZE"),
    Allocation(
        "Lepton job", _number("LEPTON_JOB_TOTAL_WORKERS"), "https://docs.nvidia.com/dgx-cloud/lepton: batch jobs, distributed training"
    ),
    Allocation(
        "Runpod cluster", _where("PRIMARY_ADDR", _number("NUM_NODES")), "https://docs.runpod.io/instant-clusters/configuration: NUM_NODES"
    ),
    Allocation(
        "job of PET_NNODES", _number("PET_NNODES"), "https://www.kubeflow.org/docs/components/trainer: PyTorch; torchrun reads PET_*"
    ),
    Allocation("job of NODE_RANK", _index("NODE_RANK"), "https://lightning.ai/docs/pytorch: Run on an on-prem cluster, NODE_RANK"),
    Allocation("Volcano job", _largest(_VOLCANO), "https://volcano.sh/en/docs: plugins env and svc, VC_{task}_NUM"),
    Allocation("LeaderWorkerSet group", _number("LWS_GROUP_SIZE"), "https://lws.sigs.k8s.io/docs/reference: LWS_GROUP_SIZE"),
    Allocation(
        "Kubernetes Job by its index",
        _index("JOB_COMPLETION_INDEX", "KUBERNETES_SERVICE_HOST"),
        "https://kubernetes.io/docs/concepts/workloads/controllers/job/",
    ),
)


def read_identity(place: Rank) -> RankIdentity:
    """What this node says of itself, as seen from one rank."""
    extra_root = os.environ.get(EXTRA_SYSFS)
    reading = nvml.read()
    bus = pci_topology.gpus_on_bus(Path(extra_root) if extra_root else None)
    num_gpus_on_bus = len(bus.gpus) + len(bus.unreadable)
    return RankIdentity(
        rank=place.rank,
        local_rank=place.local_rank,
        node=place.node,
        host=system.hostname(),
        local_world_size=place.local_world_size,
        world_size=place.world_size,
        gpus=reading.gpus,
        num_gpus_on_bus=num_gpus_on_bus,
        nvml_problem=reading.problem,
        versions={**versions.read(reading.driver_version), **versions.checkout()},
        environment=system.environment(),
        chassis_serial=system.chassis_serial(),
        lacks=needs.lacking(has_gpu=bool(reading.gpus or num_gpus_on_bus)),
        own_loopback_address=system.own_loopback_address(),
        allocated_nodes=allocated_nodes(),
        python=sys.executable,
        inventory=node.read_facts() if place.local_rank == 0 else {},
    )
