"""`explain`: what a metric is, its limit in each profile, what to do about a miss, and how to change or waive it."""

import argparse
import ast
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from gpu_acceptance.base.text import clip, did_you_mean, visible
from gpu_acceptance.inventory import nvml
from gpu_acceptance.report.remedies import kinds_of_metric, table
from gpu_acceptance.run.suite import FOLDER, suite_for
from gpu_acceptance.thresholds.changes import limit_differences
from gpu_acceptance.thresholds.known_metrics import KnownMetrics, known_metrics
from gpu_acceptance.thresholds.limit import COUNTERS, Limit, Peers, Profile, matching_reason, show, subject_of_metric, with_unit
from gpu_acceptance.thresholds.profile import ASKED_BY, LimitsError, load_profile, profile_names, read_profiles, select_profile, shipped_dir
from gpu_acceptance.thresholds.schema import Entry

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


if TYPE_CHECKING:
    from gpu_acceptance.cli.machine import Verbs

_WIDTH = 118
_INDENT = "    "
_UNITS = {"bool": "true or false", "text": "a text"}
_REASON = "agreed with the vendor on 2026-11-20"
_NEEDED = {"unit", "scope", "source"}
_MOST_WHOLE = 1e15  # every digit of it is shown


def add_verb(verbs: "Verbs") -> None:
    explain = verbs.add_parser(
        "explain",
        help="say what a metric is, its limits, and how to change or waive one",
        description="Print what measures a metric, its limit in each profile with its source, what to do about a miss, an overlay that "
        "changes the limit, and the option that waives it. A subject (hbm) or a glob ('*.wrong') lists its metrics. Touches no GPU.",
    )
    explain.add_argument("metric", metavar="METRIC", help="as in hbm.triad.bandwidth; or a subject, or a glob in quotes")
    explain.add_argument(
        "--hardware", metavar="NAME", help="the limit of this profile only (default: of all profiles, that of this machine first)"
    )
    explain.add_argument(
        "--limits", metavar="FILE", type=Path, action="append", default=[], help="an overlay on --hardware; may be given several times"
    )
    explain.set_defaults(verb=_explain)


def _explain(options: argparse.Namespace) -> int:
    directory = suite_for(Path.cwd()) / "thresholds"
    directory = directory if (directory / "base.yaml").is_file() else shipped_dir()
    profiles = _profiles(options.hardware, directory, options.limits)
    if not options.hardware:
        profiles = _this_machine_first(profiles, directory)
    limited = {metric: limit.unit for profile in profiles for metric, limit in profile.limits.items()}
    shipped = known_metrics(read_profiles(directory))
    known = KnownMetrics({**shipped.limited, **limited}, shipped.figures, frozenset())
    if known.unit_of(options.metric) is not None:
        before = load_profile(options.hardware, directory).limits.get(options.metric) if options.limits else None
        lines = _one(options.metric, known, profiles, before)
    elif found := known.matching(options.metric):
        lines = _list(found, known, profiles)
    else:
        raise ValueError(_unknown(options.metric, known))
    print(visible("\n".join(lines)))
    return 0


def _profiles(name: str | None, directory: Path, overlays: Sequence[Path]) -> list[Profile]:
    names = profile_names(directory)
    if name is None and overlays:
        raise ValueError(f"--limits={overlays[0]}: an overlay lies on a profile: add --hardware=NAME; profiles: {', '.join(names)}")
    return [load_profile(one, directory, overlays, suite_for(Path.cwd()) / FOLDER) for one in ([name] if name else names)]


def _this_machine_first(profiles: Sequence[Profile], directory: Path) -> list[Profile]:
    """The profile that a run on this machine would choose, then the others; as they came where it would choose none."""
    gpus = nvml.read().gpus
    try:
        here = select_profile(gpus[0].name if gpus else None, directory)
    except LimitsError:
        return list(profiles)
    return sorted(profiles, key=lambda profile: profile.name != here)


