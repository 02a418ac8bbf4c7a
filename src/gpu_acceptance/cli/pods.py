"""The verb with which the first pod of a run waits for the others, before its launcher does."""

import argparse
import functools
import os
import signal
import sys
from typing import TYPE_CHECKING

from gpu_acceptance.cli.arguments import matching, seconds, whole_number
from gpu_acceptance.cli.pod_wait import await_pods
from gpu_acceptance.cli.said import INTERRUPTED
from gpu_acceptance.inventory import kubernetes_pods

if TYPE_CHECKING:
    from gpu_acceptance.cli.machine import Verbs


def add_verbs(verbs: "Verbs") -> None:
    pods = verbs.add_parser(
        "pods",
        help="wait until all pods of a run are running, or say why one is not",
        description="Runs in a pod, with its service account. Ask the Kubernetes API for the pods of its namespace with this label, until "
        "N of them are running: exit code 0. Every 30 s a line names the pods that are missing. At the timeout, or once no pod can "
        "follow, print what Kubernetes says about each pod that is not running: exit code 6. A pod that may not ask says so and returns "
        "0: the launcher waits then.",
    )
    labels = matching(kubernetes_pods.LABELS, "a label with its value, such as batch.kubernetes.io/job-name=a-job")
    pods.add_argument("--labels", metavar="KEY=VALUE", type=labels, required=True, help="a label that all pods of the run have")
    pods.add_argument("--number", metavar="N", type=whole_number(), required=True, help="number of pods of the run")
    pods.add_argument(
        "--timeout", metavar="TIME", type=seconds, required=True, help="how long to wait: seconds, or a number with s, m or h"
    )
    pods.set_defaults(verb=_pods)


def end_on_sigterm(while_what: str) -> None:
    """From now on that signal ends this process with one line."""
    line = f"INCOMPLETE: interrupted while {while_what}: SIGTERM\n".encode()

    def end(number: int, frame: object) -> None:
        os.write(sys.stderr.fileno(), line)
        os._exit(INTERRUPTED)

    signal.signal(signal.SIGTERM, end)


def _pods(options: argparse.Namespace) -> int:
    end_on_sigterm("the pods of this run were awaited")
    read = functools.partial(kubernetes_pods.read, options.labels)
    return await_pods(read, options.number, options.timeout, functools.partial(print, flush=True))
