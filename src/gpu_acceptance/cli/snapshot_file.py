"""A snapshot: one node as one file, written on the machine, read and judged anywhere."""

import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError

from gpu_acceptance import __version__
from gpu_acceptance.base.files import write_atomically
from gpu_acceptance.base.model import first_problem
from gpu_acceptance.base.strict_yaml import StrictYamlError, parse
from gpu_acceptance.base.text import one_line, plural
from gpu_acceptance.folder.files import RESULTS, RecordError, read_regular
from gpu_acceptance.inventory import declared, fabric_reader, gpu_health, infiniband_health, kernel_log, node
from gpu_acceptance.inventory.answer import Missing
from gpu_acceptance.inventory.declared import DeclaredNode
from gpu_acceptance.inventory.fabric import NodeFabric
from gpu_acceptance.inventory.gpu import Gpu, GpuReading
from gpu_acceptance.inventory.infiniband import InfiniBand, globs_of_job, place_of
from gpu_acceptance.inventory.node import NodeReading
from gpu_acceptance.record.figure import make_figure, parts_of
from gpu_acceptance.record.job import Job, RankIdentity
from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.record.row import Attempt, RankRecord, Row
from gpu_acceptance.record.run_record import Conclusion, RunPlan
from gpu_acceptance.thresholds.limit import Profile
from gpu_acceptance.thresholds.profile import with_declared_nodes
from gpu_acceptance.verdict import busy
from gpu_acceptance.verdict.rows import make_row
from gpu_acceptance.verdict.verdict import conclude

_RUN = "the record of a run (`gpu-acceptance report build DIR` makes its report)"
_NVIDIA_SMI = re.compile(r"\| NVIDIA-SMI \d|=NVSMI LOG=|<nvidia_smi_log|GPU \d+: .+ \(UUID: ")
_BEGINNING = 4_000  # characters
SCHEMA_FILE = Path(__file__).with_name("snapshot.schema.json")
_VERSION = 1
_HOW_TO = "`gpu-acceptance snapshot FILE` writes one, on the machine to look at"
_NO_CLUSTER = "00000000-0000-0000-0000-000000000000"
_NAMING = {  # key of a name -> its stand-in
    "host": "node-{:02d}",
    "serial": "16500000{:05d}",
    "uuid": "GPU-00000000-0000-0000-0000-{:012d}",
    "cluster_uuid": "00000000-0000-0000-0001-{:012d}",
    "product_serial": "PRODUCT-{:02d}",
    "chassis_serial": "CHASSIS-{:02d}",
    "node_guid": "0000:0000:0000:{:04x}",
    "sys_image_guid": "0000:0000:0001:{:04x}",
    "source": "server-{:02d}:/export",
    "mount_point": "/mnt/{:02d}",
    "tmp_mount_point": "/mnt/{:02d}",
    "shm_mount_point": "/mnt/{:02d}",
    "working_folder_mount_point": "/mnt/{:02d}",
}
GPUS = "gpu_health"
NETWORK = "infiniband"
LOG = "kernel_log"
SITE = "environment"

_DIFFERENCE = f"{SITE}.site.difference"
_Findings = Iterable[tuple[Any, ...]]
_Topic = tuple[str, str, Sequence[_Findings]]  # subject, topic, the findings of every GPU


def _other_kind(path: Path, data: bytes) -> str:
    """Return the kind of a path that is no snapshot; an empty text for a snapshot, also an incomplete one."""
    if path.is_dir():
        return "the folder of a run (`gpu-acceptance verdict DIR` tells its verdict)" if (path / RESULTS).exists() else "a folder"
    if not data:
        return "an empty file"
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        return "a binary file"
    try:
        return _kind_of_json(json.loads(text))
    except (ValueError, RecursionError):
        if re.match(r'\s*\{\s*"schema_version"', text):
            return ""
    if _NVIDIA_SMI.search(text[:_BEGINNING]):
        return "output of nvidia-smi"
    try:
        parse(text.encode())
    except StrictYamlError:
        return "a text file"
    return "a YAML file"


