"""What is wrong in a YAML file that is one mapping of entries and a few keys beside it, as those of `--site` and `--contract` are."""

from collections.abc import Callable
from typing import Any

from pydantic import BaseModel, ValidationError

from gpu_acceptance.base.strict_yaml import Document, Key, shown
from gpu_acceptance.base.text import did_you_mean
from gpu_acceptance.thresholds.file import dotted, line_of


def problems_of_entries(
    top: type[BaseModel], entry: type[BaseModel], *, bad_key: str, an_entry: str
) -> Callable[[str, Document, ValidationError], list[str]]:
    """One line for each problem: file, key, line, what was seen, what is allowed; for `read_validated`.

    `bad_key`: what to say of the name of an entry that cannot be one. `an_entry`: what an entry is.
    """

    def what(detail: Any, path: tuple[Key, ...]) -> str:
        model = entry if len(path) > 2 else top
        if detail["type"] == "extra_forbidden":
            return f"unknown key; known: {', '.join(model.model_fields)}{did_you_mean(path[-1], model.model_fields)}"
        if detail["type"] == "value_error":
            return str(detail["ctx"]["error"])
        if detail["loc"][-1] == "[key]":
            return bad_key
        allowed = an_entry if len(path) == 2 else str(model.model_fields[str(path[2 if len(path) > 2 else 0])].description)
        if detail["type"] == "missing":
            return f"is missing; needed: {allowed}"
        return f"{shown(detail['input'])} is not allowed; allowed: {allowed}"

    def problems(name: str, document: Document, error: ValidationError) -> list[str]:
        found = []
        for detail in error.errors(include_url=False):
            path = tuple(key for key in detail["loc"] if key != "[key]")
            found.append(f"{name}: {dotted(path)}{line_of(document, path)}: {what(detail, path)}")
        return found

    return problems
