"""Names of machines in a record, and what stands for each of them in a redacted copy."""

import ipaddress
import re
import secrets
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from gpu_acceptance.base.model import Model, encode, first_problem
from gpu_acceptance.folder.files import RecordError, read_regular, sha256_of, write_atomically
from gpu_acceptance.inventory.answer import Why, split_fitting
from gpu_acceptance.record.job import RankFacts, RankIdentity
from gpu_acceptance.record.row import RankRecord
from gpu_acceptance.record.run_record import RunPlan, RunRecord

Kind = Literal["host", "gpu serial", "gpu uuid", "uuid", "product serial", "chassis serial", "guid", "wide guid", "mac", "ipv4", "ipv6"]
PathKind = Literal["user", "path", "checkout", "packages", "argument"]

_FORMATS: dict[str, str] = {
    "host": "node-{:02d}",
    "gpu serial": "16500000{:04d}",
    "gpu uuid": "GPU-00000000-0000-0000-0000-{:012d}",
    "uuid": "00000000-0000-0000-0001-{:012d}",
    "product serial": "PRODUCT-{:02d}",
    "chassis serial": "CHASSIS-{:02d}",
    "guid": "0000:0000:0000:{:04x}",
    "wide guid": "0x{:016x}",
    "user": "user-{:02d}",
    "path": "/path-{:02d}",
}
_IPV4 = ipaddress.IPv4Network("192.0.2.0/24")  # RFC 5737: addresses for documents
_MORE_IPV4 = ipaddress.IPv4Network("198.18.0.0/15")  # RFC 2544: for benchmarks, where a run has more than 254
_IPV6 = ipaddress.IPv6Network("2001:db8::/32")  # RFC 3849: for documents
EXAMPLES = (_IPV4, _MORE_IPV4, _IPV6)
_UUID = re.compile(r"(?<![0-9a-f])(?!00000000-0000-)[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?![0-9a-f-])", re.IGNORECASE)
_IPV4_ADDRESS = re.compile(r"(?<![\w.-])\d{1,3}(?:\.\d{1,3}){3}(?![\w-]|\.\d)")
_IPV6_ADDRESS = re.compile(r"(?<![\w:.])[0-9a-fA-F:]{4,39}(?![\w:])")
_MAC = re.compile(r"(?<![\w:])(?!02:00:00:|00:00:00:00:00:00)(?:[0-9a-f]{2}:){5}[0-9a-f]{2}(?![\w:])", re.IGNORECASE)
_GUID = re.compile(r"(?<![\w:])(?!0000:0000:)(?:[0-9a-f]{4}:){3}[0-9a-f]{4}(?![\w:])", re.IGNORECASE)
_WIDE_GUID = re.compile(r"(?<!\w)0x(?!0000|ffff)[0-9a-f]{16}(?!\w)")  # what begins with zeros is an address in memory
_PATTERNS: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    ("uuid", _UUID),
    ("ipv4", _IPV4_ADDRESS),
    ("ipv6", _IPV6_ADDRESS),
    ("mac", _MAC),
    ("guid", _GUID),
    ("wide guid", _WIDE_GUID),
)
_ROOT = re.compile(r"""(?:^rootdir: (/\S+)|(/\w[^\s"']*?)/(?:acceptance|fixtures|src/gpu_acceptance(?:/\w+)?)/\w+\.py)""", re.MULTILINE)
_PACKAGES = re.compile(r"""(?<![\w.])(/[^\s"'=:]+?)/lib/python3[.\d]*/(?:site|dist)-packages/""")
_SAME_EVERYWHERE = r"usr|lib|lib64|bin|sbin|etc|proc|sys|dev|suite|venv|path-\d+"
_PATH = re.compile(rf"(?<![\w./<@-])/(?!(?:{_SAME_EVERYWHERE}|tmp/torch(?:elastic|inductor)_\w+)(?![\w-]))[\w.+~@-]+(?:/[\w.+~@-]+)+")
_IN_FULL = re.compile(r"(?<![\w.-])([A-Za-z0-9-]+)(?:\.[a-z0-9-]+)+\.[a-z]{2,}(?![\w-])")
_SLASH = re.compile("/")
_BREAKS = re.compile(r'["\n]')  # no name that is looked for has one in it
_USER = re.compile(r"(?<![\w.])/(?:home|Users)/([A-Za-z_][\w.-]{2,31})(?![\w.-])")
_ANYBODY = {"admin", "nvidia", "python", "root", "runner", "test", "torch", "ubuntu", "user"}  # they name nobody, and stand in many texts
_NODES = {"kubernetes.node.name", "kubernetes.nodes.untested_names", "slurm.partition.untested_nodes"}
STEERS = re.compile(r"((?:\x1b|\\x1b|\\u001b)\[[0-9;?]*[A-Za-z]|\\[nrt])")  # its last letter is no part of the word that follows


