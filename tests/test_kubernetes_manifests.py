"""deploy/kubernetes as kustomize builds it, against the schemas of the interfaces it is sent to, and against what it promises."""

import copy

import kubernetes_validate
import pytest
from kubeflow_trainer_api.models.trainer_v1alpha1_train_job import TrainerV1alpha1TrainJob
from kubeflow_trainer_api.models.trainer_v1alpha1_training_runtime import TrainerV1alpha1TrainingRuntime
from pods import MANIFESTS, built, resized

pytestmark = [pytest.mark.repository, pytest.mark.needs("kubectl")]

OVERLAYS = sorted(path.name for path in (MANIFESTS / "overlays").iterdir())
RELEASES = ("1.29", kubernetes_validate.latest_version())  # the first that knows backoffLimitPerIndex without a feature gate, and the last
KUBEFLOW = {"TrainJob": TrainerV1alpha1TrainJob, "TrainingRuntime": TrainerV1alpha1TrainingRuntime}
PYTORCHJOB = {"nprocPerNode", "pytorchReplicaSpecs", "runPolicy"}  # of kubeflow-training 1.9.4, KubeflowOrgV1PyTorchJobSpec
RUN_POLICY = {"activeDeadlineSeconds", "backoffLimit", "cleanPodPolicy", "ttlSecondsAfterFinished"}  # and KubeflowOrgV1RunPolicy
NAME = {"app.kubernetes.io/name": "gpu-acceptance"}
REPLICA = {"replicas", "restartPolicy", "template"}
ENGINES = {  # overlay of all nodes -> where its pods are
    "all-nodes": lambda objects: [objects["Job"]["spec"]["template"]],
    "all-nodes-trainjob": lambda objects: [
        objects["TrainingRuntime"]["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    ],
    "all-nodes-pytorchjob": lambda objects: [
        replica["template"] for replica in objects["PyTorchJob"]["spec"]["pytorchReplicaSpecs"].values()
    ],
}


def validate(found):
    for release in RELEASES:
        kubernetes_validate.validate(found, release, strict=True)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_each_object_is_as_its_interface_wants_it(overlay):
    for kind, found in built(overlay).items():
        if kind in KUBEFLOW:
            assert KUBEFLOW[kind].from_dict(found).to_dict() == found  # what it does not know it would leave out
        elif kind == "PyTorchJob":
            spec = found["spec"]
            assert set(spec) == PYTORCHJOB
            assert set(spec["runPolicy"]) == RUN_POLICY
            for replica in spec["pytorchReplicaSpecs"].values():
                assert set(replica) == REPLICA
                validate({"apiVersion": "v1", "kind": "PodTemplate", "template": replica["template"]})
        else:
            validate(found)


def test_a_slip_of_the_pen_would_be_seen():
    job = built("one-gpu")["Job"]
    wrong = copy.deepcopy(job)
    wrong["spec"]["template"]["spec"]["toleration"] = []
    with pytest.raises(kubernetes_validate.ValidationError, match="toleration"):
        validate(wrong)
    runtime = built("all-nodes-trainjob")["TrainingRuntime"]
    wrong = copy.deepcopy(runtime)
    wrong["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]["backofLimit"] = 0
    assert TrainerV1alpha1TrainingRuntime.from_dict(wrong).to_dict() == runtime


@pytest.mark.parametrize(
    ("overlay", "nodes", "gpus", "more"), [("one-gpu", 1, 1, ["--gpus=1"]), ("one-node", 1, 8, []), ("all-nodes", 2, 8, [])]
)
def test_a_size_is_said_once_and_is_everywhere(overlay, nodes, gpus, more):
    job = built(overlay)["Job"]["spec"]
    (container,) = job["template"]["spec"]["containers"]
    values = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert (job["completionMode"], job["completions"], job["parallelism"], values["PET_NNODES"]) == ("Indexed", nodes, nodes, str(nodes))
    assert (container["resources"]["limits"]["nvidia.com/gpu"], values["PET_NPROC_PER_NODE"]) == (gpus, str(gpus))
    assert container["resources"]["requests"] == {"cpu": str(4 * gpus), "memory": f"{32 * gpus}Gi"}
    assert container["args"] == ["--level=quick", *more]


def test_kubeflow_is_told_the_same_size(tmp_path):
    train = built("all-nodes-trainjob", resized(tmp_path / "a", "all-nodes-trainjob", nodes=16, gpus_per_node=4))
    assert train["TrainJob"]["spec"]["trainer"] == {"numNodes": 16, "numProcPerNode": 4}
    pytorch = built("all-nodes-pytorchjob", resized(tmp_path / "b", "all-nodes-pytorchjob", nodes_but_one=15, gpus_per_node=4))
    spec = pytorch["PyTorchJob"]["spec"]
    assert {name: replica["replicas"] for name, replica in spec["pytorchReplicaSpecs"].items()} == {"Master": 1, "Worker": 15}
    assert spec["nprocPerNode"] == "4"


@pytest.mark.parametrize("engine", ENGINES)
def test_nothing_is_tried_twice_and_all_ends(engine):
    objects = built(engine)
    if engine == "all-nodes":
        spec = objects["Job"]["spec"]
        assert spec["backoffLimitPerIndex"] == 0
    elif engine == "all-nodes-trainjob":
        jobset = objects["TrainingRuntime"]["spec"]["template"]["spec"]
        spec = {**jobset, **jobset["replicatedJobs"][0]["template"]["spec"]}
        assert (spec["backoffLimitPerIndex"], spec["failurePolicy"]) == (0, {"maxRestarts": 0})
    else:
        spec = objects["PyTorchJob"]["spec"]["runPolicy"]
        assert {replica["restartPolicy"] for replica in objects["PyTorchJob"]["spec"]["pytorchReplicaSpecs"].values()} == {"Never"}
        assert spec["backoffLimit"] == 0
    assert (spec["activeDeadlineSeconds"], spec["ttlSecondsAfterFinished"]) == (7200, 604800)
    for pod in ENGINES[engine](objects):
        assert (pod["spec"]["restartPolicy"], pod["spec"]["terminationGracePeriodSeconds"]) == ("Never", 90)


def test_a_runtime_is_sent_before_the_job_that_names_it():
    kinds = list(built("all-nodes-trainjob"))
    assert kinds.index("TrainingRuntime") < kinds.index("TrainJob")


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_runs_the_same_pod(engine):
    """But for the container's name, by which an operator knows it, and for how ranks meet."""
    (ours,) = ENGINES["all-nodes"](built("all-nodes"))
    for pod in ENGINES[engine](built(engine)):
        assert same(pod) == same(ours)
        node = {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
        assert node in pod["spec"]["containers"][0]["env"]


def same(pod):
    pod = copy.deepcopy(pod)
    pod["spec"].pop("subdomain", None)
    del pod["spec"]["containers"][0]["name"], pod["spec"]["containers"][0]["env"]
    return pod


def test_a_pod_has_a_node_with_gpus_for_itself():
    objects = built("all-nodes")
    (pod,) = ENGINES["all-nodes"](objects)
    spec = pod["spec"]
    (rule,) = spec["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert rule == {"labelSelector": {"matchLabels": NAME}, "topologyKey": "kubernetes.io/hostname"}
    assert pod["metadata"]["labels"] == {**NAME, "sidecar.istio.io/inject": "false"}
    assert pod["metadata"]["annotations"] == {"linkerd.io/inject": "disabled"}
    assert spec["nodeSelector"] == {"nvidia.com/gpu.present": "true"}
    assert spec["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    (container,) = spec["containers"]
    assert container["resources"]["limits"]["rdma/rdma_shared_device_a"] == 1
    assert container["securityContext"]["capabilities"] == {"add": ["IPC_LOCK"]}
    mounts = {mount["mountPath"]: next(v for v in spec["volumes"] if v["name"] == mount["name"]) for mount in container["volumeMounts"]}
    assert mounts["/dev/shm"]["emptyDir"] == {"medium": "Memory"}
    assert mounts["/reports"]["persistentVolumeClaim"]["claimName"] == objects["PersistentVolumeClaim"]["metadata"]["name"]


def test_the_first_pod_is_found_by_its_name_in_the_service():
    objects = built("all-nodes")
    job, service = objects["Job"], objects["Service"]
    pod = job["spec"]["template"]
    values = {entry["name"]: entry.get("value") for entry in pod["spec"]["containers"][0]["env"]}
    assert values["PET_MASTER_ADDR"] == f"$(JOB_NAME)-0.{service['metadata']['name']}"
    assert pod["spec"]["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == NAME
    assert (service["spec"]["clusterIP"], service["spec"]["publishNotReadyAddresses"]) == ("None", True)


def test_reports_can_be_fetched_from_the_volume_they_were_written_to():
    reader, job = built("reader")["Pod"], built("all-nodes")["Job"]
    volumes = {volume["name"]: volume for volume in reader["spec"]["volumes"]}
    assert volumes["reports"]["persistentVolumeClaim"]["claimName"] == built("all-nodes")["PersistentVolumeClaim"]["metadata"]["name"]
    assert reader["spec"]["containers"][0]["image"] == job["spec"]["template"]["spec"]["containers"][0]["image"]
    assert reader["spec"]["securityContext"]["supplementalGroups"] == [job["spec"]["template"]["spec"]["securityContext"]["fsGroup"]]


@pytest.mark.parametrize(("overlay", "mode"), [("one-gpu", "ReadWriteOnce"), ("one-node", "ReadWriteOnce"), ("all-nodes", "ReadWriteMany")])
def test_the_volume_is_shared_where_there_are_nodes_to_share_it(overlay, mode):
    assert built(overlay)["PersistentVolumeClaim"]["spec"]["accessModes"] == [mode]


@pytest.mark.parametrize("overlay", ["one-gpu", "one-node", *ENGINES])
def test_every_pod_may_list_those_of_its_namespace_and_nothing_else(overlay):
    objects = built(overlay)
    (subject,) = objects["RoleBinding"]["subjects"]
    assert subject == {"kind": "ServiceAccount", "name": objects["ServiceAccount"]["metadata"]["name"]}  # of the namespace it is applied to
    assert objects["RoleBinding"]["roleRef"]["name"] == objects["Role"]["metadata"]["name"]
    assert objects["Role"]["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
    for pod in ENGINES.get(overlay, ENGINES["all-nodes"])(objects):
        assert (pod["spec"]["serviceAccountName"], pod["spec"]["automountServiceAccountToken"]) == (subject["name"], True)
    assert not {"ClusterRole", "ClusterRoleBinding"} & objects.keys()


def test_where_the_api_is_asked_the_pods_may_and_the_suite_does(tmp_path):
    manifests = resized(tmp_path, "all-nodes")
    path = manifests / "overlays" / "all-nodes" / "kustomization.yaml"
    site = "  - ../../components/site\n"
    path.write_text(path.read_text().replace(site, f"{site}  - ../../components/api\n"))
    objects = built("all-nodes", manifests)
    for found in objects.values():
        validate(found)
    pod = objects["Job"]["spec"]["template"]["spec"]
    (subject,) = objects["ClusterRoleBinding"]["subjects"]
    assert pod["serviceAccountName"] == objects["ServiceAccount"]["metadata"]["name"] == subject["name"]
    assert pod["automountServiceAccountToken"] is True
    assert objects["ClusterRoleBinding"]["roleRef"]["name"] == objects["ClusterRole"]["metadata"]["name"]
    allowed = {name: set(rule["verbs"]) for rule in objects["ClusterRole"]["rules"] for name in rule["resources"]}
    assert allowed == {"nodes": {"get", "list"}, "pods": {"list"}, "resourceslices": {"list"}, "resourceclaims": {"get"}}
    assert pod["containers"][0]["args"] == ["--level=quick", "--limits=site-kubernetes"]
    assert {"NODE_NAME", "POD_UID", "PET_NODE_RANK"} <= {entry["name"] for entry in pod["containers"][0]["env"]}
