"""`gpu-acceptance pods` against a server that answers as the API of Kubernetes does: who is awaited, and why one is not there."""

from functools import partial

import kubernetes_validate
import pytest
from api_server import JOB_LABEL, JOB_UID, cluster, in_container, pod, unscheduled
from snapshots import changed

from gpu_acceptance.cli import meet
from gpu_acceptance.cli.verbs import main
from gpu_acceptance.inventory import kubernetes

pytestmark = pytest.mark.needs("openssl")

LABELS = f"{JOB_LABEL}={JOB_UID}"
FULL = "0/4 nodes are available: 4 Insufficient nvidia.com/gpu"
LACKING = f"{FULL}. preemption: 0/4 nodes are available: 4 No preemption victims found for incoming pod."
PULL = {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "gpu-acceptance:0.1.0"'}
END = "nothing was tested; what to do: gpu-acceptance remedy pod_pending"


class Clock:
    """Time that passes only during a sleep: the API's response time decides nothing."""

    def __init__(self):
        self._now_s = 0.0

    def monotonic(self):
        return self._now_s

    def sleep(self, seconds):
        self._now_s += seconds


@pytest.fixture
def api(tmp_path, monkeypatch):
    with cluster(tmp_path / "account") as found:
        monkeypatch.setattr(kubernetes, "ACCOUNT", found.account)
        monkeypatch.setattr(meet, "_EVERY_S", 0.01)
        monkeypatch.setattr(meet, "time", Clock())
        yield found


@pytest.fixture
def wait(api):
    """Code and lines, where this server says what it does."""

    def wait_for(number=2, timeout_s=0.0):
        lines = []
        code = meet.await_pods(partial(kubernetes.read_pods, LABELS, api.environment), number, timeout_s, lines.append)
        return code, lines

    return wait_for


def second(name="gpu-acceptance-1-k2m9d", **more):
    return pod(name, "pod-uid-9", JOB_UID, "8", **more)


def test_all_pods_of_the_run_are_there(api, wait):
    """Other pods of the namespace do not count."""
    api.pods.append(second())
    assert wait() == (0, ["2 of 2 pods of this run running"])
    assert api.asked == [f"/api/v1/namespaces/default/pods?labelSelector=batch.kubernetes.io%2Fcontroller-uid%3D{JOB_UID}&limit=100"]


def test_a_pod_that_comes_later_is_awaited(api, wait):
    api.later = [[*api.pods, second(phase="Pending")], [*api.pods, second()]]
    code, lines = wait(timeout_s=3600)
    assert (code, lines[-1]) == (0, "2 of 2 pods of this run running")
    assert lines[:-1] == ["waiting for 1 pod not created yet, 1 h 0 min more at most"]
    assert len(api.asked) == 3


def test_awaited_pods_are_listed_again_and_again(api, wait, monkeypatch):
    monkeypatch.setattr(meet, "_SAY_EVERY_S", 0.0)
    waiting = [*api.pods, unscheduled("gpu-acceptance-1-k2m9d", FULL)]
    api.pods, api.later = waiting, [waiting, [*api.pods, second()]]
    code, lines = wait(timeout_s=3600)
    assert (code, lines[-1]) == (0, "2 of 2 pods of this run running")
    assert lines[:-1] == ["waiting for gpu-acceptance-1-k2m9d (Pending, PodScheduled: Unschedulable), 1 h 0 min more at most"] * 2


NOT_RUNNING = [
    (unscheduled("late", LACKING), f"pod late is Pending: {LACKING} (PodScheduled: Unschedulable)"),
    (unscheduled("late", "held back", "SchedulingGated"), "pod late is Pending: held back (PodScheduled: SchedulingGated)"),
    (
        in_container("late", "Pending", waiting=PULL),
        'pod late on node-01 is Pending: Back-off pulling image "gpu-acceptance:0.1.0" (one: ImagePullBackOff)',
    ),
    (
        in_container("late", "Pending", waiting={"reason": "ErrImagePull", "message": "no such host"}),
        "pod late on node-01 is Pending: no such host (one: ErrImagePull)",
    ),
    (
        in_container("late", "Pending", init=True, waiting={"reason": "CreateContainerError", "message": "no such device"}),
        "pod late on node-01 is Pending: no such device (one: CreateContainerError)",
    ),
    (in_container("late", "Pending", waiting={"reason": "ContainerCreating"}), "pod late on node-01 is Pending: one: ContainerCreating"),
    (pod("late", "uid", JOB_UID, phase="Pending"), "pod late on node-01 is Pending: its kubelet has not taken it up"),
    (in_container("late", "Pending", waiting={}), "pod late on node-01 is Pending: Kubernetes gives no reason"),
    (pod("late", "uid", JOB_UID, phase="Unknown"), "pod late on node-01 is Unknown: Kubernetes gives no reason"),
    (
        in_container("late", "Failed", terminated={"exitCode": 4, "reason": "Error", "message": "torch\nRUN_ID is not there\n"}),
        "pod late on node-01 is Failed: RUN_ID is not there (one: Error, exit code 4)",
    ),
    (
        {**pod("late", "uid", JOB_UID), "status": {"phase": "Failed", "reason": "Evicted", "message": "low on memory"}},
        "pod late on node-01 is Failed: low on memory (Evicted)",
    ),
    (pod("late", "uid", JOB_UID, phase="Succeeded"), "pod late on node-01 is Succeeded: Kubernetes gives no reason"),
]


@pytest.mark.parametrize(("one", "line"), NOT_RUNNING)
def test_a_pod_that_does_not_run_ends_with_the_word_of_kubernetes(api, wait, one, line):
    api.pods.append(one)
    kubernetes_validate.validate({"apiVersion": "v1", "kind": "Pod", **one}, kubernetes_validate.latest_version(), strict=True)
    code, lines = wait()
    assert (code, lines[0]) == (6, line)
    assert lines[1].startswith("INCOMPLETE: 1 of 2 pods of this run running after ")
    assert lines[1].endswith(END)


def ready(ready, containers, **more):
    """One that runs, with these two conditions."""
    one = second()
    one["status"]["conditions"] = [{"type": "Ready", "status": ready, **more}, {"type": "ContainersReady", "status": containers}]
    return one


@pytest.mark.parametrize(
    ("one", "code"),
    [
        (ready("True", "True"), 0),
        (ready("False", "False", reason="ContainersNotReady"), 0),  # because of a container that another program put beside ours
        (ready("False", "True", reason="ReadinessGatesNotReady"), 0),
        (ready("False", "True"), 6),
        (ready("False", "True", reason="NodeNotReady"), 6),
    ],
)
def test_one_that_runs_is_awaited_only_while_its_node_does_not_report(api, wait, one, code):
    api.pods.append(one)
    ended, lines = wait()
    assert ended == code
    if code:
        assert lines[0] == (
            "pod gpu-acceptance-1-k2m9d on node-01 is NotReady: its containers are Ready and it is not: its node does not report"
        )


def test_pods_that_have_ended_are_not_awaited(api, wait):
    api.pods.append(in_container("late", "Failed", terminated={"exitCode": 4, "reason": "Error"}))
    code, lines = wait(timeout_s=3600)
    assert (code, lines[0]) == (6, "pod late on node-01 is Failed: one: Error, exit code 4")


def test_fewer_pods_than_the_run_has(api, wait):
    """A pod that is being deleted does not count."""
    leaving = second("gpu-acceptance-1-k2m9d")
    leaving["metadata"]["deletionTimestamp"] = "2026-11-23T12:00:00Z"
    api.pods.append(leaving)
    code, lines = wait(3, 0.1)
    assert code == 6
    assert lines[0] == "waiting for gpu-acceptance-1-k2m9d (Terminating), 2 pods not created yet, 0.1 s more at most"
    assert lines[1:3] == [
        "pod gpu-acceptance-1-k2m9d on node-01 is Terminating: Kubernetes gives no reason",
        "1 of 3 pods of this run exist: the controller did not create the others",
    ]


def test_many_are_counted_while_they_are_awaited_and_all_named_in_the_end(api, wait):
    """More than one page of the API holds."""
    api.pods += [unscheduled(f"late-{number:03}", FULL) for number in range(120)]
    code, lines = wait(121, 0.1)
    assert code == 6
    assert ", 112 more, " in lines[0]
    assert len([line for line in lines if line.endswith(f" is Pending: {FULL} (PodScheduled: Unschedulable)")]) == 120
    assert api.asked[1].endswith("&limit=100&continue=at+100")


def test_what_the_api_says_is_text_and_moves_no_cursor(api, wait):
    api.pods.append(unscheduled("late", "\x1b[2J\nACCEPTED\u202e" + "x" * 3_000, "Un\x1bschedulable"))
    code, lines = wait(timeout_s=0.1)
    assert code == 6
    assert lines[0].startswith("waiting for late (Pending, PodScheduled: Un\\x1bschedulable), ")
    assert lines[1].startswith("pod late is Pending: \\x1b[2J\\nACCEPTED\\u202exxx")
    assert lines[1].endswith("xxx... (PodScheduled: Un\\x1bschedulable)")
    assert len(lines) == 3


# --- where this pod may not ask, the run goes on -------------------------------------------------------------------------------

BEGIN = "the pods of this run are not awaited before torchrun starts: "


def goes_on(wait):
    code, (line,) = wait(timeout_s=3600)
    assert code == 0
    assert line.startswith(BEGIN)
    return line.removeprefix(BEGIN)


ASKED = "GET /api/v1/namespaces/default/pods"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((401, '{"message": "Unauthorized"}'), "status 401, 'Unauthorized'"),
        ((403, '{"message": "pods is forbidden: \\u001b[2J"}'), "status 403, 'pods is forbidden: \\x1b[2J'"),
        ((403, "{}"), "status 403, 2 bytes"),
        ((403, '{"message": ["x"]}'), "status 403, 18 bytes"),
        ((403, "[]"), "status 403, 2 bytes"),
        ((403, "<html>"), "status 403, 6 bytes"),
    ],
)
def test_a_right_that_is_not_given(api, wait, answer, said):
    api.answer = answer
    assert goes_on(wait) == f"not permitted ({ASKED}: {said})"
    assert len(api.asked) == 1


