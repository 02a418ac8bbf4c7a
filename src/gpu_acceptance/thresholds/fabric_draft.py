"""Limits for a network between nodes that has no file, to review and to sign: parts of physics, as fabric_draft.yaml has them."""

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from gpu_acceptance.base.strict_yaml import Key, parse
from gpu_acceptance.thresholds.limit import Profile, bound_at

_OF_A_SWITCH = 8  # GPUs of a node whose NVSwitch reduces
_SHARED = {"unit": "GB/s", "scope": "job", "nodes": "several"}
_ASIDE = {
    "nccl.*.busbw_internode_medium": "depends on latency: nothing can be derived",
    "fsdp.*.throughput_internode": "what is trained is judged, not how fast",
}


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
    """Return a limit for each metric of fabric_draft.yaml. `node`: GB/s of all ports of a node one way."""
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
