"""The verb that prints the table of remedies: for whoever stands before a node and has no browser."""

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpu_acceptance.base.text import did_you_mean, one_line
from gpu_acceptance.report.remedies import Remedy, table

if TYPE_CHECKING:
    from gpu_acceptance.cli.machine import Verbs


def add_verbs(verbs: "Verbs") -> None:
    remedy = verbs.add_parser(
        "remedy",
        help="print what to do about a kind of failure",
        description="Print what a kind of failure means, what to do with the node, and three things to check first, with commands. A "
        "report names the kind of each failure. Without KIND: list all kinds. Nothing on this machine is read or changed.",
    )
    remedy.add_argument("kind", metavar="KIND", nargs="?", help="a kind of failure, such as repair_pending")
    remedy.set_defaults(verb=_remedy)


def _remedy(options: argparse.Namespace) -> int:
    remedies = table().remedies
    if options.kind is None:
        width = max(map(len, remedies))
        lines = [f"{kind:{width}}  {remedy.severity:7}  {remedy.title}" for kind, remedy in remedies.items()]
    elif options.kind in remedies:
        lines = list(_lines(options.kind, remedies[options.kind]))
    else:
        hint = did_you_mean(options.kind, remedies)
        raise ValueError(f"no kind of failure {one_line(options.kind)!r:.100}{hint} (gpu-acceptance remedy lists them)")
    print("\n".join(lines))
    return 0


def _lines(kind: str, remedy: Remedy) -> Iterator[str]:
    severity = table().severities[remedy.severity]
    yield f"{kind}: {remedy.title}"
    yield f"\n{remedy.means}"
    yield f"\nto do: {remedy.do}"
    for number, check in enumerate(remedy.checks, start=1):
        yield f"\n{number}. {check.look}\n     {check.run}"
    yield f"\n{remedy.severity}: {severity.means}"
    for command in severity.commands:
        yield f"   {command.changes}\n     {command.run}"
    yield "\nsee also:"
    for reference in (table().references[name] for name in remedy.references):
        yield f"   {reference.title}{f': {reference.url}' if reference.url else ''}"
