"""One YAML file of limits, read: a profile or an overlay, or an error that names file, key, value and what is allowed."""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from gpu_acceptance.base.strict_yaml import MAX_BYTES, Document, Key, StrictYamlError, parse, shown
from gpu_acceptance.base.text import did_you_mean, first_few
from gpu_acceptance.thresholds.families import READING, Expansion, expanded
from gpu_acceptance.thresholds.limit import BY_SIZE, ByGpus, FileDigest, Limit, Value, subject_of_metric
from gpu_acceptance.thresholds.parameters import BY_GPUS, BY_GPUS_ALLOWED, PARAMETERS, ParameterValues
from gpu_acceptance.thresholds.schema import (
    PROFILE,
    ByNodesEntry,
    Content,
    Entry,
    FabricMatch,
    Match,
    PeersEntry,
    disagreements,
    number_hint,
)

M = TypeVar("M", bound=BaseModel)

MAX_PROBLEMS = 10
MAX_PATH = 500  # characters of a path in a message


class LimitsError(ValueError):
    """A problem of a limits file, or of a request for a profile: the value seen and what is allowed. One line for each problem.

    `rest`: what is right in the file, where that is known, for problems that only show beside other files.
    """

    def __init__(self, problems: str | Iterable[str], rest: "LimitsFile | None" = None) -> None:
        self.problems = lines = [problems] if isinstance(problems, str) else list(problems)
        self.rest = rest
        super().__init__("\n".join(first_few(lines, MAX_PROBLEMS, "and {} more")))


@dataclass(frozen=True)
class LimitsFile:
    digest: FileDigest
    content: Content

    @property
    def name(self) -> str:
        return self.digest.file


def read_file(path: Path, inherited: Mapping[str, Limit] = MappingProxyType({})) -> LimitsFile:
    """Read a file, one entry for each metric; raise LimitsError where an entry is wrong by itself.

    `inherited`: the limits of the parent or of the profile below an overlay, from which an entry takes the keys that it does not give.
    """
    digest, document = _read_document(path)
    expansion = expanded(document.data, inherited)
    place = partial(_place, digest.file, document)
    problems, details = [f"{place(where)}: {problem}" for where, problem in expansion.problems], []
    try:
        content = Content.model_validate(expansion.data)
    except ValidationError as error:
        details = error.errors(include_url=False)
    if not problems and not details:
        return LimitsFile(digest, content)
    wrong = [_path(detail["loc"]) for detail in details]
    rest = _rest(expansion.data, wrong)
    problems += _problems(details, expansion, place)
    raise LimitsError(dict.fromkeys([*problems, *_hidden(wrong, rest, expansion, place)]), LimitsFile(digest, rest))


def extends(path: Path) -> str | None:
    """Return the parent that a file names, before anything else in it is looked at."""
    parent = _read_document(path)[1].data.get("extends")
    return parent if isinstance(parent, str) and re.fullmatch(PROFILE, parent) else None


def match_of(path: Path) -> Match | None:
    """Return the hardware that a file is for, before anything else in it is looked at; None where it says nothing that can be read."""
    try:
        return Match.model_validate(_read_document(path)[1].data.get("match"))
    except ValidationError:
        return None


def parameter_of(path: Path, name: str) -> Value | ByGpus | None:
    """Return the value that a file gives a parameter, before anything else is looked at; None where it gives none that can be read."""
    parameters = _read_document(path)[1].data.get("parameters")
    if not isinstance(parameters, dict) or name not in parameters:
        return None
    try:
        return _PARAMETERS.validate_python({name: parameters[name]})[name]
    except ValidationError:
        return None


_PARAMETERS = TypeAdapter(ParameterValues)


def read_validated(path: Path, model: type[M], what: Callable[[Any, tuple[Key, ...]], str]) -> tuple[FileDigest, M]:
    """A YAML file as `model` has it. LimitsError has one line for each problem: file, key, line, and `what` says of pydantic's details."""
    digest, document = _read_document(path)
    try:
        return digest, model.model_validate(document.data)
    except ValidationError as error:
        details = error.errors(include_url=False)
    keys = [tuple(key for key in detail["loc"] if key != "[key]") for detail in details]
    raise LimitsError(f"{_place(digest.file, document, key)}: {what(detail, key)}" for key, detail in zip(keys, details, strict=True))


