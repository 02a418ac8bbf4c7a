"""deploy/kubernetes/start.sh in pods of the Job that kustomize builds: two that meet, and one that waits for a pod that is Pending."""

import contextlib
import copy
import os
import re
import shutil
import signal
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest
from api_server import cluster, pod, unscheduled
from clean_environment import clean_environment
from hosts import NO_NAME, connected, needs_hosts
from pods import built, environment_of, in_pod, resized
from suite import PYTHON, make_suite, shipped_suite
from waiting import HANG_S, wait_until

from gpu_acceptance.folder.files import read_results

pytestmark = pytest.mark.launcher


START = Path(__file__).parents[1] / "deploy" / "kubernetes" / "start.sh"
UID = "0f8fad5b-d9cb-469f-a165-70867728950e"
RUN_ID = f"gpu-acceptance-{UID}"


@pytest.fixture
def job(tmp_path):
    """The Job of all nodes, which are two here, with a rank each."""
    return built("all-nodes", resized(tmp_path, "all-nodes", nodes=2, gpus_per_node=1))["Job"]


def variables(job, index, reports):
    """The environment of the pod of this index: of the manifest, of the job controller, and of this image."""
    (container,) = job["spec"]["template"]["spec"]["containers"]
    labels = {"batch.kubernetes.io/job-name": job["metadata"]["name"], "batch.kubernetes.io/controller-uid": UID}
    own = environment_of(container, labels, {"batch.kubernetes.io/job-completion-index": str(index)})
    kubelet = {"KUBERNETES_SERVICE_HOST": "192.0.2.200", "KUBERNETES_SERVICE_PORT": "443"}
    image = {"PYTHON": PYTHON, "REPORTS": str(reports), "OMP_NUM_THREADS": "1"}
    return {**own, "JOB_COMPLETION_INDEX": str(index), **kubelet, **image}


@contextlib.contextmanager
def nodes(job, suites):
    """Two hosts with the names of pods. The image's folder is that of the suite."""
    for suite in suites:
        (suite / "deploy").symlink_to(START.parents[1])
    with connected(suites, job["metadata"]["name"]) as hosts:
        yield hosts.hosts


def start_pod(job, host, reports):
    (container,) = job["spec"]["template"]["spec"]["containers"]
    host.start([*container["command"], *container["args"]], variables(job, host.node, reports))


@needs_hosts
@pytest.mark.needs("kubectl")
def test_two_pods_are_accepted_and_a_second_try_is_not_this_run(job, tmp_path):
    """The first of them is late: until then its name is not known. Neither may ask the API of its node, and nothing wants it to."""
    suites = [shipped_suite(tmp_path / f"image-{node}", "environment", "binding") for node in (0, 1)]
    for suite in suites:
        shutil.copy(START.parents[2] / "acceptance" / "test_kubernetes.py", suite / "acceptance")
    reports = tmp_path / "reports"
    with nodes(job, suites) as (first, second):
        known = second.names.read_text()
        second.names.write_text("127.0.0.1 localhost\n")
        start_pod(job, second, reports)
        awaited = f"node 0 does not answer yet at gpu-acceptance-0.gpu-acceptance:29500: {NO_NAME}; "
        assert wait_until(lambda: re.match(awaited, second.output)), second.output
        second.names.write_text(known)
        start_pod(job, first, reports)
        ended = [pod.wait() for pod in (first, second)]
    assert [pod.returncode for pod in ended] == [0, 0], ended[0].output
    assert "the pods of this run are not awaited before torchrun starts: not there (/var/run/secrets/" in ended[0].output
    assert "are not awaited" not in ended[1].output
    line = ended[0].output.splitlines()[-1]
    assert line.startswith(f"ACCEPTED (quick, cpu profile: no GPU was tested) | run {RUN_ID} | ended "), line
    record = read_results(reports / RUN_ID)
    assert [(rank.host, rank.node) for rank in record.ranks] == [("gpu-acceptance-0", 0), ("gpu-acceptance-1", 1)]

    again = started(suites[0], variables(job, 0, reports))
    assert again.returncode == 4
    assert again.stderr == (
        f"{reports}/{RUN_ID} is there already: its verdict is not this run's; move it away, or begin a run of another name\n"
    )


@needs_hosts
@pytest.mark.needs("kubectl")
def test_a_pod_that_is_deleted_leaves_a_report_and_the_verdicts_code(tmp_path):
    job = copy.deepcopy(built("one-gpu")["Job"])
    suite, reports = make_suite(tmp_path / "image", "takes_long"), tmp_path / "reports"
    job["spec"]["template"]["spec"]["containers"][0]["args"] = []  # the profile of this suite has no levels
    with nodes(job, [suite]) as (pod,):
        start_pod(job, pod, reports)
        pod.wait_for("begun-0")
        os.kill(pod.launcher.pid, signal.SIGTERM)  # as the kubelet does, to the first process of the container
        ended = pod.wait()
        assert wait_until(lambda: not pod.pids())
    assert ended.returncode == 2, ended.output
    record = read_results(reports / RUN_ID)
    assert (record.conclusion.verdict, record.conclusion.reasons[0]) == ("INCOMPLETE", "interrupted: SIGTERM")
    assert ended.output.splitlines()[-1].startswith("INCOMPLETE: ")


