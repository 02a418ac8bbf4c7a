"""Calls and values as Python would write them: ToolACE, Llama 4 and LFM2 call so, and hermes-function-calling-v1 has such values.

Python itself does not read all of them: an argument may have the name of a keyword (`from="USD"`), or one that no variable can have
(`max-results=5`), and a text may go over several lines.
"""

import ast
import json
import re
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from gpu_acceptance.base.strict_json import parse

_WORDS = {"true": True, "false": False, "null": None}
_TEXT = r"""(?:"(?:[^"\\]|\\.?)*(?:"|\Z)|'(?:[^'\\]|\\.?)*(?:'|\Z))"""  # one that does not end goes to the end of all
_TEXTS = re.compile(_TEXT, re.DOTALL)
_TOKENS = re.compile(rf"{_TEXT}|[()\[\]{{}},]", re.DOTALL)
_KEYWORD = re.compile(r"\s*([\w$@.\-]+)\s*=(.*)", re.DOTALL)
_BEGIN = re.compile(r"""\[[^\[\](){}="]+\(\s*(?:[\w$@.\-]+\s*=|\))""")
_END = re.compile(r"\)\s*\]$")


def begins(text: str) -> bool:
    """Return True if the text begins like a list of calls."""
    return _BEGIN.match(text) is not None


def ends(text: str) -> bool:
    return _END.search(text) is not None


def calls_in(text: str) -> tuple[list[tuple[str, dict[str, Any]]], str]:
    """Return names and arguments of `[name(key=value), ...]`, in which a name may have blanks, and the text after it. Raises ValueError."""
    found, place, is_last = [], 1, False
    while not is_last:
        begin = text.find("(", place)
        end = next((at for at, _, depth in _brackets(text, begin) if depth == 0), -1) if begin > 0 else -1
        name, following = text[place:begin].strip(), text[end + 1 :].lstrip() if end > 0 else ""
        if not name or not following or following[0] not in ",]":
            raise ValueError("a list of calls that does not end, or a call in it without a name")
        found.append((name, _keywords(text[begin + 1 : end])))
        is_last, place = following[0] == "]", len(text) - len(following) + 1
    return found, text[place:].strip()


def _brackets(text: str, begin: int = 0) -> Iterator[tuple[int, str, int]]:
    """Yield brackets and commas outside of quoted texts: place, character, and the number of brackets that are open after it."""
    depth = 0
    for token in _TOKENS.finditer(text, begin):
        if token[0][0] not in "\"'":
            depth += (token[0] in "([{") - (token[0] in ")]}")
            yield token.start(), token[0], depth


def _keywords(text: str) -> dict[str, Any]:
    commas = [place for place, char, depth in _brackets(text) if char == "," and depth == 0]
    parts = [text[begin + 1 : end] for begin, end in zip([-1, *commas], [*commas, len(text)], strict=True)]
    parts = parts if parts[-1].strip() else parts[:-1]
    pairs = [_KEYWORD.fullmatch(part) for part in parts]
    keywords = {pair[1]: _expression(pair[2].strip()) for pair in pairs if pair}
    if len(keywords) < len(parts):
        raise ValueError("arguments that are no literals with names, each once")
    return dict(_as_json(keywords))


def literal_of(text: str) -> Any:
    """Return the value of a literal of Python that JSON could hold as well. Raises ValueError."""
    return _as_json({"": _expression(text)})[""]


def _expression(text: str) -> ast.expr:
    try:
        with warnings.catch_warnings():  # of an escape that Python does not know
            warnings.simplefilter("ignore")
            return ast.parse(_TEXTS.sub(_on_one_line, text), mode="eval").body
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(error) from None


def _on_one_line(quoted: re.Match[str]) -> str:
    return quoted[0].replace("\n", "\\n").replace("\r", "\\r")


def _as_json(nodes: Mapping[str, ast.expr]) -> Any:
    """Return the values as JSON has them: a name of `_WORDS` is its value. Raises ValueError."""
    try:
        return parse(json.dumps({name: _literal(node) for name, node in nodes.items()}))
    except (TypeError, RecursionError) as error:  # a key that cannot be one
        raise ValueError(error) from None


def _literal(node: ast.expr) -> Any:
    if isinstance(node, ast.Name) and node.id in _WORDS:
        return _WORDS[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_literal(one) for one in node.elts]
    if isinstance(node, ast.Dict):
        values = {_literal(key) if key else None: _literal(value) for key, value in zip(node.keys, node.values, strict=True)}
        if len(values) < len(node.keys):
            raise ValueError("a key is given twice")
        return values
    return ast.literal_eval(node)
