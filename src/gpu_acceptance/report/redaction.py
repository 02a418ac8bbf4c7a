"""A run that can be given away: stand-ins replace the names of its machines, everywhere alike, in all files of its folder.

JSON is taken apart and its texts are replaced, so that no escape hides a name. `tensorboard/` is left out: it can be made of the results.
The page and the files for other tools are built anew, links to outside are taken out, and a new manifest is written.
"""

import html
import ipaddress
import json
import os
import re
import secrets
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from gpu_acceptance.base.files import write_atomically
from gpu_acceptance.base.model import Model, encode, first_problem
from gpu_acceptance.base.strict_json import StrictJsonError, parse
from gpu_acceptance.base.text import visible
from gpu_acceptance.folder.files import RESULTS, RecordError, read_regular, read_results, sha256_of
from gpu_acceptance.folder.manifest import MANIFEST, SIGNATURE, Manifest, find_manifest, write_manifest
from gpu_acceptance.inventory.answer import Why, split_fitting
from gpu_acceptance.record.job import RankFacts, RankIdentity
from gpu_acceptance.record.row import RankRecord
from gpu_acceptance.record.run_record import RunPlan, RunRecord
from gpu_acceptance.report import event_files
from gpu_acceptance.report.build import REPORT, write_page
from gpu_acceptance.report.exports import EXPORTS, write_exports

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
_EXAMPLES = (_IPV4, _MORE_IPV4, _IPV6)
_PATTERNS: dict[Kind, re.Pattern[str]] = {
    "uuid": re.compile(r"(?<![0-9a-f])(?!00000000-0000-)[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?![0-9a-f-])", re.IGNORECASE),
    "ipv4": re.compile(r"(?<![\w.-])\d{1,3}(?:\.\d{1,3}){3}(?![\w-]|\.\d)"),
    "ipv6": re.compile(r"(?<![\w:.])[0-9a-fA-F:]{4,39}(?![\w:])"),
    "mac": re.compile(r"(?<![\w:])(?!02:00:00:|00:00:00:00:00:00)(?:[0-9a-f]{2}:){5}[0-9a-f]{2}(?![\w:])", re.IGNORECASE),
    "guid": re.compile(r"(?<![\w:])(?!0000:0000:)(?:[0-9a-f]{4}:){3}[0-9a-f]{4}(?![\w:])", re.IGNORECASE),
    "wide guid": re.compile(r"(?<!\w)0x(?!0000|ffff)[0-9a-f]{16}(?!\w)"),  # one that begins with zeros is an address in memory
}
_ROOT = re.compile(r"""(?:^rootdir: (/\S+)|(/\w[^\s"']*?)/(?:acceptance|fixtures|src/gpu_acceptance(?:/\w+)?)/\w+\.py)""", re.MULTILINE)
_PACKAGES = re.compile(r"""(?<![\w.])(/[^\s"'=:]+?)/lib/python3[.\d]*/(?:site|dist)-packages/""")
_SAME_EVERYWHERE = r"usr|lib|lib64|bin|sbin|etc|proc|sys|dev|suite|venv|path-\d+"
_PATH = re.compile(rf"(?<![\w./<@-])/(?!(?:{_SAME_EVERYWHERE}|tmp/torch(?:elastic|inductor)_\w+)(?![\w-]))[\w.+~@-]+(?:/[\w.+~@-]+)+")
_IN_FULL = re.compile(r"(?<![\w.-])([A-Za-z0-9-]+)(?:\.[a-z0-9-]+)+\.[a-z]{2,}(?![\w-])")
_BREAKS = re.compile(r'["\n]')  # no name has one in it
_USER = re.compile(r"(?<![\w.])/(?:home|Users)/([A-Za-z_][\w.-]{2,31})(?![\w.-])")
_COMMON_USERS = {"admin", "nvidia", "python", "root", "runner", "test", "torch", "ubuntu", "user"}  # in many texts
_NODES = {"kubernetes.node.name", "kubernetes.nodes.untested_names", "slurm.partition.untested_nodes"}
_STEERS = re.compile(r"((?:\x1b|\\x1b|\\u001b)\[[0-9;?]*[A-Za-z]|\\[nrt])")  # its last letter does not belong to the word that follows


