"""A job of several nodes on a simulated network, judged as a run is: sysfs trees and NCCL logs through the readers, rates as numbers."""

import atexit
import os
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory, mkdtemp

from inventory.rdma_trees import CONNECTX_7, COUNTERS, HW_COUNTERS, NDR_PORT, fill

from gpu_acceptance.inventory import counters, fabric_reader, infiniband, infiniband_health, nccl_log, nccl_physics
from gpu_acceptance.inventory.fabric import FabricClass, class_of
from gpu_acceptance.inventory.gpu import Gpu
from gpu_acceptance.inventory.pci_topology import nvml_bus_id, place
from gpu_acceptance.record.figure import make_figure
from gpu_acceptance.record.job import Job
from gpu_acceptance.record.row import Attempt, Row
from gpu_acceptance.record.run_record import Conclusion
from gpu_acceptance.thresholds.fabrics import fabrics, select_fabric
from gpu_acceptance.thresholds.levels import at_level
from gpu_acceptance.thresholds.limit import Profile, allowed_values, bound_at, matching_reason
from gpu_acceptance.thresholds.profile import load_profile, shipped_dir
from gpu_acceptance.verdict.coverage import applying_limits
from gpu_acceptance.verdict.rows import make_row
from gpu_acceptance.verdict.verdict import conclude
from tests.judging import make_job, make_plan, make_record, spread_of

NETWORK = frozenset({"connectivity", "infiniband", "nic", "nccl", "nccl_ring", "nccl_sizes", "nccl_scaling"})
SMALL, LARGE = 2**27, 2**32
_RATES = {
    400: "400 Gb/sec (4X NDR)",
    200: "200 Gb/sec (4X HDR)",
    100: "100 Gb/sec (4X EDR)",
    50: "50 Gb/sec (2X EDR)",
    800: "800 Gb/sec (4X XDR)",
}
_LAYERS = {"IB": "InfiniBand", "RoCE": "Ethernet", "EFA": "Unspecified"}
_PLUGINS = {"IB": "IB", "RoCE": "IB", "EFA": "AWS Libfabric"}
_OF_RATE = ("busbw_internode", "busbw_internode_medium", "busbw_pair", "busbw_node", "throughput_internode")
# Of this GPU no profile is shipped, for the suite does not run there: the B200's stands in for it.
STAND_IN = {"mi300x": "AMD Instinct MI300X"}
_PCI_DRIVERS = {"mlx5": "mlx5_core", "bnxt_re": "bnxt_en", "irdma": "ice"}
# What a driver other than mlx5 counts (Linux, drivers/infiniband/hw): bnxt_re also shows `counters`, of which it fills the last two.
_HW_COUNTERS = {
    "mlx5": HW_COUNTERS,
    "bnxt_re": ("seq_err_naks_rcvd", "oos_drop_count", "rx_roce_errors", "to_retransmits", "active_qps", "tx_bytes", "rx_bytes"),
    "irdma": ("ip4InDiscards", "ip4OutOctets", "cnpHandled"),
    "efa": ("tx_bytes", "rx_bytes", "rx_drops"),
}


@dataclass(frozen=True)
class Network:
    """The network beside the GPUs of a node, and the way by which NCCL goes from node to node."""

    link: str
    ports: int
    gbit_per_s: int
    via: str = ""  # in place of the plug-in of its link: `Socket`
    gpudirect: bool = True
    gpus: int = 8
    driver: str = "mlx5"
    has_counters: bool = True  # the folder `counters`; bnxt_re has it on a newer Linux alone
    counted: tuple[tuple[str, int], ...] = ()  # what hw_counters of port 3 have counted
    nvlink_domain: str = ""
    sharp: bool = False
    down: tuple[int, ...] = ()
    slow: tuple[int, ...] = ()  # ports at half rate
    gone: tuple[int, ...] = ()
    storage: str = ""  # link and driver of a slower card below the switch of GPU 0, which serves storage: `RoCE mlx5`


