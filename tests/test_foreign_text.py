"""Nothing parses our own sentences: what our code knows travels as a field, so that rewording a sentence changes words alone."""

import ast
import re
from functools import cache

import pytest

from gpu_acceptance.report.remedies import table
from tests.test_repo_rules import SRC, parsed

pytestmark = pytest.mark.repository

READS = {"compile", "match", "search", "fullmatch", "sub", "split", "findall", "finditer", "startswith", "endswith"}
READS |= {"partition", "rpartition", "rsplit", "removeprefix", "removesuffix", "find", "index", "replace"}
PHRASE = re.compile(r"[A-Za-z]{3,}(?: [A-Za-z]{2,})+|[A-Za-z]{3,}:? $")  # two words or more, or one that more text must follow
OTHERS_TOO = {  # phrases of others that our own sentences have as well -> who writes them
    "argument ": "argparse",
    "error: ": "gcc, clang",
    "Skipped: ": "pytest",
    **dict.fromkeys(("fallen off the bus", "probe routine failed"), "the driver of NVIDIA"),
    **dict.fromkeys(("Hardware Error", "Internal error detected", "Memory failure", "PCIe Bus Error", "bad device here"), "the kernel"),
    **dict.fromkeys(("blocked for more than", "soft lockup"), "the kernel"),
    **dict.fromkeys(("containment event", "health compromised", "event severity", "serial number"), "the kernel"),
    "cannot find": "ld",
    "frozen ": "Python",
}
PATTERNS_OF_OTHERS_TOO = {"[Bb]us error", "NCCL error", "fallen off the bus"}  # libc, torch, the driver in an example of its lines


@cache
def texts():
    """All texts of ours but docstrings and what is looked for; what stands in braces is 1."""
    return [text for path in SRC.rglob("*.py") for text in _texts(parsed(path)) if " " in text]


def _texts(tree):
    looked_for = {part for call, _ in reading_calls(tree) for argument in call.args[:1] for part in ast.walk(argument)}
    joined = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) and node not in looked_for]
    part_of_one = {part for whole in joined for part in ast.walk(whole)}
    docstrings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for whole in joined:
        yield "".join(part.value if isinstance(part, ast.Constant) else "1" for part in whole.values)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in part_of_one | docstrings | looked_for:
            yield node.value


def reading_calls(tree):
    """Calls of methods that look for a text, and what they look for."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in READS:
            yield node, texts_in(node.args[:1])


def texts_in(nodes):
    parts = [part for node in nodes for part in ast.walk(node)]
    return [part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)]


def phrases_looked_for(tree):
    for _, told in reading_calls(tree):
        yield from told
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
            yield from texts_in([node.left])


def ours(patterns):
    """The phrases in what is looked for that stand in a sentence of ours."""
    found = {phrase for pattern in patterns for phrase in PHRASE.findall(pattern)}
    return {phrase for phrase in found if phrase not in OTHERS_TOO and any(phrase in text for text in texts())}


def test_our_code_looks_for_no_sentence_of_its_own():
    by_file = {str(path.relative_to(SRC)): ours(phrases_looked_for(parsed(path))) for path in SRC.rglob("*.py")}
    assert {name: found for name, found in by_file.items() if found} == {}


def test_remedies_are_found_by_the_words_of_others():
    patterns = {one for remedy in table().remedies.values() for one in (*remedy.found_by.says, *remedy.found_by.says_of_run)}
    assert {one for one in patterns if any(re.search(one, text) for text in texts())} == PATTERNS_OF_OTHERS_TOO


@pytest.mark.parametrize("looked_for", ["failed first", "nobody can say ", "the report could not be written to .*(gone|away)"])
def test_the_rule_finds_a_sentence(looked_for, monkeypatch):
    text = looked_for.split(".*")[0]
    monkeypatch.setitem(globals(), "texts", lambda: [f"rank 1: {text}: because"])
    assert ours([looked_for]) != set()