def _kind_of_json(content: Any) -> str:
    if isinstance(content, dict) and content.keys() >= {"header", "conclusion", "rows"}:
        return _RUN
    if not isinstance(content, dict) or ("node" not in content and "taken_at" not in content):
        return "a JSON file of another kind"
    found = content.get("schema_version")
    is_newer = isinstance(found, int) and found > _VERSION
    return f"a snapshot of a newer version (schema_version {found}; this version reads {_VERSION})" if is_newer else ""


class NotASnapshotError(ValueError):
    """The given path is no snapshot, or does not exist; one line."""


@dataclass(frozen=True)
class Snapshot:
    """The answers of one node at one moment."""

    __pydantic_config__ = ConfigDict(allow_inf_nan=False)

    schema_version: Literal[1]
    taken_at: str  # ISO 8601, UTC
    node: NodeReading


def take() -> Snapshot:
    """Read this machine."""
    return Snapshot(1, datetime.now(UTC).isoformat(timespec="seconds"), node.read())


def write_snapshot(path: Path, snapshot: Snapshot) -> None:
    """Write a new file or replace a regular one: replacing /dev/null as root would break the machine. Raises RecordError."""
    if os.path.lexists(path) and not stat.S_ISREG(path.lstat().st_mode):
        raise RecordError(f"{path}: not a regular file, so it is not replaced")
    write_atomically(path, encode(snapshot))


def read_snapshot(path: Path) -> Snapshot:
    """Read a snapshot. Raises NotASnapshotError over another file, RecordError with the first fault of a damaged snapshot."""
    try:
        data = b"" if path.is_dir() else read_regular(path)
    except RecordError as error:
        raise NotASnapshotError(f"{error}; {_HOW_TO}") from None
    if kind := _other_kind(path, data):
        raise NotASnapshotError(f"{path}: {kind}, not a snapshot; {_HOW_TO}")
    try:
        return decode(data.decode("utf-8"))
    except ValueError as error:
        raise RecordError(f"{path}: {error}") from None


def encode(snapshot: Snapshot) -> str:
    """Return a snapshot as JSON."""
    return json.dumps(_adapter().dump_python(snapshot, mode="json"), indent=1, allow_nan=False) + "\n"


def decode(text: str) -> Snapshot:
    """Parse a snapshot strictly. Raises ValueError with the place of an unknown or missing key, a number in quotes, or a NaN."""
    try:
        snapshot = _adapter().validate_json(text, strict=True)
    except ValidationError as error:
        raise ValueError(first_problem(error)) from None
    if unknown := _unknown_key(json.loads(text), _adapter().dump_python(snapshot, mode="json"), ""):
        raise ValueError(f"unknown key {one_line(unknown)}")
    return snapshot


def redact(snapshot: Snapshot) -> Snapshot:
    """Return a copy without names of machines and people. A name has one stand-in everywhere, in other texts too."""
    plain = _adapter().dump_python(snapshot, mode="json")
    text = json.dumps(plain["node"])
    for name, other in sorted(_names(plain["node"]).items(), key=lambda item: -len(item[0])):
        text = re.sub(rf"(?<!\w){re.escape(json.dumps(name)[1:-1])}(?!\w)", other, text)
    node = {**json.loads(text), "host": "node-00"}  # a name of one or two letters is not replaced in other texts
    return _adapter().validate_json(json.dumps({**plain, "node": node}), strict=True)