@dataclass(frozen=True)
class Cluster:
    """A job on this network. `odd`: nodes with another one. `factors`: (metric, node or -1 for all) -> part of a sound rate."""

    profile: str
    network: Network
    num_nodes: int
    odd: dict[int, Network] = field(default_factory=dict)
    factors: dict[tuple[str, int], float] = field(default_factory=dict)
    asked: str = ""  # --fabric
    limits: tuple[Path, ...] = ()  # --limits
    whole: bool = False  # all limits of the profile; else those of what goes between GPUs and nodes

    @property
    def gpus(self) -> int:
        return self.network.gpus


@cache
def directory() -> Path:
    """The shipped limits, with a stand-in."""
    folder = Path(mkdtemp(prefix="fabrics-of-tests-"))
    atexit.register(rmtree, folder)
    for path in shipped_dir().glob("*.yaml"):
        (folder / path.name).symlink_to(path)
    for name, model in STAND_IN.items():
        (folder / f"{name}.yaml").write_text(f'extends: b200\nmatch: {{device_name: "{model}"}}\n')
    return folder


def network_of(name: str) -> Network:
    """The network that a shipped fabric is for. One that nothing shows is that of its parent."""
    found = fabrics(directory())[name]
    match = found.fabric if found else None
    if match is None:
        return Network("none", 0, 0, via="Socket", gpudirect=False) if name == "ethernet" else replace(network_of("8x400-ib"), sharp=True)
    if match.link == "gVNIC":
        return Network("gVNIC", match.ports, 0, via="FasTrak" if match.ports == 8 else "GPUDirectTCPX_v7")
    gpus = match.gpus or 8
    if match.link == "NVLink":
        return Network("IB", gpus, 400, via="P2P/MNNVL", gpus=gpus, nvlink_domain="rack/1")
    return Network(match.link, match.ports or gpus, int(match.gbit_per_s or 100), gpus=gpus, driver=match.driver or "mlx5")


def judge(cluster: Cluster) -> Conclusion:
    """Judge a run at level full in which all else is sound."""
    job = _job(cluster)
    seen = job.fabric_class
    fabric = cluster.asked or chosen(seen or FabricClass("none", 0, None, cluster.gpus), cluster.profile)
    profile = profile_on(cluster.profile, fabric, cluster.limits, cluster.whole)
    shown = _figures(cluster, profile, job)
    beside = [limit.metric for limit in applying_limits(profile, job) if matching_reason(limit.metric, profile.not_applicable) is None]
    rows = [_sound_row(profile, job, metric) for metric in beside if metric not in shown]
    rows += [_row(metric, by_rank, profile, job) for metric, by_rank in sorted(shown.items())]
    return conclude(make_plan(profile), job, rows)


@cache
def chosen(seen: FabricClass, profile: str) -> str:
    return select_fabric(seen.key, profile, directory())


@cache
def model_of(profile: str) -> str | None:
    return load_profile(profile, directory()).device_name


@cache
def profile_on(name: str, fabric: str, overlays: tuple[Path, ...], whole: bool) -> Profile:
    profile = at_level(load_profile(name, directory(), overlays, fabric=fabric), "full")
    if whole:
        return profile
    limits = {metric: limit for metric, limit in profile.limits.items() if limit.subject in NETWORK}
    return replace(profile, limits=limits, requires=profile.requires & NETWORK)


_SOUND: dict[tuple, Row] = {}


def _sound_row(profile: Profile, job: Job, metric: str) -> Row:
    key = (profile.name, profile.digest, len(profile.limits), job.num_nodes, metric)
    if key not in _SOUND:
        _SOUND[key] = _make_sound_row(profile, job, metric)
    return _SOUND[key]


def _make_sound_row(profile: Profile, job: Job, metric: str) -> Row:
    value = sound_value(profile.limits[metric], job.gpus_per_node, job.num_nodes)
    return _row(metric, dict.fromkeys(range(job.world_size), (value, profile.limits[metric].unit, "")), profile, job)