def _read_document(path: Path) -> tuple[FileDigest, Document]:
    name = file_name(path)
    try:
        if not path.is_file():  # a pipe would wait for ever
            problem = "is not a regular file" if path.exists() else "there is no such file"
            raise LimitsError(f"{name}: {problem}: {shown(str(path), MAX_PATH)}")
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        return FileDigest(name, hashlib.sha256(content).hexdigest()), parse(content)
    except OSError as error:
        raise LimitsError(f"{name}: cannot be read: {error.strerror}") from None
    except StrictYamlError as error:
        raise LimitsError(f"{name}: {error}") from None


def file_name(path: Path) -> str:
    return path.name if path.name.isprintable() and len(path.name) < 100 else shown(path.name)


_FIELDS = {name: info for model in (Content, Entry, PeersEntry, Match, FabricMatch) for name, info in model.model_fields.items()}
_ENTRY_KEYS = [*Entry.model_fields, READING]
_KEYS = {
    "limits": "a metric named <subject>.<operation>.<quantity>, lower-case letters, digits and _; {a,b} stands for each of both",
    "figures": "a metric named <subject>.<operation>.<quantity>, in which {a,b} stands for each of both and * for anything",
    "levels": "health, quick or full, and in each of them the name of a subject",
    "phases": "the name of a phase, lower-case letters, digits and _",
    "not_applicable": "a glob that names its subject first, as in 'infiniband.*'",
    **dict.fromkeys(BY_SIZE, "GPUs per node, a whole number from 1"),
    BY_GPUS: "a number of GPUs in the job, a whole number from 1",
    "nodes": "a number of nodes, 2, or a range, 3-8",
}


def _place(file: str, document: Document, path: tuple[Key, ...]) -> str:
    """`mine.yaml: limits.hbm.copy.bandwidth.unit (line 7)`."""
    return f"{file}: {dotted(path)}{line_of(document, path)}"


def _problems(details: Sequence[Any], expansion: Expansion, place: Callable[[tuple[Key, ...]], str]) -> list[str]:
    """One line for each place in the file; all members of a family are wrong at the same one."""
    lines: dict[tuple[Key, ...], tuple[bool, str]] = {}
    for detail in details:
        path = _path(detail["loc"])
        written, says_why = expansion.written(path), detail["type"] == "value_error"  # of the branches of a union, one says why
        if written not in lines or (says_why and not lines[written][0]):
            lines[written] = (says_why, f"{place(written)}: {_member(path, written)}{_what(detail, path)}")
    return [line for _, line in lines.values()]


def _member(path: tuple[Key, ...], written: tuple[Key, ...]) -> str:
    """Name the member of a family that a problem of the whole entry is about."""
    return f"{path[1]}: " if len(path) == 2 and path != written else ""


def _rest(data: Any, wrong: Sequence[tuple[Key, ...]]) -> Content:
    """Return the figures of the file, and its limits without their keys that are wrong. Nothing else is in it."""
    data = data if isinstance(data, dict) else {}
    limits = {} if ("limits",) in wrong else data.get("limits") or {}
    keys = {path[:3] for path in wrong}
    entries = {}
    for metric, entry in limits.items():
        if ("limits", metric) in keys or not isinstance(entry, dict):
            continue
        right: dict[str, Any] = {key: one for key, one in entry.items() if isinstance(key, str) and ("limits", metric, key) not in keys}
        for name in right.keys() & BY_SIZE:
            if isinstance(right[name], dict) and "nodes" in right[name]:
                right[name] = ByNodesEntry.model_validate(right[name])
        entries[metric] = Entry.model_construct(**right)
    figures = {} if any(path[:1] == ("figures",) for path in wrong) else data.get("figures") or {}
    return Content.model_construct(limits=entries, figures=figures)


def _hidden(
    wrong: Sequence[tuple[Key, ...]], rest: Content, expansion: Expansion, place: Callable[[tuple[Key, ...]], str]
) -> Iterator[str]:
    """Yield what does not agree inside an entry; pydantic looks at that only where each key is right by itself."""
    for metric, entry in rest.limits.items():
        path: tuple[Key, ...] = ("limits", metric)
        keys = {str(one[2]) for one in wrong if one[:2] == path}
        if keys and (problems := "; ".join(disagreements(entry, keys))):
            written = expansion.written(path)
            yield f"{place(written)}: {_member(path, written)}{problems}"