@cache
def closed_values() -> Mapping[str, frozenset[str]]:
    """Return the texts that a field may have, by its name, over all records of a run."""
    schema = TypeAdapter(RunRecord | RankIdentity | RankRecord | RankFacts | RunPlan).json_schema()

    def choices(field: Mapping[str, Any]) -> set[str]:
        if "$ref" in field:
            return choices(schema["$defs"][field["$ref"].rpartition("/")[2]])
        own = {value for value in (*field.get("enum", ()), field.get("const")) if isinstance(value, str)}
        return own.union(*map(choices, field.get("anyOf", ())))

    found = defaultdict[str, set[str]](set)
    for model in schema["$defs"].values():
        for name, field in model.get("properties", {}).items():
            found[name] |= choices(field)
    return {name: frozenset(values) for name, values in found.items() if values}


class Name(Model):
    """One name, what stands for it, and the salt of its digest."""

    kind: Kind | PathKind
    name: Annotated[str, Field(min_length=1)]
    stand_in: Annotated[str, Field(min_length=1)]
    salt: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]

    @property
    def sha256(self) -> str:
        """The digest of the salt's digits, then the name in UTF-8: `printf %s SALT NAME | sha256sum`."""
        return sha256_of((self.salt + self.name).encode("utf-8", "backslashreplace"))


class NamesFile(Model):
    """The file that the owner keeps."""

    schema_version: Literal[1] = 1
    names: tuple[Name, ...]


class StandIns:
    """All names known so far; a new one gets the next number of its kind."""

    def __init__(self, names: tuple[Name, ...] = ()) -> None:
        self.names = {one.name: one for one in names}
        self.used: set[str] = set()  # names that this run has
        self._taken = defaultdict[str, set[str]](set)  # stand-ins by kind
        for one in names:
            self._taken[one.kind].add(one.stand_in)

    def add(self, kind: Kind | PathKind, name: str, stand_in: str = "") -> str:
        """Return the stand-in for this name from now on: `stand_in`, or the next number of its kind."""
        if name not in self.names:
            stand_in = stand_in or _numbered(kind, len(self._taken[kind]))
            self._taken[kind].add(stand_in)
            self.names[name] = Name(kind=kind, name=name, stand_in=stand_in, salt=secrets.token_hex(16))
        self.used.add(name)
        return self.names[name].stand_in


def _numbered(kind: str, number: int) -> str:
    if kind == "mac":  # with the bit of addresses that are administered locally
        return (0x02_00_00_00_00_00 + number).to_bytes(6).hex(":")
    if kind == "ipv4":
        return str(_IPV4[number + 1] if number < 254 else _MORE_IPV4[number])
    return str(_IPV6[number + 1]) if kind == "ipv6" else _FORMATS[kind].format(number)


def learn_record(record: RunRecord, stand_ins: StandIns) -> None:
    """Learn host names, serial numbers, UUIDs, and the paths of the command."""
    for word in record.plan.command:
        option, _, value = word.rpartition("=")
        if value.startswith("/") and len(Path(value).parts) > 1:
            stand_ins.add("argument", value.rstrip("/"), "/suite/reports" if option == "--report-dir" else Path(value).name)
    hosts = [*(one.host for one in record.ranks), *(one.host for one in record.plan.declared_nodes)]
    for host in filter(None, [*hosts, *_nodes_of_a_cluster(record)]):
        stand_in = stand_ins.add("host", host)
        first, *domain = host.split(".")
        if domain and re.search(r"\d", first):
            stand_ins.add("host", first, stand_in)
    for identity in record.ranks:
        told = identity.inventory
        chassis, product = told.get("chassis_serial", ""), told.get("product_serial", "")
        serials: tuple[tuple[Kind, str], ...] = (
            ("chassis serial", identity.chassis_serial),
            ("chassis serial", chassis),
            ("product serial", product),
        )
        for kind, text in serials:
            if text and not text.startswith(tuple(Why)):  # a machine that does not tell its own has the reason in this place
                stand_ins.add(kind, text)
        for gpu in identity.gpus:
            if gpu.serial:
                stand_ins.add("gpu serial", gpu.serial)
            if gpu.uuid:
                stand_in = stand_ins.add("gpu uuid", gpu.uuid)
                stand_ins.add("uuid", gpu.uuid.removeprefix("GPU-"), stand_in.removeprefix("GPU-"))


def _nodes_of_a_cluster(record: RunRecord) -> Iterator[str]:
    """Yield nodes without a rank, or whose pods have names of their own: `node-07 (unschedulable); node-08 DOWN; and 3 more`."""
    ranks = (rank for row in record.rows for attempt in row.attempts for rank in attempt.ranks)
    for figure in (figure for rank in ranks for figure in rank.figures):
        if figure.metric in _NODES and isinstance(figure.value, str) and figure.value != "none":
            yield from (node.split(" ", 1)[0] for node in split_fitting(figure.value))


