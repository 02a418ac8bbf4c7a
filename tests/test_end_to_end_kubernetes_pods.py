"""deploy/kubernetes/start.sh in the pod of node 0 while another pod is Pending: the API says why, and torchrun does not start."""

import signal
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest
from api_server import cluster, pod, unscheduled
from clean_environment import clean_environment
from pods import built, environment_of, in_pod, needs_mounts, resized
from suite import PYTHON
from waiting import wait_until

START = Path(__file__).parents[1] / "deploy" / "kubernetes" / "start.sh"
UID = "0f8fad5b-d9cb-469f-a165-70867728950e"
FULL = "0/4 nodes are available: 4 Insufficient nvidia.com/gpu"
LABELS = {"batch.kubernetes.io/job-name": "gpu-acceptance", "batch.kubernetes.io/controller-uid": UID}
ENGINES = {  # overlay -> labels of its pods, and where the container is
    "all-nodes": (LABELS, lambda objects: objects["Job"]["spec"]["template"]),
    "all-nodes-trainjob": (
        LABELS,
        lambda objects: objects["TrainingRuntime"]["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"],
    ),
    "all-nodes-pytorchjob": (
        {"training.kubeflow.org/job-name": "gpu-acceptance"},
        lambda objects: objects["PyTorchJob"]["spec"]["pytorchReplicaSpecs"]["Master"]["template"],
    ),
}
pytestmark = [
    pytest.mark.slow,
    pytest.mark.needs("openssl"),
    pytest.mark.needs("kubectl"),
    needs_mounts,
]


def ours(one, overlay="all-nodes"):
    """With the labels of that pod, of a run of two."""
    one["metadata"]["labels"] = ENGINES[overlay][0]
    return one


@contextmanager
def started(api, tmp_path, overlay="all-nodes", **more):
    """`start.sh` as the first pod, which prints a line in place of the meeting of the pods, and one in place of torchrun."""
    labels, place = ENGINES[overlay]
    template = place(built(overlay, resized(tmp_path, overlay, gpus_per_node=1)))
    (container,) = template["spec"]["containers"]
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\ncase "$2 $3" in "gpu_acceptance pods") exec {PYTHON} "$@" ;; esac\necho "$@"\n')
    python.chmod(0o755)
    kubeflow = {"PET_NNODES": "2", "PET_NODE_RANK": "0", "PET_NPROC_PER_NODE": "1", "PET_MASTER_ADDR": "a-pod", "PET_MASTER_PORT": "29500"}
    own = environment_of(container, labels, {"batch.kubernetes.io/job-completion-index": "0"})
    image = {"PYTHON": str(python), "REPORTS": str(tmp_path / "reports")}
    command = in_pod(api.account, *container["command"][:1], str(START))
    with subprocess.Popen(
        command,
        env={**clean_environment(), **kubeflow, **own, **api.environment, **image, **more},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        yield process


@pytest.mark.parametrize("overlay", ENGINES)
def test_a_pod_that_stays_pending_ends_with_the_schedulers_reason(tmp_path, overlay):
    with cluster(tmp_path / "account") as api:
        api.pods = [ours(pod("gpu-acceptance-0-x7f2q", "uid-0"), overlay), ours(unscheduled("gpu-acceptance-1-k2m9d", FULL), overlay)]
        with started(api, tmp_path, overlay, JOIN_TIMEOUT="1s") as process:
            said = process.communicate(timeout=120)[0].splitlines()
    assert process.returncode == 6
    assert said[0].startswith("waiting for gpu-acceptance-1-k2m9d (Pending, PodScheduled: Unschedulable), ")
    assert said[1] == f"pod gpu-acceptance-1-k2m9d is Pending: {FULL} (PodScheduled: Unschedulable)"
    assert said[2].startswith("INCOMPLETE: 1 of 2 pods of this run running after ")
    assert len(said) == 3
    assert not (tmp_path / "reports").exists()


def test_torchrun_starts_once_all_pods_run(tmp_path):
    with cluster(tmp_path / "account") as api:
        first = ours(pod("gpu-acceptance-0-x7f2q", "uid-0"))
        api.pods, api.later = (
            [first, ours(unscheduled("gpu-acceptance-1-k2m9d", FULL))],
            [[first, ours(pod("gpu-acceptance-1-k2m9d", "uid-1"))]],
        )
        with started(api, tmp_path, JOIN_TIMEOUT="20m") as process:
            said = process.communicate(timeout=120)[0].splitlines()
    assert said[0] == "waiting for gpu-acceptance-1-k2m9d (Pending, PodScheduled: Unschedulable), 20 min 0 s more at most"
    assert said[1] == "2 of 2 pods of this run running"
    where = "gpu-acceptance-0.gpu-acceptance:29500 --nodes=2 --node=0"
    assert said[2] == f"-m gpu_acceptance meet {where} --run=gpu-acceptance-{LABELS['batch.kubernetes.io/controller-uid']} --timeout=20m"
    assert said[3].startswith("-m torch.distributed.run --max-restarts=0 --rdzv-conf=timeout=1200 -m pytest acceptance/ --report-dir=")
    assert said[3].endswith(" --join-timeout=20m")
    assert process.returncode == 4  # this torchrun makes no run


def test_what_the_pod_may_not_ask_is_said_and_torchrun_starts(tmp_path):
    with cluster(tmp_path / "account") as api:
        api.answer = (403, "{}")
        with started(api, tmp_path) as process:
            said = process.communicate(timeout=120)[0].splitlines()
    assert said[0].startswith(
        "the pods of this run are not awaited before torchrun starts: not permitted (GET /api/v1/namespaces/default/pods"
    )
    assert said[2].startswith("-m torch.distributed.run --max-restarts=0 --rdzv-conf=timeout=900 ")
    assert said[2].endswith(" --join-timeout=15m")


def test_another_pod_than_the_first_does_not_ask_the_api(tmp_path):
    with cluster(tmp_path / "account") as api, started(api, tmp_path, PET_NODE_RANK="1") as process:
        said = process.communicate(timeout=120)[0]
    assert said.startswith("-m gpu_acceptance meet ")
    assert "\n-m torch.distributed.run " in said
    assert api.asked == []


def test_a_pod_that_is_deleted_while_it_waits_says_so(tmp_path):
    with cluster(tmp_path / "account") as api:
        api.pods = [ours(pod("gpu-acceptance-0-x7f2q", "uid-0"))]
        with started(api, tmp_path) as process:
            assert wait_until(lambda: len(api.asked) == 1, 60)
            assert process.stdout.readline() == "waiting for 1 pod not created yet, 15 min 0 s more at most\n"
            process.send_signal(signal.SIGTERM)
            said = process.communicate(timeout=60)[0]
    assert (process.returncode, said) == (2, "INCOMPLETE: interrupted while the pods of this run were awaited: SIGTERM\n")


def test_an_invalid_timeout_is_a_usage_error(tmp_path):
    with cluster(tmp_path / "account") as api, started(api, tmp_path, JOIN_TIMEOUT="soon") as process:
        said = process.communicate(timeout=120)[0]
    assert process.returncode == 4
    assert "--timeout: 'soon' is not allowed; allowed: more than 0 seconds, as 90, 90s, 15m or 2h" in said
    assert "torch.distributed.run" not in said
