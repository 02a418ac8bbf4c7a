"""Functions that a dialogue offers, as chat templates take them, and the nulls that stand for nothing.

Sources, read 2026-11: https://huggingface.co/datasets/Salesforce/xlam-function-calling-60k (flat parameters), and of Team-ACE/ToolACE and
NousResearch/hermes-function-calling-v1 there (functions in a system's text); modelscope/ms-swift#6467 (null properties by Arrow).
"""

import re
from collections.abc import Sequence
from itertools import chain
from typing import Any

from gpu_acceptance.base.strict_json import StrictJsonError, parse, parse_all, parse_first
from gpu_acceptance.measure.lora.calls import DroppedError
from gpu_acceptance.measure.lora.pythonic import literal_of

_OFFERED = re.compile(r"\[\s*\{")  # where a list of functions begins in a text
_TOOLS_MARK, _TOOLS_END = "<tools>", "</tools>"
_TOOLS = re.compile(rf"{_TOOLS_MARK}(?:(?!{_TOOLS_MARK}).)*?{_TOOLS_END}", re.DOTALL)
_TYPES = {"str": "string", "int": "integer", "float": "number", "bool": "boolean", "list": "array", "dict": "object"}
_PARAMETERS = {"input_schema": "parameters", "inputSchema": "parameters"}  # of some chat APIs, and of MCP
_MOST_ALTERNATIVES = 64  # they are looked up for each object of the arguments
_KEEPS_NULL = {"default", "const", "enum", "examples"}


def tools_of(offered: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the offered functions as chat templates take them, from that form or from its inner object. Raises DroppedError."""
    found: list[dict[str, Any]] = []
    for one in offered:
        function = one.get("function", one) if isinstance(one, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
            raise DroppedError("a function without a name is offered")
        told = {_PARAMETERS.get(key, key): value for key, value in function.items() if (key, value) != ("type", "function")}
        told |= {"parameters": schema_of(told["parameters"])} if told.get("parameters") else {}
        if (declared := {"type": "function", "function": _declared(told)}) not in found:
            found.append(declared)
    if len({one["function"]["name"] for one in found}) < len(found):
        raise DroppedError("two functions of one name are offered")
    return found


def _declared(told: Any) -> Any:
    """Return a declaration without the nulls that Arrow fills structs up with."""
    if isinstance(told, list):
        return [_declared(one) for one in told]
    if not isinstance(told, dict):
        return told
    return {
        key: value if key in _KEEPS_NULL else _declared(value) for key, value in told.items() if value is not None or key in _KEEPS_NULL
    }


def offered_in(system: str) -> tuple[list[Any], str]:
    """Return the functions that stand in a system's text, as Hermes and ToolACE have them, and the text without them."""
    places = [found.span() for found in _TOOLS.finditer(system)]  # the words around them may name the marks, with nothing in between
    marked = [(begin, end) for begin, end in places if "{" in system[begin:end]]
    if marked:
        texts = [system[begin:end].removeprefix(_TOOLS_MARK).removesuffix(_TOOLS_END) for begin, end in marked]
        for begin, end in reversed(marked):
            system = f"{system[:begin].rstrip()}\n{system[end:].lstrip()}"
        return [one for text in texts for one in _in_a_row(text)], system.strip()
    if not (found := _OFFERED.search(system)):
        return [], system
    try:
        value, place = parse_first(system, found.start())
    except StrictJsonError:
        return [], system
    is_offer = all(isinstance(one, dict) and isinstance(one.get("name"), str) for one in value)
    return (value, f"{system[: found.start()].rstrip()}\n{system[place:].lstrip()}".strip()) if is_offer else ([], system)


def _in_a_row(text: str) -> list[Any]:
    """Parse a list, or objects one after the other, in JSON; or one value as Python would write it. Raises DroppedError."""
    try:
        values = parse_all(text)
    except StrictJsonError:
        try:
            values = [literal_of(text.strip())]
        except ValueError:
            raise DroppedError("functions that are no JSON") from None
    return [one for value in values for one in (value if isinstance(value, list) else [value])]


def schema_of(parameters: Any) -> Any:
    """Return the JSON schema, from its text too, or of the flat parameters of xLAM: {name: {"description", "type": "int, optional"}}.

    Raises DroppedError.
    """
    try:
        parameters = parse(parameters or "null") if isinstance(parameters, str) else parameters
    except StrictJsonError:
        raise DroppedError("parameters of a function that are no object") from None
    if not isinstance(parameters, dict | None):
        raise DroppedError("parameters of a function that are no object")
    if not isinstance(parameters, dict) or "properties" in parameters or not all(isinstance(one, dict) for one in parameters.values()):
        return parameters
    properties = {}
    for name, told in parameters.items():
        kind = re.split(r"[\[,\s]", str(told.get("type", "")).strip().lower(), maxsplit=1)[0]
        properties[name] = (
            {**told, "type": _TYPES[kind]} if kind in _TYPES else {key: value for key, value in told.items() if key != "type"}
        )
    needed = [name for name, told in parameters.items() if "default" not in told and "optional" not in str(told.get("type", ""))]
    return {"type": "object", "properties": properties, "required": needed}


def without_nulls(value: Any, schema: Any, root: Any = None) -> Any:
    """Leave out each null that the schema does not allow: Arrow gives all structs of a column the same keys.

    `root`: the whole schema, in which references are looked up.
    """
    if not isinstance(value, dict | list):
        return value
    root = schema if root is None else root
    schemas = _alternatives(schema, root)
    if isinstance(value, list):
        items = {"anyOf": [one.get("items") for one in schemas]}
        return [without_nulls(one, items, root) for one in value]
    known = [one["properties"] for one in schemas if isinstance(one.get("properties"), dict)]
    inner = {key: {"anyOf": [one.get(key) for one in known]} for key in value}
    return {
        key: without_nulls(one, inner[key], root)
        for key, one in value.items()
        if one is not None or any(map(_takes_null, _alternatives(inner[key], root)))
    }


def _alternatives(schema: Any, root: Any) -> list[dict[str, Any]]:
    """Return the schema and those that it is made of or refers to, each once, and no more than a few."""
    found: dict[int, dict[str, Any]] = {}
    waiting = [schema]
    while waiting and len(found) < _MOST_ALTERNATIVES:
        one = waiting.pop()
        if isinstance(one, dict) and id(one) not in found:
            found[id(one)] = one
            parts = [one[key][:_MOST_ALTERNATIVES] for key in ("anyOf", "oneOf", "allOf") if isinstance(one.get(key), list)]
            waiting += [_referred(one.get("$ref"), root), *chain.from_iterable(parts)]
    return list(found.values())


def _referred(reference: Any, root: Any) -> Any:
    """Return the schema at a place in the same file, `#/$defs/Town`, or None."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    for key in reference.removeprefix("#").split("/")[1:]:
        root = root.get(key) if isinstance(root, dict) else None
    return root


def _takes_null(schema: dict[str, Any]) -> bool:
    kinds, enumerated = schema.get("type"), schema.get("enum")
    return (
        kinds == "null"
        or (isinstance(kinds, list) and "null" in kinds)
        or schema.get("nullable") is True
        or (isinstance(enumerated, list) and None in enumerated)
    )