def _row(metric: str, by_rank: dict[int, tuple], profile: Profile, job: Job) -> Row:
    limit = profile.limits.get(metric)
    spread = bound_at(limit.spread_at_most, job.gpus_per_node, job.num_nodes) if limit else None
    records = [
        make_record(rank, figures=(_other(rank), *([_figure(metric, by_rank[rank], spread)] if rank in by_rank else [])))
        for rank in range(job.world_size)
    ]
    subject = "launch" if metric.startswith("counters") else metric.split(".")[0]
    attempt = Attempt(number=1, ranks=tuple(records))
    return make_row(f"acceptance/test_{subject}.py::test_it[{metric}]", (attempt,), profile, job, {}, 60.0)


def _figure(metric, shown, spread):
    value, unit, detail = shown
    return make_figure(metric, value, unit, judged=True, spread=spread_of(spread), detail=detail)


@cache
def _other(rank):
    return make_figure("launch.kernels.round_trip", 1.0 + rank, "us", judged=False)


def sound_value(limit, *shape):
    """Return what a sound machine shows at these GPUs per node and nodes: 5 % above a floor (5 % below a reading), on any other bound."""
    if limit.at_least is not None:
        floor = bound_at(limit.at_least, *shape)
        return min(floor / 0.95, limit.ceiling or floor / 0.95) if limit.unit.endswith("/s") else floor
    if limit.equals is not None:
        return allowed_values(limit.equals)[0]
    return bound_at(limit.at_most, *shape) if limit.at_most is not None else (limit.ceiling or 2.0) / 2 if limit.peers else "the same"


def _job(cluster: Cluster) -> Job:
    job = make_job(cluster.gpus * cluster.num_nodes, cluster.gpus)
    model = model_of(cluster.profile)
    identities, of_node = [], {}
    for identity in job.ranks:
        seen = node_with(cluster.odd.get(identity.node, cluster.network))
        if identity.node not in of_node:
            of_node[identity.node] = tuple(gpu.model_copy(update={"name": model}) for gpu in identity.gpus)
        gpus = of_node[identity.node]
        identities.append(identity.model_copy(update={"gpus": gpus, "fabric": seen.fabric if identity.local_rank == 0 else None}))
    return Job(tuple(identities))


def _figures(cluster: Cluster, profile: Profile, job: Job) -> dict[str, dict[int, tuple]]:
    """Metric -> rank -> value, unit and detail, of what the network shows and of the rates between nodes."""
    found: dict[str, dict[int, tuple]] = {}

    def show(rank, findings):
        for metric, value, unit, detail, *_ in findings:
            if matching_reason(metric, profile.not_applicable) is None:
                found.setdefault(metric, {})[rank] = (value, unit, detail)

    nodes = [identity.node for identity in job.ranks]
    told = []
    for identity in job.ranks:
        network = cluster.odd.get(identity.node, cluster.network)
        seen, log = node_with(network), _log(network, identity.rank, job.world_size)
        told.append(nccl_physics.told_reduction(log))
        show(identity.rank, nccl_physics.findings(log, LARGE, nodes, identity.rank))
        if "infiniband" in profile.requires:
            show(identity.rank, infiniband_health.devices(seen.used, tuple(range(cluster.gpus)), seen.places[identity.local_rank]))
            show(identity.rank, seen.findings if identity.local_rank == 0 else ())
        if "nic" in profile.requires:
            of_node = [_name(network, port) for port in range(network.ports) if port not in network.gone]
            loop = loopback_log(network, identity.local_rank)
            show(identity.rank, nccl_physics.loopback(loop, [0] * cluster.gpus, [", ".join(of_node)], seen.used.devices))
    show(0, nccl_physics.reduction(told, nodes))
    for limit in applying_limits(profile, job):
        if limit.metric.split(".")[-1] in _OF_RATE and matching_reason(limit.metric, profile.not_applicable) is None:
            sound = sound_value(limit, job.gpus_per_node, job.num_nodes)
            for identity in job.ranks:
                factor = cluster.factors.get((limit.metric, identity.node), cluster.factors.get((limit.metric, -1), 1.0))
                found.setdefault(limit.metric, {})[identity.rank] = (sound * factor, limit.unit, "")
    return found


