"""Limits for a network between nodes that has no file: physics times the part of it that sound clusters reach, to review and to sign.

B is what all ports of a node carry one way, W the NVLink rate of one GPU as NCCL gets it. A ring crosses every node once, so that its bus
bandwidth is at most min(B, W). With all_reduce on 2 nodes each message leaves a node once; above that a tree sends it twice. all_to_all is
the rate of the ports of one GPU x N / (N - 1) for N nodes (NVIDIA/nccl-tests#130). The parts are the lowest that public runs of sound
clusters reached, less 5 %.
"""

from collections.abc import Mapping
from typing import Any

from gpu_acceptance.thresholds.limit import Profile, bound_at

_NVLINK = {"a100-sxm": 235.0, "h100-sxm": 370.0, "h200-sxm": 370.0, "b200": 680.0}  # GB/s, rings of one node
_OF_A_SWITCH = 8  # GPUs of a node whose NVSwitch reduces
_SEVERAL = {"unit": "GB/s", "scope": "job", "nodes": "several"}
_COLLECTIVES = "{nccl,nccl_sizes}"
_SHARE = "of what sound clusters of other networks reach, less 5 %; agreed on YYYY-MM-DD"
_TRANSPORTS = {"IB": "IB", "RoCE": "RoCE", "EFA": "EFA", "gVNIC": ["FasTrak", "GPUDirectTCPX"], "none": ["Socket", "FastSocket"]}


def draft(link: str, ports: int, gbit_per_s: float, gpus: int, profile: Profile, seen: str) -> dict[str, Any]:
    """Return an overlay for a node with these ports of this rate beside its GPUs. `seen`: the network in words."""
    node = ports * gbit_per_s / 8
    ring = min(node, _NVLINK.get(profile.name, node))
    return {
        "reason": f"{seen} has no fabric of its own: derived limits, to review and to sign",
        "requires": ["connectivity", *(["infiniband", "nic"] if link in ("IB", "RoCE") else [])],
        "parameters": {"nic.asked": link in ("IB", "RoCE")},
        "not_applicable": _not_applicable(link),
        "limits": {**_transport(link, seen), **_ports(link, ports, gbit_per_s, gpus), **_rates(node, ring, gpus, _nvls(profile))},
    }


def _not_applicable(link: str) -> Mapping[str, str]:
    aside = {
        "nccl.all_reduce.algorithm_internode": "NCCL's choice between nodes differs by version; its rate is judged",
        "nccl.*.busbw_internode_medium": "depends on latency: nothing can be derived",
        "nccl_sizes.broadcast.busbw_internode": "judged by its content",
        "nccl_sizes.reduce.busbw_internode": "judged by its content",
        "ddp.*.throughput_internode": "what communication costs is judged: its efficiency",
        "ddp_short.*.throughput_internode": "what communication costs is judged: its efficiency",
        "fsdp.*.throughput_internode": "what is trained is judged, not how fast",
        "lora_convergence.throughput_internode": "what communication costs is judged: its efficiency",
        "nic.loopback.bandwidth": "nobody has published this reading",
    }
    return aside | ({"infiniband.roce.*": "no port is Ethernet"} if link == "IB" else {})


def _transport(link: str, seen: str) -> Mapping[str, Any]:
    source = f"policy: {seen} was bought; agreed on YYYY-MM-DD"
    equals = {"equals": _TRANSPORTS[link], "unit": "text", "source": source}
    loopback = {"nic.loopback.transport": {**equals, "scope": "rank"}} if link in ("IB", "RoCE") else {}
    return {"nccl.transport.internode": {**equals, "scope": "node", "nodes": "several"}, **loopback}


def _ports(link: str, ports: int, gbit_per_s: float, gpus: int) -> Mapping[str, Any]:
    if link not in ("IB", "RoCE"):
        return {}
    source = "policy: what was bought; agreed on YYYY-MM-DD"
    return {
        "infiniband.ports.rate": {"at_least": gbit_per_s, "unit": "Gbit/s", "scope": "node", "source": source},
        "infiniband.devices.per_gpu": {"at_least": ports / gpus, "source": source},
    }


def _nvls(profile: Profile) -> float | None:
    """Return the floor of all_reduce in GB/s inside a node whose switch reduces (NVLS); None where it does not."""
    algorithm, rate = (profile.limits.get(f"nccl.all_reduce.{name}") for name in ("algorithm", "busbw"))
    return bound_at(rate.at_least, _OF_A_SWITCH, 1) if algorithm and rate and algorithm.equals == "NVLS" else None


def _rates(node: float, ring: float, gpus: int, nvls: float | None) -> Mapping[str, Any]:
    ranks = 2 * gpus
    pair = 0.8 * min(2 * node * (ranks - 1) / ranks, nvls) if nvls else 0.88 * ring
    most, all_to_all = {"ceiling": _round(2 * node)}, 0.73 * node / gpus
    return {
        f"{_COLLECTIVES}.all_reduce.busbw_internode": {
            "at_least": {"nodes": {"2": _round(pair), "3-9999": _round(0.72 * ring)}},
            **_SEVERAL,
            **most,
            "source": f"derived: 0.80 of the least of 2 B and NVLS (without NVLS 0.88 B) on 2 nodes, 0.72 B above: {_SHARE}",
        },
        "nccl_ring.all_reduce.busbw_internode": {
            "at_least": _round(0.78 * ring),
            **_SEVERAL,
            **most,
            "source": f"derived: 0.78 of the least of B and W: {_SHARE}",
        },
        f"{_COLLECTIVES}.{{all_gather,reduce_scatter}}.busbw_internode": {
            "at_least": {"nodes": {"2-8": _round(0.70 * ring), "9-9999": _round(0.62 * ring)}},
            **_SEVERAL,
            **most,
            "source": f"derived: 0.70 of the least of B and W up to 8 nodes, 0.62 above: {_SHARE}",
        },
        "nccl_sizes.all_to_all.busbw_internode": {
            "at_least": {"nodes": {"2": _round(2 * all_to_all), "3-4": _round(all_to_all * 4 / 3), "5-9999": _round(all_to_all)}},
            **_SEVERAL,
            **most,
            "source": f"derived: 0.73 of the rate of one GPU's ports x N / (N - 1): {_SHARE}",
        },
        "nccl_sizes.send_recv.busbw_internode": {
            "at_least": _round(0.87 * node / gpus),
            **_SEVERAL,
            **most,
            "source": f"derived: 0.87 of the rate of one GPU's ports: {_SHARE}",
        },
    }


def _round(number: float) -> float:
    """Return a floor with 3 significant digits or fewer, rounded down."""
    return float(int(number)) if number >= 100 else int(number * 10) / 10