def _unknown(name: str, known: KnownMetrics) -> str:
    subject = subject_of_metric(name)
    if subject not in known.subjects and "*" not in subject:
        return f"unknown subject {subject!r}; known: {', '.join(sorted(known.subjects))}{did_you_mean(subject, known.subjects)}"
    hint = known.nearest(name) or f"; `gpu-acceptance explain {subject}` lists those of its subject"
    return f"unknown metric {name!r}{hint}"


def _list(metrics: Sequence[str], known: KnownMetrics, profiles: Sequence[Profile]) -> Iterator[str]:
    """One line each: its unit, and its limit where it is the same in all of these profiles, else in how many there is one."""
    width = max(map(len, metrics))
    for metric in metrics:
        limits = [profile.limits[metric] for profile in profiles if metric in profile.limits]
        bounds = sorted({_bounds(limit) for limit in limits})
        text = bounds[0] if len(bounds) == 1 else f"{len(bounds)} different limits" if bounds else "no limit"
        more = f", in {len(limits)} of {len(profiles)} profiles" if 0 < len(limits) < len(profiles) else ""
        yield f"{metric:{width}}  {known.unit_of(metric) or '':10} {text}{more}".rstrip()


def _one(metric: str, known: KnownMetrics, profiles: Sequence[Profile], before: Limit | None) -> Iterator[str]:
    """`before`: its limit without the overlays, where there are some."""
    unit = known.unit_of(metric) or ""
    yield f"{metric} ({_UNITS.get(unit, unit)})"
    yield from _measured_by(metric)
    yield from _levels(subject_of_metric(metric), profiles[0])
    yield ""
    yield from _limits(metric, profiles)
    if before:
        yield from (
            f"{kind} by overlays: {key}, {old} -> {new}" for kind, key, old, new in limit_differences(before, profiles[0].limits[metric])
        )
    limits = {profile.name: profile.limits[metric] for profile in profiles if metric in profile.limits}
    yield from _remedies(metric, limits.values())
    name, limit = next(iter(limits.items()), (profiles[0].name, None))
    here = f"what {name} asks" if limit else "with any bound"
    yield f"\nTo {'change' if limit else 'set'} the limit, save this as mine.yaml ({here}), edit it, and add --limits=mine.yaml:"
    yield snippet(metric, limit, unit)
    if limit:
        yield f"To accept without it: --waive='{metric}={_REASON}'"


def _measured_by(metric: str) -> Iterator[str]:
    if subject_of_metric(metric) == COUNTERS:
        yield "Read by the supervisor of each rank before and after every validation; the figure is what rose in between."
    for validation in validations_of(metric, suite_for(Path.cwd())):
        yield from _wrapped(f"measured by {validation.nodeid}: {validation.text}", "", _INDENT)


def _levels(subject: str, profile: Profile) -> Iterator[str]:
    """Which runs it is part of, as an option or the level asks."""
    if option := next((option for option, (asked, _) in ASKED_BY.items() if asked == subject), None):
        yield f"part of a run with {option}"
    elif named := [level for level, subjects in profile.levels.items() if subject in subjects]:
        others = [level for level in profile.levels if level not in named]
        yield f"part of level {', '.join(named)}" + (f"; not tested at level {', '.join(others)}" if others else "")
    else:
        yield "part of every level"


def _limits(metric: str, profiles: Sequence[Profile]) -> Iterator[str]:
    """The first profile with its whole source. Those of the others that say the same share a line, with the beginning of their source."""
    first, *others = profiles
    text, source = _said(metric, first)
    yield from _wrapped(f"{first.name}: {text}", "", _INDENT)
    yield from _wrapped(source, _INDENT, _INDENT)
    said: dict[tuple[str, str], list[str]] = {}
    for profile in others:
        said.setdefault(_said(metric, profile), []).append(profile.name)
    if others:
        yield "\nother profiles (--hardware=NAME shows one of them with its whole source):"
    for (text, source), names in said.items():
        yield from _wrapped(f"{', '.join(names)}: {text}", "", _INDENT)
        yield from _wrapped(clip(source, _WIDTH - len(_INDENT)), _INDENT, _INDENT)


