"""`fabric` prints the network between nodes that this machine shows, and drafts limits for one that has none."""

import argparse
from collections.abc import Iterator
from pathlib import Path

import yaml

from gpu_acceptance.base.text import plural, visible
from gpu_acceptance.cli import arguments
from gpu_acceptance.cli.arguments import Verbs
from gpu_acceptance.inventory import fabric_reader, nvml
from gpu_acceptance.inventory.fabric import FabricClass, NodeFabric, class_of
from gpu_acceptance.run.suite import profiles_of, suite_for
from gpu_acceptance.thresholds.fabric_draft import draft
from gpu_acceptance.thresholds.limit import Profile
from gpu_acceptance.thresholds.profile import fabric_match, fabric_names, load_profile, select_fabric, select_profile

_WIDTH = 118


def add_verb(verbs: Verbs) -> None:
    """Add `fabric`."""
    fabric = arguments.add_verb(verbs, "fabric", _fabric)
    fabric.add_argument("--draft", action="store_true", help="print an overlay with derived limits for this network, to review and to sign")


def _fabric(options: argparse.Namespace) -> int:
    """Print the network between nodes that this machine shows.

    Print the ports that are nearest to a GPU, the class of network that they make, and the fabric whose limits a run on several nodes of
    this kind is judged by. `--draft` prints an overlay for `--limits=FILE` instead, with limits derived from the ports. Touches no GPU.
    """
    gpus = nvml.read().gpus
    if not gpus:
        raise ValueError("this machine has no GPU that NVML shows; a fabric is what connects GPUs of several nodes")
    directory = profiles_of(suite_for(Path.cwd()))
    profile, node = select_profile(gpus[0].name, directory), fabric_reader.read(gpus)
    if node.problem:
        raise ValueError(node.problem)
    seen = class_of([node])
    if options.draft:
        print(drafted(seen, load_profile(profile, directory)), end="")
    else:
        key = (seen.link, seen.ports, seen.gbit_per_s, seen.gpus)
        print(visible("\n".join(_lines(node, seen, select_fabric(*key, profile, directory), profile, directory))))
    return 0


def drafted(seen: FabricClass, profile: Profile) -> str:
    """Return an overlay for a network of this class. Raises ValueError where its ports do not tell a rate."""
    if not seen.ports or not seen.gbit_per_s:
        raise ValueError(f"{seen}: no rate of its ports is known, and nothing can be derived from it; write limits by hand")
    content = draft(seen.link, seen.ports, seen.gbit_per_s, seen.gpus, profile, str(seen))
    text = yaml.safe_dump(content, sort_keys=False, width=_WIDTH)
    return f"# Review every number, put a date in place of YYYY-MM-DD, and give the file to --limits.\n{text}"


def fabrics_beside(profile: str, directory: Path) -> list[str]:
    """Return the fabrics that have limits beside this profile."""
    matches = {one: fabric_match(one, directory) for one in fabric_names(directory)}
    return [one for one, match in matches.items() if not match or not match.profiles or profile in match.profiles]


def _lines(node: NodeFabric, seen: FabricClass, name: str, profile: str, directory: Path) -> Iterator[str]:
    yield f"network  {seen}"
    yield f"fabric   {name or f'none for it beside {profile}: nothing between nodes can pass; --draft prints limits to agree on'}"
    for port in node.ports:
        yield f"  {port.name}: {port.link}{f', {port.gbit_per_s:g} Gbit/s' if port.gbit_per_s else ''}"
    known = fabrics_beside(profile, directory)
    yield f"{plural(len(known), 'fabric')} for {profile} (--fabric=NAME): {', '.join(known)}"