def _path(loc: tuple[Key, ...]) -> tuple[Key, ...]:
    """The keys as they stand in the file: without the names pydantic gives to the branches of a union."""
    if "equals" in loc[2:3]:
        loc = loc[:3]
    elif loc[:1] == ("parameters",):
        loc = loc[:2] + loc[3:]
    elif (loc[0] == "levels" and loc[3:4] != ("[key]",)) or (len(loc) > 3 and loc[2] in BY_SIZE):
        loc = loc[:3] + loc[4:]
    return loc[:-1] if loc and loc[-1] == "[key]" else loc


def dotted(path: tuple[Key, ...]) -> str:
    """`limits.gemm.bf16.sustained.unit`: where in the file."""
    return ".".join(str(key) if re.fullmatch(r"[\w.*/{},-]{1,140}", str(key), re.ASCII) else shown(key) for key in path) or "the file"


def line_of(document: Document, path: tuple[Key, ...]) -> str:
    """` (line 7)`, of the key itself or of what it belongs into; nothing where no line is known."""
    known = next((path[:end] for end in range(len(path), 0, -1) if path[:end] in document.lines), ())
    return f" (line {document.lines[known]})" if known else ""


def _what(detail: Any, path: tuple[Key, ...]) -> str:
    kind, value = detail["type"], detail["input"]
    if path[:1] == ("parameters",) and len(path) == 2 and kind in ("extra_forbidden", "invalid_key"):
        return _unknown_parameter(str(path[1]))
    if kind == "extra_forbidden":
        return f"unknown key; known: {', '.join(known := _known_keys(path))}{did_you_mean(path[-1], known)}"
    if kind == "value_error":
        return str(detail["ctx"]["error"])
    if kind == "invalid_key":
        return f"not a key that is allowed here; known: {', '.join(_known_keys(path))}"
    if detail["loc"][-1] == "[key]":
        allowed = next(_KEYS[str(key)] for key in reversed(path[:-1]) if str(key) in _KEYS)
        return f"not a key that is allowed here; allowed: {allowed}"
    allowed = _allowed(path)
    if kind == "missing":
        return f"is missing; needed: {allowed}"
    hint = "" if kind == "int_type" else number_hint(value)
    return f"{shown(value)} is not allowed; allowed: {allowed}{'; ' * bool(hint)}{hint}"


def _unknown_parameter(name: str) -> str:
    """The others of its subject; where there is no such subject, those that have any."""
    subject = name.split(".", 1)[0]
    of_subject = [known for known in PARAMETERS if subject_of_metric(known) == subject]
    known = f"of {subject}: {', '.join(of_subject)}" if of_subject else f"of {', '.join(dict.fromkeys(map(subject_of_metric, PARAMETERS)))}"
    return f"unknown parameter; there are those {known}{did_you_mean(name, PARAMETERS)}"


def _allowed(path: tuple[Key, ...]) -> str:
    if path[-1] == BY_GPUS:
        return BY_GPUS_ALLOWED
    if path[0] == "parameters" and len(path) > 1:
        return PARAMETERS[str(path[1])].allowed
    if len(path) == 2 and path[0] == "limits":
        return f"a mapping of {', '.join(_ENTRY_KEYS)}"
    if path[2:4] in {(name, "nodes") for name in BY_SIZE}:  # not the key of an entry
        path = path[:3]
    keys = reversed(path) if path[:1] in (("limits",), ("match",)) else path[:1]
    return next((str(_FIELDS[str(key)].description) for key in keys if key in _FIELDS), "a mapping of keys")


def _known_keys(path: tuple[Key, ...]) -> list[str]:
    if path[0] in ("parameters", "levels"):
        return [BY_GPUS]
    if path[0] == "match":
        return list((FabricMatch if path[1:2] == ("fabric",) and len(path) > 2 else Match).model_fields)
    models: dict[int, type[BaseModel]] = {1: Content, 4: ByNodesEntry if path[2:3] != ("peers",) else PeersEntry}
    return list(models[len(path)].model_fields) if len(path) in models else _ENTRY_KEYS
