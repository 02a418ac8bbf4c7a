"""The verb with which the nodes of a run find each other before their launchers do."""

import argparse
import functools
import re
import socket
import sys
from typing import TYPE_CHECKING

from gpu_acceptance.base.text import one_line
from gpu_acceptance.cli.arguments import matching, not_allowed, seconds, whole_number
from gpu_acceptance.cli.pods import end_on_sigterm
from gpu_acceptance.control.meeting import Place, meet
from gpu_acceptance.control.rank import JOIN_S

if TYPE_CHECKING:
    from gpu_acceptance.cli.machine import Verbs

_PLACE = re.compile(r"(?a:\[?([\w.:-]{1,253}?)\]?):([0-9]{1,5})")


def add_verbs(verbs: "Verbs") -> None:
    meet = verbs.add_parser(
        "meet",
        help="check that all nodes of a run find each other, before torchrun starts on them",
        description="Give this command on each node of a run, with the same arguments. It waits until all nodes have connected to "
        "HOST:PORT, and returns 0 on all of them. Node 0 listens there; without --node it is the host that HOST leads to. The port is free "
        "again when the command ends. Exit code 4, with one line that says why: the address leads elsewhere, the port is taken, or the "
        "numbers disagree. Exit code 6: a node did not come in time. Every 15 s a line names the nodes that are missing.",
    )
    meet.add_argument(
        "place", metavar="HOST:PORT", type=_place, help="address of node 0, as the other nodes reach it, and the port where ranks will meet"
    )
    meet.add_argument("--nodes", metavar="N", type=whole_number(), required=True, help="number of nodes of the run")
    meet.add_argument("--node", metavar="I", type=_node, help="number of this node, from 0; give it on all nodes or on none")
    name = matching(r"(?a:[\w.:-]{1,200})", "letters, digits, '.', ':', '_' and '-', at most 200")
    meet.add_argument("--run", metavar="NAME", type=name, help="name of the run, the same on all nodes")
    meet.add_argument(
        "--timeout",
        metavar="TIME",
        type=seconds,
        default=JOIN_S,
        help=f"how long to wait: seconds, or a number with s, m or h (default: {JOIN_S:g} s)",
    )
    meet.set_defaults(verb=_meet)


def _place(text: str) -> tuple[str, int]:
    found = _PLACE.fullmatch(text)
    if not found or not 1 <= int(found[2]) <= 65535:
        raise not_allowed(text, "HOST:PORT with a port from 1 to 65535")
    return found[1], int(found[2])


def _node(text: str) -> int:
    return int(matching(r"[0-9]{1,5}", "0 to 99999")(text))


def _meet(options: argparse.Namespace) -> int:
    if options.node is not None and options.node >= options.nodes:
        raise ValueError(f"--node={options.node} of --nodes={options.nodes}: nodes are numbered from 0 to {options.nodes - 1}")
    end_on_sigterm("the nodes of this run were awaited")
    address, port = options.place
    place = Place(address, port, options.nodes, options.node, options.run or "", options.timeout, socket.gethostname())
    answer = meet(place, functools.partial(print, flush=True))
    if answer.exit_code:
        print(f"gpu-acceptance: {one_line(answer.text)}", file=sys.stderr)
    return answer.exit_code
