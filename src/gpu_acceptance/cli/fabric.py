"""`fabric` prints the network between nodes that this machine shows, and drafts limits for one that has none."""

import argparse
from collections.abc import Iterable, Iterator
from pathlib import Path

import yaml

from gpu_acceptance.base.text import plural, visible
from gpu_acceptance.cli import arguments
from gpu_acceptance.cli.arguments import Verbs
from gpu_acceptance.inventory import fabric_reader, infiniband, infiniband_health, nvml
from gpu_acceptance.inventory.fabric import FabricClass, NodeFabric, class_of
from gpu_acceptance.run.suite import profiles_of, suite_for
from gpu_acceptance.thresholds.fabrics import declared_by_fabrics, draft, fabrics_beside, select_fabric
from gpu_acceptance.thresholds.limit import Profile
from gpu_acceptance.thresholds.profile import load_profile, select_profile

_WIDTH = 118
_HEAD = """# Review every number, put a date in place of YYYY-MM-DD, and give the file to --limits.
# ring: the ports of a node one way, or NVLink if that is less. switch: twice these ports, or all_reduce inside a node if that is less.
# port: the ports of one GPU. exchange: these, and more on few nodes, where part of the data stays in the node.
"""


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
    profile, node = select_profile(gpus[0].name, directory, gpus[0].nvlink_to), fabric_reader.read(gpus)
    if node.problem:
        raise ValueError(node.problem)
    seen = class_of([node])
    if options.draft:
        globs = infiniband.globs_of_job(infiniband.NEAREST, node.devices)
        lacking = infiniband_health.lacking(infiniband_health.chosen(infiniband.read(), globs))
        print(drafted(seen, load_profile(profile, directory), directory, lacking), end="")
    else:
        print(visible("\n".join(_lines(node, seen, select_fabric(seen.key, profile, directory), profile, directory))))
    return 0


def drafted(seen: FabricClass, profile: Profile, directory: Path, lacking: Iterable[str] = ()) -> str:
    """Return an overlay for a network of this class. Raises ValueError where its ports do not tell a rate.

    `lacking`: metrics of RDMA ports that the driver does not count.
    """
    if not seen.ports or not seen.gbit_per_s:
        raise ValueError(f"{seen}: no rate of its ports is known, and nothing can be derived from it; write limits by hand")
    declared = declared_by_fabrics(directory)
    shape = seen.link, seen.ports, seen.gbit_per_s, seen.gpus
    content = draft(*shape, profile, seen=str(seen), declared=declared, lacking=lacking)
    text = yaml.safe_dump(content, sort_keys=False, width=_WIDTH)
    return f"{_HEAD}{text}"


def _lines(node: NodeFabric, seen: FabricClass, name: str, profile: str, directory: Path) -> Iterator[str]:
    yield f"network  {seen}"
    yield f"fabric   {name or f'none for it beside {profile}: nothing between nodes can pass; --draft prints limits to agree on'}"
    for port in node.ports:
        yield f"  {port}"
    known = fabrics_beside(profile, directory)
    yield f"{plural(len(known), 'fabric')} for {profile} (--fabric=NAME): {', '.join(known)}"
