"""Which validation measures a metric, read from the source of the suite. Imports nothing of it.

A metric's name stands in the test, in a fixture of its file, or in the function of ours that finds its figures; parts of it that are
only known in a run stand there in braces. The test with the most letters of the name in one place measures it.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from gpu_acceptance.run.suite import FOLDER
from gpu_acceptance.thresholds.limit import subject_of_metric

_PACKAGE = "gpu_acceptance"
_ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Validation:
    """One test function, by its file in the suite, and the first paragraph of what it says of itself."""

    nodeid: str
    text: str


def validations_of(metric: str, suite: Path) -> list[Validation]:
    """Those that measure it; all of its subject where the source does not tell; none where the suite has no such file."""
    path = next(iter(sorted((suite / FOLDER).rglob(f"test_{subject_of_metric(metric)}.py"))), None)
    module = _parsed(path) if path else None
    if path is None or module is None:
        return []
    tests = [node for node in module.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    scores = {test.name: _score(metric, test, module) for test in tests}
    best = max(scores.values(), default=(0, False))
    file = path.relative_to(suite).as_posix()
    return [Validation(f"{file}::{test.name}", _first_paragraph(test)) for test in tests if scores[test.name] == best]


def _score(metric: str, test: ast.FunctionDef, module: ast.Module) -> tuple[int, bool]:
    """The letters of the longest pattern that fits, and whether the test has the name of the metric's second part."""
    fitting = [glob for glob in _globs(test, module) if fnmatchcase(metric, glob) or fnmatchcase(metric, f"{glob}.*")]
    letters = max((len(glob.replace("*", "")) for glob in fitting), default=0)
    return letters, test.name == f"test_{metric.split('.')[1]}"


def _globs(test: ast.FunctionDef, module: ast.Module) -> Iterator[str]:
    """All texts in the test, in the fixtures of its file that it asks for, and in the functions of ours that these name."""
    functions = {node.name: node for node in module.body if isinstance(node, ast.FunctionDef)}
    modules = dict(_own_modules(module))
    todo, seen = [test.name], set[str]()
    while todo:
        name = todo.pop()
        if name in seen or name not in functions:
            continue
        seen.add(name)
        body = functions[name]
        yield from _texts(body)
        todo += [argument.arg for argument in body.args.args]
        for node in ast.walk(body):
            if isinstance(node, ast.Name):
                todo.append(node.id)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
                yield from _texts_of(modules[node.value.id], node.attr)


def _own_modules(module: ast.Module) -> Iterator[tuple[str, Path]]:
    """`nccl_physics` of `from gpu_acceptance.inventory import nccl_physics`, and its file."""
    for node in module.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{_PACKAGE}."):
            folder = _ROOT.joinpath(*(node.module or "").split(".")[1:])
            yield from ((alias.name, folder / f"{alias.name}.py") for alias in node.names)


def _texts_of(path: Path, function: str) -> list[str]:
    module = _parsed(path)
    return [text for node in module.body if getattr(node, "name", "") == function for text in _texts(node)] if module else []


def _texts(node: ast.AST) -> list[str]:
    """Each text, with a `*` for what it only has in a run."""
    found = [one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    joined = [one.values for one in ast.walk(node) if isinstance(one, ast.JoinedStr)]
    return found + ["".join(str(part.value) if isinstance(part, ast.Constant) else "*" for part in parts) for parts in joined]


@cache
def _parsed(path: Path) -> ast.Module | None:
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return None


def _first_paragraph(test: ast.FunctionDef) -> str:
    return " ".join((ast.get_docstring(test) or "").split("\n\n")[0].split())
