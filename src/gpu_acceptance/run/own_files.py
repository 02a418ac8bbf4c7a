"""Files of the site that options name, read before any GPU is touched, and the profile that they and the GPU select."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import ConfigDict, Field, model_validator

from gpu_acceptance.base.model import Model
from gpu_acceptance.base.text import did_you_mean, one_line
from gpu_acceptance.control.rank import RefusedError
from gpu_acceptance.inventory.declared import DeclaredNode, by_declared_name
from gpu_acceptance.inventory.fabric import FabricClass
from gpu_acceptance.inventory.gpu import Gpu
from gpu_acceptance.run.settings import Settings
from gpu_acceptance.run.suite import profile_digest
from gpu_acceptance.thresholds.contract import Contract
from gpu_acceptance.thresholds.contract_file import digest_of, read_contract, read_entries, refuse_unanswerable
from gpu_acceptance.thresholds.fabrics import refuse_unknown_fabric, select_fabric
from gpu_acceptance.thresholds.file import LimitsError
from gpu_acceptance.thresholds.known_metrics import nearest_metric
from gpu_acceptance.thresholds.levels import asked_for, at_level, lasting
from gpu_acceptance.thresholds.limit import FileDigest, Profile
from gpu_acceptance.thresholds.profile import load_profile, profile_names, select_profile, with_file, with_site
from gpu_acceptance.verdict import busy

MOST_NODES = 1_000  # all of them travel to each rank in one message

_GPUS = "a whole number from 0: the GPUs that exist on"
_Host = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,252}$")]
_Rack = Annotated[str, Field(pattern=r"^[!-~]([ -~]{0,62}[!-~])?$")]
_Gpus = Annotated[int, Field(ge=0)]
_ALL = "gpu-acceptance explain '*'"


class NodeEntry(Model):
    """One expected node."""

    gpus: _Gpus | None = Field(None, description=f"{_GPUS} this node; without the key: gpus_per_node")
    rack: _Rack | None = Field(None, description="a label of 1 to 64 printable ASCII characters, in quotes where it looks like a number")


class SiteContent(Model):
    """Content of a site's file."""

    model_config = ConfigDict(title="gpu-acceptance site file")

    gpus_per_node: _Gpus | None = Field(None, description=f"{_GPUS} each node that does not say otherwise")
    nodes: Annotated[dict[_Host, NodeEntry], Field(min_length=1, max_length=MOST_NODES)] = Field(
        description=f"a mapping of 1 to {MOST_NODES} host names, each to a mapping of gpus and rack ({{}} where there is nothing to say)"
    )

    @model_validator(mode="after")
    def _every_node_has_a_number(self) -> Self:
        silent = [host for host, entry in self.nodes.items() if entry.gpus is None]
        if silent and self.gpus_per_node is None:
            raise ValueError(f"nodes.{silent[0]} has no gpus, and there is no gpus_per_node that would hold for it")
        return self


@dataclass(frozen=True)
class SiteFile:
    digest: FileDigest
    nodes: tuple[DeclaredNode, ...]

    @cached_property
    def racks(self) -> dict[str, str]:
        """Host name -> rack label, empty where none is given."""
        return {node.host: node.rack for node in self.nodes}


def read_site(path: Path) -> SiteFile:
    """Read the file at `path`. Raises LimitsError with file, key, line, the value seen, and what is allowed."""
    bad_key = "not a host name; allowed: letters, digits, '.', '_' and '-', at most 253, a letter or digit first; a number in quotes"
    digest, site = read_entries(path, SiteContent, NodeEntry, bad_key=bad_key, an_entry="a mapping of gpus and rack, or {}")
    gpus = {host: site.gpus_per_node or 0 if entry.gpus is None else entry.gpus for host, entry in site.nodes.items()}
    nodes = (DeclaredNode(host=host, gpus=gpus[host], rack=entry.rack or "") for host, entry in site.nodes.items())
    return SiteFile(digest, tuple(nodes))


def json_schema() -> dict[str, Any]:
    """Return the format as a JSON schema, for editors."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **SiteContent.model_json_schema()}


@dataclass(frozen=True)
class OwnFiles:
    """The files of `--site` and `--contract`; None where the option was not given."""

    site: SiteFile | None = None
    contract: Contract | None = None

    @property
    def nodes(self) -> tuple[DeclaredNode, ...]:
        return self.site.nodes if self.site else ()

    def rack_of(self, host: str) -> str:
        """Return the rack of a host; empty where the site's file gives none."""
        racks = self.site.racks if self.site else {}
        return racks.get(by_declared_name([host], racks).get(host, ""), "")


