"""deploy/kubernetes/start.sh in two pods of the Job that kustomize builds: hosts of their own names, with the environment such pods get."""

import contextlib
import copy
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from clean_environment import clean_environment
from hosts import NO_NAME, connected, needs_hosts
from pods import built, environment_of, resized
from suite import PYTHON, make_suite, shipped_suite
from waiting import wait_until

from gpu_acceptance.folder.files import read_results

pytestmark = [pytest.mark.launcher, pytest.mark.timeout(600)]
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
        assert wait_until(lambda: re.match(awaited, second.output), 60), second.output
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
        assert wait_until(lambda: not pod.pids(), 60)
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
    """Where torchrun cannot start, there is no verdict to tell."""
    none = shutil.which("false")
    ended = started(tmp_path, {**variables(job, 0, tmp_path), "PYTHON": none})
    assert (ended.returncode, ended.stderr) == (4, f"no run in {tmp_path}/{RUN_ID}: see the error above\n")
    assert started(tmp_path, {**variables(job, 1, tmp_path), "PYTHON": none}).returncode == 1
