"""Until all pods of a run are running: who is awaited, and in the end why they are not there, in Kubernetes' own words."""

import time
from collections.abc import Callable, Iterator, Sequence

from gpu_acceptance.base.text import one_line
from gpu_acceptance.inventory.answer import Answer, Missing, Why, named
from gpu_acceptance.inventory.kubernetes_pods import DONE, RUNNING, TERMINATING, Reason, RunPod
from gpu_acceptance.report.formatting import duration
from gpu_acceptance.thresholds.values import plural

INCOMPLETE = 6
_EVERY_S = 5.0  # between two questions
_SAY_EVERY_S = 30.0
_MOST_FAILURES = 3  # in a row: where the API does not answer, torchrun waits as it does without us

Pods = Sequence[RunPod]


def await_pods(read: Callable[[], Answer[Pods]], number: int, timeout_s: float, say: Callable[[str], None]) -> int:
    """0 once so many pods run, or where the API does not tell; 6 once none can follow or the time is over. `say` gets each line."""
    begin, due_s, failures = time.monotonic(), 0.0, 0
    while True:
        found, passed_s = read(), time.monotonic() - begin
        if isinstance(found, Missing):
            failures += 1
            if found.missing is not Why.UNREADABLE or failures == _MOST_FAILURES:
                say(f"the pods of this run are not awaited before torchrun starts: {one_line(str(found))}")
                return 0
        else:
            failures = 0
            if _num_running(found) >= number:
                say(f"{_num_running(found)} of {plural(number, 'pod')} of this run running")
                return 0
            if passed_s >= timeout_s or _none_can_follow(found, number):
                for line in _why(found, number, passed_s):
                    say(line)
                return INCOMPLETE
            if passed_s >= due_s:
                say(f"waiting for {_awaited(found, number)}, {duration(timeout_s - passed_s)} more at most")
                due_s += _SAY_EVERY_S
        time.sleep(max(0.0, min(_EVERY_S, timeout_s - passed_s)))


def _num_running(pods: Pods) -> int:
    return sum(pod.phase == RUNNING for pod in pods)


def _none_can_follow(pods: Pods, number: int) -> bool:
    """All were made, and those that do not run have ended: nothing starts them again."""
    return len(pods) >= number and all(pod.phase in {RUNNING, *DONE} for pod in pods)


def _awaited(pods: Pods, number: int) -> str:
    """`gpu-acceptance-3-x7f2q (Pending, PodScheduled: Unschedulable), 1 pod that is not there`."""
    texts = [f"{pod.name} ({', '.join([pod.phase, *(one_line(reason.word) for reason in pod.reasons)])})" for pod in _not_running(pods)]
    absent = number - _num_there(pods)
    return ", ".join([*([named(texts)] if texts else []), *([f"{plural(absent, 'pod')} that nobody made yet"] if absent > 0 else [])])


def _not_running(pods: Pods) -> Iterator[RunPod]:
    return (pod for pod in pods if pod.phase != RUNNING)


def _num_there(pods: Pods) -> int:
    """One that is being deleted is none of them: another takes its place."""
    return sum(pod.phase != TERMINATING for pod in pods)


def _why(pods: Pods, number: int, passed_s: float) -> Iterator[str]:
    for pod in _not_running(pods):
        where = f" on {pod.node}" if pod.node else ""
        yield f"pod {pod.name}{where} is {pod.phase}: {'; '.join(map(_text_of, pod.reasons)) or 'Kubernetes gives no reason'}"
    if _num_there(pods) < number:
        yield f"{_num_there(pods)} of {plural(number, 'pod')} of this run there: what makes them did not make the others"
    yield (
        f"INCOMPLETE: {_num_running(pods)} of {plural(number, 'pod')} of this run running after {duration(passed_s)}, nothing was tested; "
        "what to do: gpu-acceptance remedy pod_pending"
    )


def _text_of(reason: Reason) -> str:
    return f"{one_line(reason.message)} ({one_line(reason.word)})" if reason.message else one_line(reason.word)
