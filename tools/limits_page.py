"""docs/limits.md: each metric, what it is, its limit in each file of thresholds/, what to do about a miss, and where it does not apply."""

import ast
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from gpu_acceptance.base.strict_yaml import parse
from gpu_acceptance.cli.limits import bound_of, whose
from gpu_acceptance.thresholds.fabrics import fabrics
from gpu_acceptance.thresholds.families import expand
from gpu_acceptance.thresholds.file import LimitsFile
from gpu_acceptance.thresholds.known_metrics import known_metrics
from gpu_acceptance.thresholds.limit import COUNTERS, Limit, source_kind, subject_of_metric
from gpu_acceptance.thresholds.profile import BASE, load_profile, profile_names, read_profiles, shipped_dir
from tools.markdown import cell, escaped

ROOT = Path(__file__).resolve().parents[1]
METRICS = ROOT / "docs" / "metrics.yaml"
_OVERLAYS = ("site-nvls-off",)

_HEAD = """# What the limits mean

`make docs` writes this page from [thresholds/](../thresholds/README.md) and [metrics.yaml](metrics.yaml). `gpu-acceptance limits h200-sxm`
prints the limits for one GPU, and `gpu-acceptance explain METRIC` one limit with its whole source. Why each subject matters, and what it
does not see: [methods](methods.md).

How to read a limit: the bound, whose figure it is, the kind of its source and, in brackets, the file that sets it. A file replaces what
`base` says. `rank` is each GPU; `4 to 9` are the bounds of several metrics in one row; `on 2, 4, 8` are GPUs per node. *Same on all*: the
majority is the reference, and a tie fails. A metric without a limit is recorded, or judged where an overlay limits it.
"""
_TAIL = """
## `world_formation` and `worker_end`

Rows of the suite itself. No limit applies to them, and nothing can waive them: [methods](methods.md#world_formation-and-worker_end).
"""


def limits_page() -> str:
    """docs/limits.md."""
    return _HEAD + "".join(map(_section, [*_subjects(), COUNTERS])) + _TAIL


@cache
def meanings() -> Mapping[str, str]:
    """Return what each metric is, by a name, or by `{a,b}` and `*` over names."""
    return {str(name): str(text) for name, text in parse(METRICS.read_bytes()).data.items()}


@cache
def limits_by_file() -> Mapping[str, Mapping[str, Limit]]:
    """Return each limit by its metric and by the file that sets it; base comes first."""
    found: dict[str, dict[str, Limit]] = {}
    profiles = [load_profile(name, shipped_dir()) for name in ("base", *profile_names(shipped_dir()))]
    profiles += [load_profile("h200-sxm", shipped_dir(), [Path(overlay)]) for overlay in _OVERLAYS]
    profiles += [load_profile(BASE, shipped_dir(), fabric=fabric) for fabric in fabrics(shipped_dir())]
    for profile in profiles:
        for metric, limit in profile.limits.items():
            found.setdefault(metric, {})[limit.file.removesuffix(".yaml")] = limit
    return found


@cache
def explained() -> Mapping[str, str]:
    """Return the pattern that explains each metric: the first one of metrics.yaml that matches its name."""
    found: dict[str, str] = {}
    for pattern in patterns():
        found |= {metric: pattern for metric in _known() if metric not in found and fnmatchcase(metric, pattern)}
    return found


@cache
def patterns() -> Mapping[str, str]:
    """Return each name that the entries of metrics.yaml stand for, with `*` and without braces, and its entry."""
    return {pattern: entry for entry in meanings() for pattern in expand(entry)}


@cache
def rows_of(subject: str) -> Mapping[str, Sequence[str]]:
    """Return the metrics of each row by its entry. A metric with a limit and without an entry is a row of its own."""
    found: dict[str, list[str]] = {}
    for metric, pattern in explained().items():
        if subject_of_metric(metric) == subject:
            found.setdefault(patterns()[pattern], []).append(metric)
    plain = [metric for metric in limits_by_file() if metric not in explained() and subject_of_metric(metric) == subject]
    return found | {metric: [metric] for metric in plain}


