"""A node's inventory as one JSON file: written on the machine, read and judged anywhere.

Format history: 1 (2026-11) first.
"""

import json
import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from gpu_acceptance.files import RecordError, read_regular, write_atomically
from gpu_acceptance.inventory import node
from gpu_acceptance.inventory.node import NodeReading
from gpu_acceptance.visible import one_line

SCHEMA_FILE = Path(__file__).with_name("snapshot.schema.json")
_VERSION = 1


@dataclass(frozen=True)
class Snapshot:
    """What one node said of itself at one moment."""

    schema_version: Literal[1]
    taken_at: str  # ISO 8601, UTC
    node: NodeReading


def take() -> Snapshot:
    return Snapshot(1, datetime.now(UTC).isoformat(timespec="seconds"), node.read())


def write_snapshot(path: Path, snapshot: Snapshot) -> None:
    write_atomically(path, encode(snapshot))


def read_snapshot(path: Path) -> Snapshot:
    """Raises RecordError over whatever is no snapshot, with the file and the first thing that is wrong."""
    try:
        return decode(read_regular(path).decode("utf-8"))
    except UnicodeDecodeError as error:
        raise RecordError(f"{path}: not UTF-8 at byte {error.start}") from None
    except ValueError as error:
        raise RecordError(f"{path}: {error}") from None


def encode(snapshot: Snapshot) -> str:
    return json.dumps(_adapter().dump_python(snapshot, mode="json"), indent=1, allow_nan=False) + "\n"


def decode(text: str) -> Snapshot:
    """Strict: an unknown key, a lacking one, a number in quotes or a NaN is a ValueError that says where."""
    try:
        plain = json.loads(text, parse_constant=_refuse_constant)
        snapshot = _adapter().validate_json(json.dumps(plain), strict=True)
    except ValidationError as error:
        raise ValueError(_first_problem(error)) from None
    except RecursionError:
        raise ValueError("nested too deep") from None
    unknown = _unknown_key(plain, _adapter().dump_python(snapshot, mode="json"), "")
    if unknown:
        raise ValueError(f"unknown key {one_line(unknown)}")
    return snapshot


def redact(snapshot: Snapshot) -> Snapshot:
    """Without names of machines: serials, UUIDs and hosts replaced, the same name by the same everywhere."""
    plain = _adapter().dump_python(snapshot, mode="json")
    names = dict(_names(plain["node"]))
    text = json.dumps(plain)
    for name, other in sorted(names.items(), key=lambda item: -len(item[0])):
        text = text.replace(json.dumps(name)[1:-1], other)
    return replace(_adapter().validate_json(text, strict=True), taken_at=snapshot.taken_at)


def schema_text() -> str:
    """The JSON schema of this version. Rewrite the file: `python -m gpu_acceptance.snapshot`."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **_adapter().json_schema()}
    return json.dumps(schema, indent=1, sort_keys=True) + "\n"


@cache
def _adapter() -> TypeAdapter[Snapshot]:
    return TypeAdapter(Snapshot)


def _names(node: dict[str, Any]) -> list[tuple[str, str]]:
    gpus = node["gpus"]["gpus"]
    found = [(node["host"], "node-00")]
    for number, gpu in enumerate(gpus if isinstance(gpus, list) else []):
        found += [(gpu["serial"], f"16500000{number:05d}"), (gpu["uuid"], f"GPU-00000000-0000-0000-0000-{number:012d}")]
        found += [(gpu["fabric"]["cluster_uuid"], "00000000-0000-0000-0000-000000000000")]
    return [(name, other) for name, other in found if isinstance(name, str) and re.search(r"\w{3}", name)]


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no value")


def _unknown_key(given: object, known: object, path: str) -> str:
    """The path of the first key that was given and is not known; empty where there is none."""
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


def _first_problem(error: ValidationError) -> str:
    problems = error.errors(include_url=False)
    for problem in problems:
        if problem["loc"][:1] == ("schema_version",):
            return f"schema_version is {one_line(repr(problem['input']))}; this version reads {_VERSION}"
    first = problems[0]
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "missing":
        return f"{one_line(where)} is lacking"
    return f"{one_line(where)}: {one_line(first['msg'])}, not {one_line(repr(first['input']))[:80]}"


if __name__ == "__main__":
    write_atomically(SCHEMA_FILE, schema_text())