NO_FILES = OwnFiles()


def read_own_files(site: Path | None, contract: Path | None) -> OwnFiles:
    """Read both files. Raises RefusedError, which names the option."""
    with _refused("--site"):
        declared = read_site(site) if site else None
    with _refused("--contract"):
        agreed = read_contract(contract) if contract else None
    return OwnFiles(declared, agreed)


@contextmanager
def _refused(option: str) -> Iterator[None]:
    try:
        yield
    except LimitsError as error:
        raise RefusedError(f"{option}: {error}") from None


def choose_profile(
    settings: Settings,
    gpu: Gpu | None,
    own: OwnFiles = NO_FILES,
    network: FabricClass | None = None,
    num_nodes: int = 1,
    *,
    num_gpus: int,
) -> Profile:
    """Return the profile for this machine and this size of job with network and overlays, and `own` in its digest. Raises RefusedError.

    `network`: what joins the nodes, if that is known; on one node none is judged.
    """
    try:
        name = _profile_name(settings, gpu)
        fabric = _chosen_fabric(settings, name, network, num_nodes)
        profile = lasting(at_level(_load(settings, name, own, fabric, num_gpus), settings.level), settings.soak_s)
        given = {"--localise": settings.localise, "--lora-model": settings.paths.lora_model, "--shared-dir": settings.paths.shared_dir}
        for option in (option for option, value in given.items() if value):
            profile = asked_for(profile, option)
    except LimitsError as error:
        raise RefusedError(str(error)) from None
    if own.contract:
        with _refused("--contract"):
            refuse_unanswerable(own.contract, profile)
    for phase in settings.phases:
        if phase not in profile.phases:
            phases = f"{', '.join(profile.phases) or 'none'}{did_you_mean(phase, profile.phases)}"
            raise RefusedError(f"--phase={phase}: unknown phase; phases of profile {profile.name}: {phases}")
    for glob in settings.waivers.keys() - busy.WAIVERS.keys():
        if not any(fnmatchcase(metric, glob) for metric in profile.limits):
            hint = nearest_metric(glob, profile.limits.keys()) or f"; `{_ALL}` lists all metrics"
            raise RefusedError(f"--waive={glob}=...: matches no limit of profile {profile.name}{hint}")
    return profile


def _profile_name(settings: Settings, gpu: Gpu | None) -> str:
    """Return the profile to judge by: that of --hardware, else the one that matches the GPU."""
    try:
        found = (gpu.name, gpu.nvlink_to) if gpu else (None, "")
        name = settings.hardware or select_profile(found[0], settings.profiles, found[1])
    except LimitsError:
        if not settings.measure_only:
            raise
        name = "base"
    known = profile_names(settings.profiles)
    if name not in (*known, "base") or settings.hardware == "base":
        raise RefusedError(f"--hardware={name}: unknown profile; profiles: {', '.join(known)}{did_you_mean(name, known)}")
    return name


def _chosen_fabric(settings: Settings, profile: str, network: FabricClass | None, num_nodes: int) -> str:
    """Return the network to judge by: that of --fabric, else what the inventory of all nodes shows; empty on one node."""
    if settings.fabric:
        with _refused("--fabric"):
            refuse_unknown_fabric(settings.fabric, profile, settings.profiles)
    if num_nodes < 2:
        return ""
    if settings.fabric or not network:
        return settings.fabric or ""
    return select_fabric(network.key, profile, settings.profiles)


def _load(settings: Settings, name: str, own: OwnFiles, fabric: str, num_gpus: int) -> Profile:
    """Return a profile with its network and overlays, and with the digests of the own files."""
    profile = load_profile(name, settings.profiles, settings.limits, settings.suite, fabric, num_gpus)
    profile = with_site(profile, own.site.digest) if own.site else profile
    return with_file(profile, digest_of(own.contract)) if own.contract else profile


def own_digest(settings: Settings, profile: Profile, own: OwnFiles) -> str:
    """Return the digest of this profile as this rank reads it, or why it cannot be read."""
    try:
        return profile_digest(_load(settings, profile.name, own, profile.fabric, profile.num_gpus))
    except LimitsError as error:
        return f"cannot be read: {one_line(str(error))}"