@pytest.mark.parametrize("name", ["token", "namespace"])
def test_a_pod_without_an_account(api, wait, name):
    (api.account / name).unlink()
    assert goes_on(wait) == f"not there ({api.account / name})"
    assert api.asked == []


def test_an_invalid_namespace_is_not_asked_for(api, wait):
    (api.account / "namespace").write_text("../nodes")
    assert goes_on(wait) == "unreadable (no namespace: '../nodes')"
    assert api.asked == []


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("metadata.name", "\x1b[2J", "no name of a pod: '\\x1b[2J'"),
        ("metadata.name", 7, "TypeError: expected string or bytes-like object, got 'int'"),
        ("spec.nodeName", "../x", "no name of a node: '../x'"),
        ("status.phase", "Fine", "no phase of a pod: 'Fine'"),
        ("status.phase", ["Running"], "TypeError: unhashable type: 'list'"),
        ("status.conditions", ["x"], "TypeError: string indices must be integers, not 'str'"),
        ("status.conditions", [{"type": "PodScheduled", "status": "False", "message": {}}], "no text: {}"),
        ("status.conditions", [{"type": "PodScheduled"}], "KeyError: 'status'"),
    ],
)
def test_an_answer_of_another_form_is_asked_for_again_and_then_no_more(api, wait, path, value, said):
    api.pods[0] = changed(api.pods[0], path, value)
    assert goes_on(wait) == f"unreadable (pods of the API: {said})"
    assert len(api.asked) == 3


def test_a_server_that_fails_twice_is_asked_again(api, wait, monkeypatch):
    api.pods.append(second())
    told, answers = api.told, [(500, "no"), (200, "<html>")]
    monkeypatch.setattr(api, "told", lambda *asked: answers.pop(0) if answers else told(*asked))
    assert wait(timeout_s=3600) == (0, ["2 of 2 pods of this run running"])


def test_a_list_without_end_is_given_up(api, wait, monkeypatch):
    monkeypatch.setattr(kubernetes, "_MOST_PAGES", 3)
    api.list_metadata["continue"] = "at 0"
    assert goes_on(wait) == "unreadable (GET /api/v1/namespaces/default/pods: more than 3 pages)"
    assert len(api.asked) == 9


# --- the verb ------------------------------------------------------------------------------------------------------------------


def test_the_verb_asks_for_what_it_is_given(api, monkeypatch, capsys):
    monkeypatch.setattr("signal.signal", lambda *_: None)  # the signals of this process are pytest's
    for name, value in api.environment.items():
        monkeypatch.setenv(name, value)
    assert main(["pods", f"--labels={LABELS}", "--number=1", "--timeout=15m"]) == 0
    assert capsys.readouterr().out == "1 of 1 pod of this run running\n"