@dataclass(frozen=True)
class SeenNode:
    """One node as the readers see it."""

    fabric: object
    used: infiniband.InfiniBand
    places: list
    findings: tuple
    counted: dict  # of the ports that the job uses


MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # some hundred files for each node


@cache
def node_with(network: Network) -> SeenNode:
    with TemporaryDirectory(dir=MEMORY) as name:
        root = Path(name)
        addresses = [_add_gpu(root, network, index) for index in range(network.gpus)]
        for port in range(network.ports):
            if port not in network.gone:
                _add_port(root, network, port)
        if network.link != "gVNIC":
            _add_storage(root)
        if network.storage:
            link, driver = network.storage.split()
            path = f"{_switch(network, 0)[0]}/0000:12:1f.0/0000:1f:00.0"
            port = {**NDR_PORT, "link_layer": _LAYERS[link], "rate": _RATES[100]}
            _add_device(root, "storage_0", path, port, 0, _PCI_DRIVERS[driver])
        gpus = [
            Gpu(index=index, name="", pci_bus_id=nvml_bus_id(address), nvlink_domain=network.nvlink_domain)
            for index, address in enumerate(addresses)
        ]
        places = [place(gpu.pci_bus_id, root) for gpu in gpus]
        fabric, reading = fabric_reader.read(gpus, root), infiniband.read(root)
        globs = infiniband.globs_of_job(infiniband.NEAREST, fabric.devices)
        used, counted = infiniband_health.chosen(reading, globs), counters.read_ports(globs, root)
        topics = (infiniband_health.ports, infiniband_health.counters, infiniband_health.roce, infiniband_health.gpudirect)
        findings = [*fabric_reader.network(reading.devices, places), *(one for topic in topics for one in topic(used))]
    return SeenNode(fabric, used, places, tuple(findings), counted)