def _said(metric: str, profile: Profile) -> tuple[str, str]:
    limit, reason = profile.limits.get(metric), matching_reason(metric, profile.not_applicable)
    if reason is not None:
        return f"not applicable: {reason}", ""
    if limit is None:
        return "no limit", ""
    required = "" if limit.subject in profile.requires else " (not required)"
    return f"{_bounds(limit)}{required}", f"source, in {limit.file}: {' '.join(limit.source.split())}"


def _bounds(limit: Limit) -> str:
    """`>= 4153 GB/s on each rank, spread at most 3 %, possible up to 4800`."""
    parts = [f"{sign} {_number(bound, limit.unit)}" for sign, bound in ((">=", limit.at_least), ("<=", limit.at_most)) if bound is not None]
    parts += [f"== {with_unit(show(limit.equals), limit.unit)}"] if limit.equals is not None else []
    parts += ["equal on all"] * limit.uniform
    parts += [f"at most {show(limit.peers.deficit_at_most * 100)} % below its peers"] if limit.peers else []
    more = [f"spread at most {_number(limit.spread_at_most, '%')}"] if limit.spread_at_most is not None else []
    more += [f"possible up to {show(limit.ceiling)}"] if limit.ceiling is not None else []
    more += [f"on {limit.nodes} node{'s' if limit.nodes == 'several' else ''} only"] if limit.nodes != "any" else []
    more += [f"with {', '.join(map(str, limit.world))} GPUs per node"] if limit.world else []
    whose = {"rank": "on each rank", "node": "on each node", "job": "for the job"}[limit.scope]
    return ", ".join([f"{' and '.join(parts)} {whose}", *more])


def _number(bound: float | Mapping[int, float], unit: str) -> str:
    if isinstance(bound, Mapping):
        return f"{', '.join(f'{show(number)} at {size}' for size, number in sorted(bound.items()))} GPUs per node ({unit})"
    return with_unit(show(bound), unit)


def _remedies(metric: str, limits: Iterable[Limit]) -> Iterator[str]:
    own = dict.fromkeys(limit.remedy for limit in limits if limit.remedy)
    kinds = kinds_of_metric(metric)
    if own or kinds:
        yield ""
    for remedy in own:
        yield from _wrapped(f"after a miss: {' '.join(remedy.split())}", "", _INDENT)
    for kind in kinds:
        yield from _wrapped(f"after a miss, {kind}: {table().remedies[kind].do} (`gpu-acceptance remedy {kind}`)", "", _INDENT)


def snippet(metric: str, limit: Limit | None, unit: str) -> str:
    """An overlay that loads as it is: with the limit as it stands, but for its source."""
    told = _told(limit) if limit else {**_any_bound(unit), "unit": unit, "scope": "rank"}
    told["source"] = f"policy: {_REASON}"
    content = {"limits": {metric: {name: told[name] for name in Entry.model_fields if name in told}}}
    return yaml.safe_dump(content, sort_keys=False, width=_WIDTH, allow_unicode=True).rstrip()


def _told(limit: Limit) -> dict[str, Any]:
    """What an entry of this limit has to say, as plain values."""
    plain = Limit(limit.metric, limit.unit, limit.scope, limit.source, limit.file)
    values = {name: getattr(limit, name) for name in Entry.model_fields}
    told = {name: value for name, value in values.items() if name in _NEEDED or value != getattr(plain, name)}
    return {name: _plain(value) for name, value in told.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Peers):
        return vars(value)
    if isinstance(value, Mapping):
        return {size: _plain(number) for size, number in value.items()}
    if isinstance(value, tuple):
        return list(value)
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < _MOST_WHOLE else value


def _any_bound(unit: str) -> dict[str, Any]:
    return {"text": {"uniform": True}, "bool": {"equals": True}}.get(unit, {"at_least": 1})


def _wrapped(text: str, first: str, others: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=first, subsequent_indent=others, break_on_hyphens=False)