def schema_text() -> str:
    """Return the JSON schema of this version. Rewrite the file: `python -m gpu_acceptance.cli.snapshot_file`."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **_adapter().json_schema()}
    return json.dumps(schema, indent=1, sort_keys=True) + "\n"


@cache
def _adapter() -> TypeAdapter[Snapshot]:
    return TypeAdapter(Snapshot)


def _names(node: dict[str, Any]) -> dict[str, str]:
    """Map each name of this machine, its parts, servers and people to its stand-in, numbered by kind."""
    kinds: dict[str, list[str]] = {}
    for key, value in _texts(node, ""):
        kind = _NAMING.get(key)
        if kind and value not in kinds.setdefault(kind, []) and _names_something(key, value):
            kinds[kind].append(value)
    return {name: kind.format(number) for kind, names in kinds.items() for number, name in enumerate(names)}


def _names_something(key: str, value: str) -> bool:
    if key == "source":
        return not value.startswith("/dev/") and ("/" in value or ":" in value)
    if key.endswith("mount_point"):
        return len(Path(value).parts) > 2 and not value.startswith(("/dev/", "/sys/", "/proc/", "/run/"))
    return len(value) > 2 and value != _NO_CLUSTER


def _texts(plain: object, key: str) -> Iterator[tuple[str, str]]:
    """Yield every text with its key."""
    if isinstance(plain, str):
        yield key, plain
    for part, value in plain.items() if isinstance(plain, dict) else enumerate(plain) if isinstance(plain, list) else ():
        yield from _texts(value, part if isinstance(part, str) else key)


def _unknown_key(given: object, known: object, path: str) -> str:
    """Return the path of the first given key that is not known; empty if all are."""
    if isinstance(given, dict) and isinstance(known, dict):
        for key, value in given.items():
            at = f"{path}.{key}" if path else key
            if key not in known:
                return at
            if found := _unknown_key(value, known[key], at):
                return found
    if isinstance(given, list) and isinstance(known, list):
        for index, (one, other) in enumerate(zip(given, known, strict=True)):
            if found := _unknown_key(one, other, f"{path}[{index}]"):
                return found
    return ""


class NoGpusError(Exception):
    """The machine shows no GPU: nothing can be judged, which is never a pass."""


def gpus_of(snapshot: Snapshot) -> tuple[GpuReading, ...]:
    """Return the GPUs of the node. Raises NoGpusError."""
    gpus = snapshot.node.gpus.gpus
    if isinstance(gpus, Missing):
        raise NoGpusError(f"the GPUs of {snapshot.node.host} could not be read: {gpus}")
    if not gpus:
        raise NoGpusError(f"{snapshot.node.host} has no GPU")
    return gpus


def judge_snapshot(
    snapshot: Snapshot, profile: Profile, *, allow_busy: bool = False, num_gpus: int | None = None
) -> tuple[Job, list[Row], Conclusion]:
    """Judge the node as a run would, over all its GPUs. `allow_busy`: as with --allow-busy.

    `num_gpus`: the GPUs that the node must have, as a site's file declares them to a run. Raises ValueError where an overlay is for nodes
    with another number of GPUs.
    """
    gpus = gpus_of(snapshot)
    job = Job(tuple(_identity(snapshot, gpus, index) for index in range(len(gpus))))
    if other := profile.find_other_node([(job.ranks[0].host, job.ranks[0].num_gpus)]):
        raise ValueError(other)
    subjects = {GPUS, *profile.requires & {NETWORK, LOG}}
    topics = list(_topics(snapshot, gpus, profile, subjects))
    if num_gpus is not None:
        profile, here = with_declared_nodes(profile), job.ranks[0]  # its num_gpus: shown by NVML or the PCI bus, whichever are more
        difference = declared.difference([DeclaredNode(host=here.host, gpus=num_gpus)], [declared.Seen(0, here.host, here.num_gpus)])
        topics.append((SITE, "site", [[(_DIFFERENCE, difference, "text")]] * len(gpus)))
    waivers = busy.WAIVERS if allow_busy else {}
    rows = [_row(subject, topic, profile, job, findings, waivers) for subject, topic, findings in topics]
    limits = {metric: limit for metric, limit in profile.limits.items() if limit.subject in subjects or metric == _DIFFERENCE}
    only = replace(profile, requires=frozenset({*subjects, SITE}), limits=limits)
    plan = RunPlan(
        run_id="snapshot",
        started_at=snapshot.taken_at,
        command=(),
        profile=only,
        waivers=dict(waivers),
        allow_busy=allow_busy,
        selection=f"a snapshot of {plural(len(gpus), 'GPU')}: nothing was run",
        validations=(),
        gpu_acceptance_version=__version__,
    )
    return job, rows, conclude(plan, job, rows)


def _topics(snapshot: Snapshot, gpus: tuple[GpuReading, ...], profile: Profile, subjects: set[str]) -> Iterator[_Topic]:
    node = snapshot.node
    for topic, findings in gpu_health.PER_GPU.items():
        yield GPUS, topic, [findings(gpu) for gpu in gpus]
    yield GPUS, "peers", [gpu_health.peers(node.gpus, index) for index in range(len(gpus))]
    yield GPUS, "processes", [gpu_health.processes(gpu) for gpu in gpus]
    places = [place_of(gpu, node.gpu_places) for gpu in gpus]
    if NETWORK in subjects:
        used = _used_network(node, profile)
        yield NETWORK, "devices", [infiniband_health.devices(used, gpus, place) for place in places]
        for topic, of_node in infiniband_health.PER_NODE.items():
            yield NETWORK, topic, [list(of_node(used))] * len(gpus)
    if LOG in subjects:
        log = node.kernel_log
        yield LOG, "errors", [kernel_log.errors(log, gpu, place) for gpu, place in zip(gpus, places, strict=True)]
        yield LOG, "elsewhere", [list(kernel_log.elsewhere(log, gpus))] * len(gpus)
        yield LOG, "host", [list(kernel_log.host(log))] * len(gpus)
        yield LOG, "nics", [list(kernel_log.nics(log, _used_network(node, profile).devices, node.infiniband.devices))] * len(gpus)


def _used_network(node: NodeReading, profile: Profile) -> InfiniBand:
    """Return the network with the devices alone that a job would use."""
    ports = fabric_reader.of_devices(node.infiniband.devices, node.gpu_places)
    near = None if isinstance(ports, Missing) else NodeFabric(ports=ports).devices
    return infiniband_health.chosen(node.infiniband, globs_of_job(str(profile.parameters["infiniband.devices"]), near))


def _row(subject: str, topic: str, profile: Profile, job: Job, findings: Sequence[_Findings], waivers: Mapping[str, str]) -> Row:
    nodeid = f"acceptance/test_{subject}.py::test_{topic}"
    records = []
    for rank, found in enumerate(findings):
        figures = tuple(
            make_figure(metric, value, unit, judged=True, detail=detail, labels=labels)
            for metric, value, unit, detail, labels in map(parts_of, found)
        )
        records.append(RankRecord(nodeid=nodeid, attempt=1, generation=1, rank=rank, outcome=Outcome.PASSED, figures=figures))
    return make_row(nodeid, [Attempt(number=1, ranks=tuple(records))], profile, job, waivers, profile.deadline_s)


def _identity(snapshot: Snapshot, gpus: tuple[GpuReading, ...], index: int) -> RankIdentity:
    named = []
    for gpu in gpus:
        answers = {key: getattr(gpu, key) for key in ("name", "uuid", "serial", "pci_bus_id")}
        known = {key: "" if isinstance(answer, Missing) else answer for key, answer in answers.items()}
        named.append(Gpu(index=gpu.index, nvlink_to=gpu.nvlink_to, **known))
    return RankIdentity(
        rank=index,
        local_rank=index,
        node=0,
        host=snapshot.node.host,
        local_world_size=len(gpus),
        world_size=len(gpus),
        gpus=tuple(named),
        gpu_uuid=named[index].uuid,
        num_gpus_on_bus=len(snapshot.node.bus.gpus) + len(snapshot.node.bus.unreadable),
    )


if __name__ == "__main__":
    write_atomically(SCHEMA_FILE, schema_text())