def _switch(network: Network, index: int) -> tuple[str, int]:
    """The PCIe switch of this GPU, and its bus. Where there are fewer ports than GPUs, GPUs share a switch with a port."""
    bus = 0x10 * (index * min(network.ports or network.gpus, network.gpus) // network.gpus + 1)
    return f"pci0000:{bus:02x}/0000:{bus:02x}:01.0/0000:{bus + 1:02x}:00.0", bus


def _add_gpu(root: Path, network: Network, index: int) -> str:
    switch, bus = _switch(network, index)
    address = f"0000:{bus + 8 + index % 2:02x}:00.0"
    folder = root / "sys/devices" / f"{switch}/0000:{bus + 2:02x}:{0x10 + index % 2:02x}.0/{address}"
    fill(folder, {"numa_node": index * 2 // network.gpus})
    link = root / "sys/bus/pci/devices" / address
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(folder)
    fill(root, {"proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04"})
    fill(root, {"proc/sys/kernel/osrelease": "6.8.0-45-generic", "sys/module/nvidia_peermem/version": "1"})
    return address


def _add_port(root: Path, network: Network, port: int) -> None:
    gpu = port * network.gpus // network.ports
    switch, bus = _switch(network, gpu)
    slot = port - (gpu * network.ports + network.gpus - 1) // network.gpus  # of the ports of this GPU
    path = f"{switch}/0000:{bus + 2:02x}:{slot + 1:02x}.0/0000:{bus + 4 + slot:02x}:00.0"
    if network.link == "gVNIC":
        folder = fill(root / "sys/devices" / path, {"numa_node": gpu * 2 // network.gpus}) / "net" / f"eth{port + 1}"
        _link(root, folder, path, f"sys/class/net/eth{port + 1}", "gve", "../..")
        return
    rate = network.gbit_per_s // 2 if port in network.slow else network.gbit_per_s
    driver = "efa" if network.link == "EFA" else network.driver
    counted = dict(network.counted) if port == 3 else {}
    clean = {"hw_counters": dict.fromkeys(_HW_COUNTERS[driver], 0) | counted}
    if network.has_counters and driver in ("mlx5", "bnxt_re"):
        clean["counters"] = dict.fromkeys(COUNTERS, 0) | ({"port_xmit_data": 0} if driver == "mlx5" else {})
    state = {"state": "1: DOWN", "phys_state": "2: Polling", "rate": "10 Gb/sec (4X SDR)"} if port in network.down else {}
    bare = {name: value for name, value in NDR_PORT.items() if name != "counters"}
    files = {**bare, **clean, "link_layer": _LAYERS[network.link], "rate": _RATES[rate], **state}
    _add_device(root, _name(network, port), path, files, gpu * 2 // network.gpus, _PCI_DRIVERS.get(driver, driver))


def _name(network: Network, port: int) -> str:
    return f"{network.driver}_{port}"


def _add_storage(root: Path) -> None:
    """A card below a host bridge of its own, with a port that nobody uses."""
    files = {**NDR_PORT, "state": "1: DOWN", "phys_state": "3: Disabled", "rate": "10 Gb/sec (4X SDR)"}
    _add_device(root, "mlx5_storage", "pci0000:f0/0000:f0:01.0/0000:f1:00.0", files, 0, "mlx5_core")


def _add_device(root: Path, name: str, path: str, port: dict, numa: int, driver: str) -> None:
    pci = root / "sys/devices" / path
    fill(pci, {"numa_node": numa})
    folder = fill(pci / "infiniband" / name, {**CONNECTX_7, "ports": {"1": port}})
    _link(root, folder, path, f"sys/class/infiniband/{name}", driver, "../..")


def _link(root: Path, folder: Path, path: str, name: str, driver: str, up: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "device").symlink_to(up)
    pci = root / "sys/devices" / path
    (pci / "driver").symlink_to(f"/sys/bus/pci/drivers/{driver}")
    for link, target in ((root / "sys/bus/pci/devices" / pci.name, pci), (root / name, folder)):
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)


def _log(network: Network, rank: int, world_size: int) -> nccl_log.NcclLog:
    """NCCL's log of a rank in a ring, which goes on to the next node from the last rank of each."""
    gpus = network.gpus
    following, device = (rank + 1) % world_size, rank % gpus
    way = "P2P/CUMEM" if following // gpus == rank // gpus else _via(network, device)
    lines = [*_head(network), f"AllReduce: {LARGE} Bytes -> Algo NVLS_TREE proto SIMPLE channel{{Lo..Hi}}={{0..15}}"]
    lines += [f"Channel 00/0 : {rank}[{device}] -> {following}[{following % gpus}] [send] via {way}"]
    if network.sharp:
        lines.append(f"CollNet 00/0 : {rank} [send] via COLLNET/SHARP/{device}/GDRDMA")
    return _parse(lines)


def loopback_log(network: Network, local_rank: int) -> nccl_log.NcclLog:
    partner = local_rank ^ 1
    return _parse([*_head(network), f"Channel 00/1 : {local_rank}[0] -> {partner}[0] [send] via {_via(network, local_rank)}"])


def _via(network: Network, device: int) -> str:
    plugin = network.via or _PLUGINS[network.link]
    if plugin.startswith("P2P"):
        return plugin
    number = device * max(network.ports, 1) // network.gpus
    return f"NET/{plugin}/{number}{'/GDRDMA' if network.gpudirect else ''}"


def _head(network: Network) -> list[str]:
    if network.link == "EFA":
        return ["NET/OFI Selected provider is efa, fabric is efa-direct (found 16 nics)"]
    devices = " ".join(f"[{port}]{_name(network, port)}:1/{network.link}" for port in range(network.ports))
    return [f"NET/IB : Using {devices} [RO]; OOB eth0:192.0.2.2<0>"] if network.link in ("IB", "RoCE") else []


def _parse(lines: list[str]) -> nccl_log.NcclLog:
    return nccl_log.parse("\n".join(f"n:1:7 [0] NCCL INFO {line}" for line in lines), 1)


def kind_of(network: Network) -> FabricClass:
    """The class that the inventory sees in a node with this network."""
    return class_of([node_with(network).fabric])


def lacking_in(network: Network) -> list[str]:
    """The metrics that the driver of these ports does not count."""
    return list(infiniband_health.lacking(node_with(network).used))