@cache
def _known() -> tuple[str, ...]:
    shipped = known_metrics(_files())
    return tuple(dict.fromkeys((*shipped.limited, *shipped.figures)))


@cache
def _files() -> list[LimitsFile]:
    return read_profiles(shipped_dir())


@cache
def _subjects() -> dict[str, str]:
    """Return the first line of each file of acceptance/, by its subject."""
    files = sorted((ROOT / "acceptance").glob("test_*.py"))
    docs = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) for path in files)
    return {path.stem.removeprefix("test_"): str(doc).splitlines()[0] for path, doc in zip(files, docs, strict=True)}


@cache
def _methods() -> str:
    return (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")


def _section(subject: str) -> str:
    about = _subjects().get(subject, "No error counter of a GPU or a network port rises during a validation.")
    rows = "".join(
        f"| {_label(entry, subject)} | {cell(meanings().get(entry, ''))} | {cell(_limit(metrics))} |\n"
        for entry, metrics in rows_of(subject).items()
    )
    table = f"| metric | what it is | limit |\n|---|---|---|\n{rows}" if rows else "Its figures are recorded, and none has a limit.\n"
    more = "".join(part for part in (_remedies(subject), _not_applicable(subject)) if part)
    why = f" [Why it matters](methods.md#{subject})." if f"\n## `{subject}`\n" in _methods() else ""
    return f"\n## `{subject}`\n\n{escaped(about)}{why}\n\n{table}{more}"


def _label(entry: str, subject: str) -> str:
    """Return the entry, or those of its names that belong to the subject if it is about several."""
    names = [name for name in expand(entry) if subject_of_metric(name) == subject]
    return ", ".join(f"`{name}`" for name in (names if 0 < len(names) < len(expand(entry)) else [entry]))


def _limit(metrics: Sequence[str]) -> str:
    """`>= 4044 to 4439 GB/s, rank, measured (h200-sxm); ...`."""
    families: dict[tuple[str, ...], list[Limit]] = {}
    for metric in metrics:
        for file, limit in limits_by_file().get(metric, {}).items():
            families.setdefault((file, limit.unit, whose(limit), source_kind(limit.source), *_kinds(limit)), []).append(limit)
    files_of: dict[str, list[str]] = {}
    for (file, *_), family in families.items():
        files_of.setdefault(f"{bound_of(family)}, {whose(family[0])}, {source_kind(family[0].source)}", []).append(f"`{file}`")
    return "; ".join(f"{text} ({', '.join(files)})" for text, files in files_of.items()) or "none"


def _kinds(limit: Limit) -> list[str]:
    return [name for name in ("at_least", "at_most", "equals", "uniform", "peers") if getattr(limit, name) not in (None, False)]


def _remedies(subject: str) -> str:
    """Return what to do about a miss, once for all metrics of which it is the same; a whole row stands for its metrics."""
    found: dict[str, list[str]] = {}
    for entry, metrics in rows_of(subject).items():
        limited = {metric: list(limits_by_file().get(metric, {}).values()) for metric in metrics}
        own = {metric: {limit.remedy for limit in limits if limit.remedy} for metric, limits in limited.items() if limits}
        for remedy in dict.fromkeys(limit.remedy for limits in limited.values() for limit in limits if limit.remedy):
            having = [metric for metric, remedies in own.items() if remedy in remedies]
            names = _label(entry, subject) if len(having) == len(own) else ", ".join(f"`{metric}`" for metric in having)
            found.setdefault(remedy, []).append(names)
    lines = "".join(f"- {', '.join(names)}: {escaped(remedy)}\n" for remedy, names in found.items())
    return f"\nAfter a miss:\n\n{lines}" if lines else ""


def _not_applicable(subject: str) -> str:
    found: dict[str, dict[str, None]] = {}
    for file in _files():
        for glob, reason in file.content.not_applicable.items():
            if subject_of_metric(glob) == subject:
                found.setdefault(f"`{glob}`: {escaped(reason)}", {})[f"`{file.name.removesuffix('.yaml')}`"] = None
    lines: Iterator[str] = (f"- {text} ({', '.join(files)})\n" for text, files in found.items())
    return f"\nDeclared not applicable:\n\n{''.join(lines)}" if found else ""
