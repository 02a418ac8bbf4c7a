"""What somebody named in place of a snapshot, in words: the record of a run, the output of nvidia-smi, another file."""

import json
import re
from pathlib import Path
from typing import Any

from gpu_acceptance.base.strict_yaml import StrictYamlError, parse
from gpu_acceptance.folder.results import RESULTS

_RUN = "the record of a run (`gpu-acceptance report build DIR` makes its report)"
_NVIDIA_SMI = re.compile(r"\| NVIDIA-SMI \d|=NVSMI LOG=|<nvidia_smi_log|GPU \d+: .+ \(UUID: ")
_BEGINNING = 4_000  # characters


def kind_of_folder(folder: Path) -> str:
    return "the folder of a run (`gpu-acceptance verdict DIR` tells its verdict)" if (folder / RESULTS).exists() else "a folder"


def other_kind(data: bytes, version: int) -> str:
    """What this is, where it is no snapshot; nothing where it is one, or what is left of one. `version`: what we read."""
    if not data:
        return "an empty file"
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        return "a binary file"
    try:
        return _kind_of_json(json.loads(text), version)
    except (ValueError, RecursionError):
        return "" if re.match(r'\s*\{\s*"schema_version"', text) else _kind_of_text(text)


def _kind_of_json(content: Any, version: int) -> str:
    if not isinstance(content, dict):
        return "a JSON file of another kind"
    if content.keys() >= {"header", "conclusion", "rows"}:
        return _RUN
    if "node" not in content and "taken_at" not in content:
        return "a JSON file of another kind"
    found = content.get("schema_version")
    is_newer = isinstance(found, int) and found > version
    return f"a snapshot of a newer version (schema_version {found}; this version reads {version})" if is_newer else ""


def _kind_of_text(text: str) -> str:
    if _NVIDIA_SMI.search(text[:_BEGINNING]):
        return "output of nvidia-smi"
    try:
        parse(text.encode())
    except StrictYamlError:
        return "a text file"
    return "a YAML file"
