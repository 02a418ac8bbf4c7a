"""The networks between nodes: the choice of one among their files, and limits for one without a file, to review and to sign."""

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from gpu_acceptance.base.strict_yaml import Key, parse, shown
from gpu_acceptance.base.text import did_you_mean
from gpu_acceptance.thresholds.file import LimitsError, match_of, read_file
from gpu_acceptance.thresholds.limit import Profile, bound_at
from gpu_acceptance.thresholds.schema import Match

FABRIC = "fabric-"
NO_FABRIC = "none"  # --fabric=none: what nodes say to each other has the limits of overlays alone
_PARENT = "base"
_OF_A_SWITCH = 8  # GPUs of a node whose NVSwitch reduces
_SHARED = {"unit": "GB/s", "scope": "job", "nodes": "several"}
_ASIDE = {
    "nccl.*.busbw_internode_medium": "depends on latency: nothing can be derived",
    "fsdp.*.throughput_internode": "what is trained is judged, not how fast",
}


def fabrics(directory: Path) -> dict[str, Match | None]:
    """The networks between nodes that have a file, `8x400-ib`, with the key by which the inventory chooses each; None: --fabric does."""
    return {name: match_of(path) for name, path in fabric_paths(directory).items() if not name.startswith(_PARENT)}


def declared_by_fabrics(directory: Path) -> Mapping[str, str]:
    """The metrics that every network between nodes declares not applicable, and why."""
    path = fabric_paths(directory).get(_PARENT)
    return read_file(path).content.not_applicable if path else {}


def fabrics_beside(profile: str, directory: Path) -> dict[str, Match | None]:
    """The fabrics that may be judged beside this profile; beside base, which is no GPU's, all."""
    found = fabrics(directory)
    return {name: match for name, match in found.items() if not match or profile in (_PARENT, *(match.profiles or [profile]))}


def select_fabric(seen: Mapping[str, object], profile: str, directory: Path) -> str:
    """The fabric whose `match` is this network beside this profile; empty if there is none. `seen`: by key of `match.fabric`."""
    matches = {name: match.fabric for name, match in fabrics_beside(profile, directory).items() if match and match.fabric}
    found = [name for name, wanted in matches.items() if all(getattr(wanted, key) in (None, value) for key, value in seen.items())]
    if len(found) > 1:
        raise LimitsError(f"the network is matched by two fabrics, {' and '.join(found)}; name one with --fabric=NAME")
    return found[0] if found else ""


def refuse_unknown_fabric(fabric: str, profile: str, directory: Path) -> None:
    """Raise LimitsError over a name that no fabric has which may be judged beside this profile."""
    known = [*fabrics_beside(profile, directory), NO_FABRIC]
    if fabric in known:
        return
    match = fabrics(directory).get(fabric)
    problem = f"fabric {fabric} is for {', '.join(match.profiles or ())}" if match else f"no fabric {shown(fabric)}"
    raise LimitsError(f"{problem}; fabrics for {profile}: {', '.join(known)}{did_you_mean(fabric, known)}")


def fabric_paths(directory: Path) -> dict[str, Path]:
    return {path.stem.removeprefix(FABRIC): path for path in sorted(directory.glob(f"{FABRIC}*.yaml"))}


def draft(
    link: str, ports: int, gbit_per_s: float, gpus: int, profile: Profile, *, seen: str, declared: Mapping[str, str], lacking: Iterable[str]
) -> dict[str, Any]:
    """Return an overlay for a node with these ports of this rate beside its GPUs.

    `link`: IB or RoCE; no other tells its rate. `seen`: the network in words. `declared`: what every fabric declares not applicable.
    `lacking`: metrics that its driver does not count.
    """
    lacks = dict.fromkeys(sorted(lacking), "the driver of these ports has no such counter")
    aside = dict(declared) | _ASIDE | lacks | ({"infiniband.roce.*": "no port is Ethernet"} if link == "IB" else {})
    return {
        "reason": f"{seen} has no fabric of its own: derived limits, to review and to sign",
        "requires": ["connectivity", "infiniband", "nic"],
        "parameters": {"nic.asked": True},
        "not_applicable": aside,
        "limits": {**_bought(link, ports, gbit_per_s, gpus, seen), **_rates(ports * gbit_per_s / 8, gpus, profile)},
    }


def _bought(link: str, ports: int, gbit_per_s: float, gpus: int, seen: str) -> Mapping[str, Any]:
    source = f"policy: {seen} was bought; agreed on YYYY-MM-DD"
    transport = {"equals": link, "unit": "text", "source": source}
    return {
        "nccl.transport.internode": {**transport, "scope": "node", "nodes": "several"},
        "nic.loopback.transport": {**transport, "scope": "rank"},
        "infiniband.ports.rate": {"at_least": gbit_per_s, "unit": "Gbit/s", "scope": "node", "source": source},
        "infiniband.devices.per_gpu": {"at_least": ports / gpus, "source": source},
    }


def _rates(node: float, gpus: int, profile: Profile) -> Mapping[str, Any]:
    """Return a limit for each metric of fabrics.yaml. `node`: GB/s of all ports of a node one way."""
    return {
        metric: {
            "at_least": {"nodes": {str(many): _floor(str(many), parts, node, gpus, profile) for many, parts in share["nodes"].items()}},
            **_SHARED,
            "world": [gpus],
            "ceiling": _round(2 * node),
            "source": f"derived: {_in_words(share['nodes'])}; seen: {share['seen']}; less 5 %; agreed on YYYY-MM-DD",
        }
        for metric, share in _data()["shares"].items()
    }


def _floor(many: str, parts: Mapping[str, float], node: float, gpus: int, profile: Profile) -> float:
    """Return the part of what physics allows on the largest of these numbers of nodes; of two parts the first that this GPU has."""
    most = int(many.rpartition("-")[2])
    ranks = most * gpus
    physics = {"exchange": node / gpus * most / (most - 1), "port": node / gpus}
    physics["ring"] = min(node, _data()["nvlink"].get(profile.name, {"rate": node})["rate"])
    if nvls := _nvls(profile):
        physics["switch"] = min(2 * node * (ranks - 1) / ranks, nvls)
    of = next(of for of in parts if of in physics)
    return _round(parts[of] * physics[of])


def _in_words(nodes: Mapping[str, Mapping[str, float]]) -> str:
    return ", ".join(f"{' or '.join(f'{part} of the {of}' for of, part in parts.items())} on {many} nodes" for many, parts in nodes.items())


def _nvls(profile: Profile) -> float | None:
    """Return the floor of all_reduce in GB/s inside a node whose switch reduces (NVLS); None where it does not."""
    algorithm, rate = (profile.limits.get(f"nccl.all_reduce.{name}") for name in ("algorithm", "busbw"))
    return bound_at(rate.at_least, _OF_A_SWITCH, 1) if algorithm and rate and algorithm.equals == "NVLS" else None


@cache
def _data() -> Mapping[Key, Any]:
    return parse(Path(__file__).with_suffix(".yaml").read_bytes()).data


def _round(number: float) -> float:
    """Return a floor with 3 significant digits or fewer, rounded down."""
    return float(int(number)) if number >= 100 else int(number * 10) / 10