def started(suite, environment, *arguments):
    return subprocess.run(
        ["bash", str(START), *arguments],
        cwd=suite,
        env={**clean_environment(), **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.needs("kubectl")
@pytest.mark.parametrize(
    "name", ["RUN_ID", "RUN_PODS", "PET_NNODES", "PET_NODE_RANK", "PET_NPROC_PER_NODE", "PET_MASTER_ADDR", "PET_MASTER_PORT"]
)
def test_a_pod_that_does_not_know_where_ranks_meet_says_so(job, tmp_path, name):
    ended = started(tmp_path, {**variables(job, 0, tmp_path), name: ""})
    assert ended.returncode == 4
    assert (
        ended.stderr == f"{name} is not in the environment of this pod: a manifest of deploy/kubernetes sets it, or Kubeflow's operator\n"
    )


@pytest.mark.needs("kubectl")
def test_pods_that_do_not_meet_say_so(job, tmp_path):
    """The name of the first pod is known to no name server here."""
    where = "gpu-acceptance-0.gpu-acceptance:29500"
    first, second = (started(tmp_path, {**variables(job, index, tmp_path), "JOIN_TIMEOUT": "1s"}) for index in (0, 1))
    assert (first.returncode, second.returncode) == (4, 6)
    assert re.fullmatch(rf"gpu-acceptance: node 0 is .*, and {where} does not lead there: {NO_NAME}; .*\n", first.stderr)
    assert re.match(rf"gpu-acceptance: node 0 does not answer at {where} within 1 s: {NO_NAME}; this is node 1 \(", second.stderr)


@pytest.mark.needs("kubectl")
def test_a_run_that_never_began_is_a_usage_error(job, tmp_path):
    """If torchrun cannot start, there is no verdict."""
    none = shutil.which("false")
    ended = started(tmp_path, {**variables(job, 0, tmp_path), "PYTHON": none})
    assert (ended.returncode, ended.stderr) == (4, f"no run in {tmp_path}/{RUN_ID}: see the error above\n")
    assert started(tmp_path, {**variables(job, 1, tmp_path), "PYTHON": none}).returncode == 1


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


def ours(one, overlay="all-nodes"):
    """With the labels of that pod, of a run of two."""
    one["metadata"]["labels"] = ENGINES[overlay][0]
    return one


@contextmanager
def waiting_pod(api, tmp_path, overlay="all-nodes", **more):
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
        with waiting_pod(api, tmp_path, overlay, JOIN_TIMEOUT="1s") as process:
            said = process.communicate(timeout=HANG_S)[0].splitlines()
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
        with waiting_pod(api, tmp_path, JOIN_TIMEOUT="20m") as process:
            said = process.communicate(timeout=HANG_S)[0].splitlines()
    waits = r"waiting for gpu-acceptance-1-k2m9d \(Pending, PodScheduled: Unschedulable\), (20 min 0|19 min 5\d) s more at most"
    assert re.fullmatch(waits, said[0])
    assert said[1] == "2 of 2 pods of this run running"
    where = "gpu-acceptance-0.gpu-acceptance:29500 --nodes=2 --node=0"
    assert said[2] == f"-m gpu_acceptance meet {where} --run=gpu-acceptance-{LABELS['batch.kubernetes.io/controller-uid']} --timeout=20m"
    assert said[3].startswith("-m torch.distributed.run --max-restarts=0 --rdzv-conf=timeout=1200 -m pytest acceptance/ --report-dir=")
    assert said[3].endswith(" --join-timeout=20m")
    assert process.returncode == 4  # this torchrun makes no run


def test_what_the_pod_may_not_ask_is_said_and_torchrun_starts(tmp_path):
    with cluster(tmp_path / "account") as api:
        api.answer = (403, "{}")
        with waiting_pod(api, tmp_path) as process:
            said = process.communicate(timeout=HANG_S)[0].splitlines()
    assert said[0].startswith(
        "the pods of this run are not awaited before torchrun starts: not permitted (GET /api/v1/namespaces/default/pods"
    )
    assert said[2].startswith("-m torch.distributed.run --max-restarts=0 --rdzv-conf=timeout=900 ")
    assert said[2].endswith(" --join-timeout=15m")


def test_another_pod_than_the_first_does_not_ask_the_api(tmp_path):
    with cluster(tmp_path / "account") as api, waiting_pod(api, tmp_path, PET_NODE_RANK="1") as process:
        said = process.communicate(timeout=HANG_S)[0]
    assert said.startswith("-m gpu_acceptance meet ")
    assert "\n-m torch.distributed.run " in said
    assert api.asked == []


def test_a_pod_that_is_deleted_while_it_waits_says_so(tmp_path):
    with cluster(tmp_path / "account") as api:
        api.pods = [ours(pod("gpu-acceptance-0-x7f2q", "uid-0"))]
        with waiting_pod(api, tmp_path) as process:
            assert wait_until(lambda: len(api.asked) == 1)
            assert process.stdout.readline() == "waiting for 1 pod not created yet, 15 min 0 s more at most\n"
            process.send_signal(signal.SIGTERM)
            said = process.communicate(timeout=HANG_S)[0]
    assert (process.returncode, said) == (2, "INCOMPLETE: interrupted while the pods of this run were awaited: SIGTERM\n")


def test_an_invalid_timeout_is_a_usage_error(tmp_path):
    with cluster(tmp_path / "account") as api, waiting_pod(api, tmp_path, JOIN_TIMEOUT="soon") as process:
        said = process.communicate(timeout=HANG_S)[0]
    assert process.returncode == 4
    assert "--timeout: 'soon' is not allowed; allowed: more than 0 seconds, as 90, 90s, 15m or 2h" in said
    assert "torch.distributed.run" not in said