def learn_texts(texts: Iterable[str], stand_ins: StandIns) -> None:
    """Learn names that stand in the texts and not in the record. A version of four numbers is taken for an address."""
    pieces = dict.fromkeys(piece for text in texts for piece in _BREAKS.split(text))  # each once: most are the same on every rank
    everything = _STEERS.sub("\n", "\n".join(pieces))
    for kind, pattern in _PATTERNS.items():
        for found in dict.fromkeys(pattern.findall(everything)):
            if _names_something(kind, found):
                stand_ins.add(kind, found)
    for match in _IN_FULL.finditer(everything):  # a record has the short name of a host or the full one, and a log the other
        host = stand_ins.names.get(match[1])
        if host and host.kind == "host":
            stand_ins.add("host", match[0], host.stand_in)
    for name in dict.fromkeys(_USER.findall(everything)):
        if name not in _COMMON_USERS:
            stand_ins.add("user", name)
    for match in _ROOT.finditer(everything):
        stand_ins.add("checkout", match[1] or match[2], "/suite")
    for root in dict.fromkeys(_PACKAGES.findall(everything)):
        if root not in {"/usr", "/usr/local", "/venv"}:
            stand_ins.add("packages", root, "/venv")
    known = {name for name in stand_ins.names if name.startswith("/")}
    for path in dict.fromkeys(found.rstrip(".") for found in _PATH.findall(everything)):
        if known.isdisjoint([path, *map(str, Path(path).parents)]):
            stand_ins.add("path", path)


def _names_something(kind: Kind, text: str) -> bool:
    if kind not in {"ipv4", "ipv6"}:
        return True
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    if address.is_loopback or address.is_unspecified or any(address in network for network in _EXAMPLES):
        return False
    return kind == "ipv4" or len([part for part in text.split(":") if part]) > 2  # `c10d::add` is a function


# --- files ----------------------------------------------------------------------------------------------------------------------

REDACTION = "redaction.json"
_LEFT_OUT = {MANIFEST, SIGNATURE, REPORT, REDACTION, "pytest.html", *EXPORTS}  # an earlier version left a pytest.html
_WORD = re.compile(r"[^\W_]+")
_LINK = re.compile(r'<a href="https?:[^"]*">(.*?)</a>')


class Redaction(Model):
    """`redaction.json` of a redacted run: the run it was made from, and the digest of each name that was replaced."""

    schema_version: int = 1
    run_id: str
    manifest_sha256: str  # empty where the run had no manifest
    results_sha256: str
    replaced: tuple[dict[Literal["stand_in", "sha256"], str], ...]  # `sha256`: the digest of salt and name


class Redactor:
    """Replaces names, the longest first, in one pass: a stand-in may be another machine's name."""

    def __init__(self, stand_ins: StandIns) -> None:
        self._names: dict[str, str] = {}  # -> stand-in
        shapes: dict[str, set[tuple[int, int]]] = {}  # first word of names -> how long they are, and where it stands in them
        self._steering: list[tuple[str, str]] = []  # names with such a sequence in them, which would be taken apart
        self._closed = closed_values()
        self._replaced: dict[str, str] = {}  # values, most of which every rank has again
        for name, one in stand_ins.names.items():
            for form in _forms(name):
                if _STEERS.search(form):
                    self._steering.append((form, one.stand_in))
                elif word := _WORD.search(form):
                    self._names.setdefault(form, one.stand_in)
                    shapes.setdefault(word[0], set()).add((len(form), word.start()))
        self._longest_first = {word: sorted(lengths, reverse=True) for word, lengths in shapes.items()}

    def text(self, text: str) -> str:
        """Replace each name that no letter or digit touches: a host `vm` is not replaced in `nvml`."""
        for name, stand_in in self._steering:
            text = text.replace(name, stand_in)
        return "".join(part if number % 2 else self._part(part) for number, part in enumerate(_STEERS.split(text)))

    def value(self, value: Any, key: str = "") -> Any:
        """Replace names in all texts of a JSON value, but not in keys of ours, nor in fields with a closed list of values.

        Where a host is named `rank`, the scope of a limit stays that word.
        """
        if isinstance(value, str):
            if value in self._closed.get(key, ()):
                return value
            if value not in self._replaced:
                self._replaced[value] = self.text(value)
            return self._replaced[value]
        if isinstance(value, dict):
            return {key if key.isidentifier() else self.text(key): self.value(one, key) for key, one in value.items()}
        return [self.value(one) for one in value] if isinstance(value, list) else value

    def file(self, name: str, text: str) -> str:
        """Replace names in a file. A line of JSON that is not one, because it was cut off, is a text."""
        if not name.endswith((".json", ".jsonl")):
            return self.text(_LINK.sub(r"\1", text) if name.endswith(".html") else text)
        lines = text.split("\n")
        for number, line in enumerate(lines):
            try:
                lines[number] = json.dumps(self.value(parse(line)), ensure_ascii=False, separators=(",", ":")) if line else ""
            except StrictJsonError:
                lines[number] = self.text(line)
        return "\n".join(lines)

    def _part(self, text: str) -> str:
        pieces, done = list[str](), 0
        for word in _WORD.finditer(text):
            for length, before in self._longest_first.get(word[0], ()):
                start, end = word.start() - before, word.start() - before + length
                if start >= done and (stand_in := self._names.get(text[start:end])) and not _touches(text, start, end):
                    pieces += [text[done:start], stand_in]
                    done = min(end, len(text))
                    break
        return "".join([*pieces, text[done:]])


