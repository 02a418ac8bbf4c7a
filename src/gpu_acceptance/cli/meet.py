"""Before a launch: `meet` checks that nodes reach each other, `pods` waits for the pods of a job."""

import argparse
import functools
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence

from gpu_acceptance.base.text import one_line, plural
from gpu_acceptance.cli.arguments import INCOMPLETE, INTERRUPTED, Verbs, add_verb, fail, matching, not_allowed, seconds, whole_number
from gpu_acceptance.control.meeting import Place, meet
from gpu_acceptance.control.rank import JOIN_S
from gpu_acceptance.inventory import kubernetes
from gpu_acceptance.inventory.answer import Answer, Missing, Why, join_names
from gpu_acceptance.inventory.kubernetes import DONE, RUNNING, TERMINATING, RunPod
from gpu_acceptance.report.words import duration

_EVERY_S = 5.0  # between two requests
_SAY_EVERY_S = 30.0
_MOST_FAILURES = 3  # in a row: after that, torchrun does the waiting
_PLACE = re.compile(r"(?a:\[?([\w.:-]{1,253}?)\]?):([0-9]{1,5})")

Pods = Sequence[RunPod]


def await_pods(read: Callable[[], Answer[Pods]], number: int, timeout_s: float, say: Callable[[str], None]) -> int:
    """Return 0 once so many pods run, or if the API does not answer; 6 once none can follow or the time is over. `say` gets each line."""
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
            # Pods that have ended are not started again.
            none_can_follow = len(found) >= number and all(pod.phase in {RUNNING, *DONE} for pod in found)
            if passed_s >= timeout_s or none_can_follow:
                for line in _why(found, number, passed_s):
                    say(line)
                return INCOMPLETE
            if passed_s >= due_s:
                say(f"waiting for {_awaited(found, number)}, {duration(timeout_s - passed_s)} more at most")
                due_s += _SAY_EVERY_S
        time.sleep(max(0.0, min(_EVERY_S, timeout_s - passed_s)))


def _num_running(pods: Pods) -> int:
    return sum(pod.phase == RUNNING for pod in pods)


def _num_there(pods: Pods) -> int:
    """A pod that is being deleted does not count: another one takes its place."""
    return sum(pod.phase != TERMINATING for pod in pods)


def _awaited(pods: Pods, number: int) -> str:
    """Return `gpu-acceptance-3-x7f2q (Pending, PodScheduled: Unschedulable), 1 pod not created yet`."""
    waiting = [pod for pod in pods if pod.phase != RUNNING]
    texts = [f"{pod.name} ({', '.join([pod.phase, *(one_line(reason.word) for reason in pod.reasons)])})" for pod in waiting]
    absent = number - _num_there(pods)
    return ", ".join([*([join_names(texts)] if texts else []), *([f"{plural(absent, 'pod')} not created yet"] if absent > 0 else [])])


def _why(pods: Pods, number: int, passed_s: float) -> Iterator[str]:
    for pod in (pod for pod in pods if pod.phase != RUNNING):
        where = f" on {pod.node}" if pod.node else ""
        texts = [
            f"{one_line(reason.message)} ({one_line(reason.word)})" if reason.message else one_line(reason.word) for reason in pod.reasons
        ]
        yield f"pod {pod.name}{where} is {pod.phase}: {'; '.join(texts) or 'Kubernetes gives no reason'}"
    if _num_there(pods) < number:
        yield f"{_num_there(pods)} of {plural(number, 'pod')} of this run exist: the controller did not create the others"
    yield (
        f"INCOMPLETE: {_num_running(pods)} of {plural(number, 'pod')} of this run running after {duration(passed_s)}, nothing was tested; "
        "what to do: gpu-acceptance remedy pod_pending"
    )


def add_verbs(verbs: Verbs) -> None:
    """Add `pods` and `meet`."""
    pods = add_verb(verbs, "pods", _pods)
    labels = matching(kubernetes.LABELS, "a label with its value, such as batch.kubernetes.io/job-name=a-job")
    pods.add_argument("--labels", metavar="KEY=VALUE", type=labels, required=True, help="a label that all pods of the run have")
    pods.add_argument("--number", metavar="N", type=whole_number(), required=True, help="number of pods of the run")
    how_long = "how long to wait: seconds, or a number with s, m or h"
    pods.add_argument("--timeout", metavar="TIME", type=seconds, required=True, help=how_long)
    meet = add_verb(verbs, "meet", _meet)
    node = lambda text: int(matching(r"[0-9]{1,5}", "0 to 99999")(text))  # noqa: E731
    address = "address of node 0, as the other nodes reach it, and the port where ranks will meet"
    meet.add_argument("place", metavar="HOST:PORT", type=_place, help=address)
    meet.add_argument("--nodes", metavar="N", type=whole_number(), required=True, help="number of nodes of the run")
    meet.add_argument("--node", metavar="I", type=node, help="number of this node, from 0; give it on all nodes or on none")
    name = matching(r"(?a:[\w.:-]{1,200})", "letters, digits, '.', ':', '_' and '-', at most 200")
    meet.add_argument("--run", metavar="NAME", type=name, help="name of the run, the same on all nodes")
    meet.add_argument("--timeout", metavar="TIME", type=seconds, default=JOIN_S, help=f"{how_long} (default: {JOIN_S:g} s)")


def end_on_sigterm(while_what: str) -> None:
    """Make SIGTERM end this process with one line."""
    line = f"INCOMPLETE: interrupted while {while_what}: SIGTERM\n".encode()

    def end(number: int, frame: object) -> None:
        os.write(sys.stderr.fileno(), line)
        os._exit(INTERRUPTED)

    signal.signal(signal.SIGTERM, end)


def _pods(options: argparse.Namespace) -> int:
    """Wait until all pods of a run are running, or say why one is not.

    Runs in a pod, with its service account. Ask the Kubernetes API for the pods of its namespace with this label, until N of them are
    running: exit code 0. Every 30 s a line names the pods that are missing. At the timeout, or once no pod can follow, print what
    Kubernetes says about each pod that is not running: exit code 6. Without permission to ask the API, print that and return 0: the
    launcher then waits for the pods.
    """
    end_on_sigterm("the pods of this run were awaited")
    read = functools.partial(kubernetes.read_pods, options.labels)
    return await_pods(read, options.number, options.timeout, functools.partial(print, flush=True))


def _place(text: str) -> tuple[str, int]:
    found = _PLACE.fullmatch(text)
    if not found or not 1 <= int(found[2]) <= 65535:
        raise not_allowed(text, "HOST:PORT with a port from 1 to 65535")
    return found[1], int(found[2])


def _meet(options: argparse.Namespace) -> int:
    """Check that all nodes of a run find each other, before torchrun starts on them.

    Give this command on each node of a run, with the same arguments. It waits until all nodes have connected to HOST:PORT, and returns 0
    on all of them. Node 0 listens there; without --node it is the host that HOST leads to. The port is free again when the command ends.
    Exit code 4, with one line that says why: the address leads elsewhere, the port is taken, or the numbers disagree. Exit code 6: a node
    did not come in time. Every 15 s a line names the nodes that are missing.
    """
    if options.node is not None and options.node >= options.nodes:
        raise ValueError(f"--node={options.node} of --nodes={options.nodes}: nodes are numbered from 0 to {options.nodes - 1}")
    end_on_sigterm("the nodes of this run were awaited")
    address, port = options.place
    place = Place(address, port, options.nodes, options.node, options.run or "", options.timeout, socket.gethostname())
    answer = meet(place, functools.partial(print, flush=True))
    return fail(answer.text, answer.exit_code) if answer.exit_code else 0