@cache
def closed_values() -> Mapping[str, frozenset[str]]:
    """By the name of the field, over all records of a run: the texts that it may be."""
    schema = TypeAdapter(RunRecord | RankIdentity | RankRecord | RankFacts | RunPlan).json_schema()
    found = defaultdict[str, set[str]](set)
    for model in schema["$defs"].values():
        for name, field in model.get("properties", {}).items():
            found[name].update(_choices(field, schema["$defs"]))
    return {name: frozenset(values) for name, values in found.items() if values}


def _choices(field: Mapping[str, Any], definitions: Mapping[str, Any]) -> Iterator[str]:
    if "$ref" in field:
        yield from _choices(definitions[field["$ref"].rpartition("/")[2]], definitions)
    for one in field.get("anyOf", ()):
        yield from _choices(one, definitions)
    yield from (value for value in (*field.get("enum", ()), field.get("const")) if isinstance(value, str))


class Name(Model):
    """One name, what stands for it, and the salt of its digest."""

    kind: Kind | PathKind
    name: Annotated[str, Field(min_length=1)]
    stand_in: Annotated[str, Field(min_length=1)]
    salt: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]

    @property
    def sha256(self) -> str:
        """Of the salt's digits, then the name in UTF-8: `printf %s SALT NAME | sha256sum`."""
        return sha256_of((self.salt + self.name).encode("utf-8", "backslashreplace"))


class NamesFile(Model):
    """What the owner keeps."""

    schema_version: Literal[1] = 1
    names: tuple[Name, ...]


class StandIns:
    """All names known so far; a new one gets the next number of its kind."""

    def __init__(self, names: tuple[Name, ...] = ()) -> None:
        self.names = {one.name: one for one in names}
        self.used: set[str] = set()  # of names, by this run
        self._taken: dict[str, set[str]] = {}  # stand-ins by kind
        for one in names:
            self._taken.setdefault(one.kind, set()).add(one.stand_in)

    def add(self, kind: Kind | PathKind, name: str, stand_in: str = "") -> str:
        """What stands for this name from now on; `stand_in` where that is not a number of its kind."""
        if name not in self.names:
            taken = self._taken.setdefault(kind, set())
            stand_in = stand_in or _numbered(kind, len(taken))
            taken.add(stand_in)
            self.names[name] = Name(kind=kind, name=name, stand_in=stand_in, salt=secrets.token_hex(16))
        self.used.add(name)
        return self.names[name].stand_in


def read_stand_ins(path: Path) -> StandIns:
    """From the owner's file; none where there is no such file yet. Raises RecordError."""
    if not path.exists():
        return StandIns()
    try:
        return StandIns(NamesFile.model_validate_json(read_regular(path)).names)
    except ValidationError as error:
        raise RecordError(f"{path}: {first_problem(error)}") from None


def write_stand_ins(path: Path, stand_ins: StandIns) -> None:
    """For the owner alone: nobody else may read it."""
    names = sorted(stand_ins.names.values(), key=lambda one: (one.kind, one.stand_in, one.name))
    write_atomically(path, encode(NamesFile(names=tuple(names))) + "\n", mode=0o600)


def _numbered(kind: str, number: int) -> str:
    if kind == "mac":
        return ":".join(f"{byte:02x}" for byte in (0x02_00_00_00_00_00 + number).to_bytes(6))  # the bit of locally administered ones
    if kind == "ipv4":
        return str(_IPV4[number + 1] if number < 254 else _MORE_IPV4[number])
    return str(_IPV6[number + 1]) if kind == "ipv6" else _FORMATS[kind].format(number)