def _forms(name: str) -> set[str]:
    """Return a name as files write it: as it is, made visible, in HTML, and in a line of JSON that was cut off."""
    seen = {name, visible(name)}
    return {*seen, *map(html.escape, seen), json.dumps(name)[1:-1], json.dumps(name, ensure_ascii=False)[1:-1]}


def _touches(text: str, start: int, end: int) -> bool:
    before, after = start > 0 and text[start - 1].isalnum(), end < len(text) and text[end].isalnum()
    return (before and text[start].isalnum()) or (after and text[end - 1].isalnum())


def redact_run(run_dir: Path, out: Path, names: Path) -> Manifest:
    """Make the folder `out`, whole or not at all, after the owner's file of names was written. Raises RecordError, OSError."""
    record = read_results(run_dir)
    try:
        stand_ins = StandIns(NamesFile.model_validate_json(read_regular(names)).names if names.exists() else ())
    except ValidationError as error:
        raise RecordError(f"{names}: {first_problem(error)}") from None
    there = [Path(folder, name) for folder, _, found in os.walk(run_dir) for name in found]
    given = sorted(path.relative_to(run_dir) for path in there if path.is_file() and not path.is_symlink())
    given = [name for name in given if name.parts[0] != event_files.FOLDER and name.as_posix() not in _LEFT_OUT]
    texts = {name: read_regular(run_dir / name).decode("utf-8", "replace") for name in given}
    learn_record(record, stand_ins)
    learn_texts((html.unescape(text) if name.suffix == ".html" else text for name, text in texts.items()), stand_ins)
    owned = sorted(stand_ins.names.values(), key=lambda one: (one.kind, one.stand_in, one.name))
    write_atomically(names, encode(NamesFile(names=tuple(owned))) + "\n", mode=0o600)
    redactor, making = Redactor(stand_ins), out.with_name(f".{out.name}.{secrets.token_hex(4)}")
    try:
        for name, text in texts.items():
            (making / name).parent.mkdir(parents=True, exist_ok=True)
            (making / name).write_text(redactor.file(name.name, text), encoding="utf-8")
        write_page(making)
        if problems := write_exports(making, read_results(making)):
            raise RecordError(problems[0])
        write_atomically(making / REDACTION, encode(_redaction(run_dir, record, stand_ins)) + "\n")
        manifest = write_manifest(making)
        making.rename(out)
    except BaseException:
        shutil.rmtree(making, ignore_errors=True)
        raise
    return manifest


def _redaction(run_dir: Path, record: RunRecord, stand_ins: StandIns) -> Redaction:
    manifest = find_manifest(run_dir)
    replaced = sorted({(one.stand_in, one.sha256) for one in map(stand_ins.names.__getitem__, stand_ins.used)})
    return Redaction(
        run_id=record.plan.run_id,
        manifest_sha256=manifest.sha256 if manifest else "",
        results_sha256=sha256_of(read_regular(run_dir / RESULTS)),
        replaced=tuple({"stand_in": stand_in, "sha256": sha256} for stand_in, sha256 in replaced),
    )