def learn_record(record: RunRecord, stand_ins: StandIns) -> None:
    """Host names, serial numbers, UUIDs, and the paths of the command."""
    for word in record.plan.command:
        option, _, value = word.rpartition("=")
        if value.startswith("/") and len(Path(value).parts) > 1:
            stand_ins.add("argument", value.rstrip("/"), "/suite/reports" if option == "--report-dir" else Path(value).name)
    hosts = [*(one.host for one in record.ranks), *(one.host for one in record.plan.declared_nodes)]
    for host in filter(None, [*hosts, *_nodes_of_a_cluster(record)]):
        _learn_host(host, stand_ins)
    for identity in record.ranks:
        for text in (identity.chassis_serial, identity.inventory.get("chassis_serial", "")):
            _learn_serial("chassis serial", text, stand_ins)
        _learn_serial("product serial", identity.inventory.get("product_serial", ""), stand_ins)
        for gpu in identity.gpus:
            if gpu.serial:
                stand_ins.add("gpu serial", gpu.serial)
            if gpu.uuid:
                stand_in = stand_ins.add("gpu uuid", gpu.uuid)
                stand_ins.add("uuid", gpu.uuid.removeprefix("GPU-"), stand_in.removeprefix("GPU-"))


def _nodes_of_a_cluster(record: RunRecord) -> Iterator[str]:
    """That no rank is on, or whose pods have names of their own: `node-07 (node.kubernetes.io/unschedulable); node-08 DOWN; and 3 more`."""
    ranks = (rank for row in record.rows for attempt in row.attempts for rank in attempt.ranks)
    for figure in (figure for rank in ranks for figure in rank.figures):
        if figure.metric in _NODES and isinstance(figure.value, str) and figure.value != "none":
            yield from (node.split(" ", 1)[0] for node in split_fitting(figure.value))


def learn_texts(texts: Iterable[str], stand_ins: StandIns) -> None:
    """What the record does not name and the texts do. A version of four numbers is taken for an address."""
    pieces = dict.fromkeys(piece for text in texts for piece in _BREAKS.split(text))  # each once: every rank says the same of most
    everything = STEERS.sub("\n", "\n".join(pieces))
    for kind, pattern in _PATTERNS:
        for found in dict.fromkeys(pattern.findall(everything)):
            if _names_something(kind, found):
                stand_ins.add(kind, found)
    for match in _IN_FULL.finditer(everything):  # a record has the name of a host alone or in full, and a log the other
        host = stand_ins.names.get(match[1])
        if host and host.kind == "host":
            stand_ins.add("host", match[0], host.stand_in)
    for name in dict.fromkeys(_USER.findall(everything)):
        if name not in _ANYBODY:
            stand_ins.add("user", name)
    _learn_paths(everything, stand_ins)


def _learn_host(host: str, stand_ins: StandIns) -> None:
    stand_in = stand_ins.add("host", host)
    first, *domain = host.split(".")
    if domain and re.search(r"\d", first):
        stand_ins.add("host", first, stand_in)


def _learn_serial(kind: Kind, text: str, stand_ins: StandIns) -> None:
    """Where a machine does not tell its own, the reason stands in its place."""
    if text and not text.startswith(tuple(Why)):
        stand_ins.add(kind, text)


def _learn_paths(text: str, stand_ins: StandIns) -> None:
    for match in _ROOT.finditer(text):
        stand_ins.add("checkout", match[1] or match[2], "/suite")
    for root in dict.fromkeys(_PACKAGES.findall(text)):
        if root not in {"/usr", "/usr/local", "/venv"}:
            stand_ins.add("packages", root, "/venv")
    known = {name for name in stand_ins.names if name.startswith("/")}
    for path in dict.fromkeys(found.rstrip(".") for found in _PATH.findall(text)):
        if not any(f"{path}/"[: slash.start()] in known for slash in _SLASH.finditer(f"{path}/")):
            stand_ins.add("path", path)


def _names_something(kind: Kind, text: str) -> bool:
    if kind not in {"ipv4", "ipv6"}:
        return True
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    if address.is_loopback or address.is_unspecified or any(address in network for network in EXAMPLES):
        return False
    return kind == "ipv4" or len([part for part in text.split(":") if part]) > 2  # `c10d::add` is the name of a function
