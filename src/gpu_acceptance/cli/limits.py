"""`limits` prints the policy for one GPU; `explain` describes a metric.

The policy: each bound with its unit, whose figure it holds for, and where the number comes from. The description: the limit of a metric in
each profile, what to do about a miss, and how to change or waive the limit.
"""

import argparse
import ast
import math
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from gpu_acceptance.base.text import clip, did_you_mean, plural, visible
from gpu_acceptance.cli.arguments import Verbs, add_overlays, add_verb
from gpu_acceptance.inventory import nvml
from gpu_acceptance.report.remedies import kinds_of_metric, table
from gpu_acceptance.run.suite import FOLDER, profiles_of, suite_for
from gpu_acceptance.thresholds.changes import limit_differences
from gpu_acceptance.thresholds.families import stated
from gpu_acceptance.thresholds.known_metrics import KnownMetrics, known_metrics
from gpu_acceptance.thresholds.levels import ASKED_BY
from gpu_acceptance.thresholds.limit import (
    COUNTERS,
    Bound,
    ByNodes,
    Limit,
    Profile,
    allowed_values,
    choices,
    is_of_speed,
    matching_reason,
    show,
    source_kind,
    subject_of_metric,
    with_unit,
)
from gpu_acceptance.thresholds.profile import LimitsError, load_profile, profile_names, read_profiles, select_profile
from gpu_acceptance.thresholds.schema import Entry

_WIDTH = 118
_COLUMNS = (33, 19, 9)  # the widest that a bound, a scope and a kind of source are
_SIGNS = {"at_least": ">=", "at_most": "<=", "equals": "="}
_PACKAGE = "gpu_acceptance"
_ROOT = Path(__file__).parents[1]
_INDENT = "    "
_UNITS = {"bool": "true or false", "text": "a text"}
_REASON = "agreed with the vendor on 2026-11-20"
_MOST_WHOLE = 1e15  # below it a float shows every digit


def add_verbs(verbs: Verbs) -> None:
    """Add `explain` and `limits`."""
    explain = add_verb(verbs, "explain", _explain)
    explain.add_argument("metric", metavar="METRIC", help="as in hbm.triad.bandwidth; or a subject, or a glob in quotes")
    profile = "the limit of this profile only (default: of all profiles, that of this machine first)"
    explain.add_argument("--hardware", metavar="NAME", help=profile)
    add_overlays(explain, "an overlay on --hardware")
    limits = add_verb(verbs, "limits", _limits)
    limits.add_argument("profile", metavar="PROFILE", nargs="?", help="as in h200-sxm (default: that of this machine's GPU)")
    add_overlays(limits)


def _limits(options: argparse.Namespace) -> int:
    """Print the limits for one GPU on one page.

    Print the policy for one GPU: each bound with its unit, its scope, the kind of its source (measured, published, derived, datasheet or
    policy) and the metrics that it holds for, by subject. `gpu-acceptance explain METRIC` prints the whole source of one limit. Touches no
    GPU.
    """
    suite = suite_for(Path.cwd())
    directory, name = profiles_of(suite), options.profile
    if name is None:
        gpus = nvml.read().gpus
        if not gpus:
            known = ", ".join(profile_names(directory))
            raise ValueError(f"this machine has no GPU that NVML shows; name one of the profiles: {known}")
        name = select_profile(gpus[0].name, directory, gpus[0].nvlink_to)
    print(visible("\n".join(policy(load_profile(name, directory, options.limits, suite / FOLDER)))))
    return 0


def policy(profile: Profile) -> Iterator[str]:
    """Yield the lines of the page: a heading, the limits of each subject, and what does not apply."""
    applying = [limit for limit in profile.limits.values() if matching_reason(limit.metric, profile.not_applicable) is None]
    speeds = Counter(source_kind(limit.source) for limit in applying if is_of_speed(limit))
    kinds = ", ".join(f"{number} {kind}" for kind, number in speeds.most_common())
    yield f"{profile.name} ({profile.device or 'no GPU'}): {', '.join(file.file for file in profile.files)}"
    yield f"{plural(len(applying), 'limit')}; {plural(sum(speeds.values()), 'speed limit')}{': ' if kinds else ''}{kinds}"
    yield from (f"by the GPUs of the job: {choice}" for choice in choices(profile))
    subjects = sorted({limit.subject for limit in applying})
    for subject in subjects:
        yield f"\n{subject}{'' if subject in profile.requires else ' (not required)'}"
        yield from _rows([limit for limit in applying if limit.subject == subject])
    left_out = Counter(limit.subject for limit in profile.limits.values() if limit not in applying)
    if left_out:
        counts = ", ".join(f"{subject} ({number})" for subject, number in sorted(left_out.items()))
        yield ""
        yield from textwrap.wrap(f"declared not applicable: {counts}", _WIDTH, subsequent_indent="  ")


def _rows(limits: Sequence[Limit]) -> Iterator[str]:
    """Yield one row for each bound; metrics that end alike share one, with the range of their bounds."""
    families: dict[tuple[object, ...], list[Limit]] = {}
    for limit in limits:
        signs = tuple(name for name in (*_SIGNS, "uniform", "peers") if getattr(limit, name) not in (None, False))
        last = limit.metric.rpartition(".")[2]
        families.setdefault((signs, limit.unit, whose(limit), source_kind(limit.source), last), []).append(limit)
    rows: dict[tuple[str, str, str], list[str]] = {}
    for family in families.values():
        row = (bound_of(family), whose(family[0]), source_kind(family[0].source))
        rows.setdefault(row, []).append(_folded([limit.metric.partition(".")[2].split(".") for limit in family]))
    for row, names in rows.items():
        start = "  " + "".join(f"{cell:{width}} " for cell, width in zip(row, _COLUMNS, strict=True))
        yield from textwrap.wrap(
            start + ", ".join(_by_first_part(names)),
            _WIDTH,
            subsequent_indent=" " * (2 + sum(_COLUMNS) + len(_COLUMNS)),
            break_on_hyphens=False,
            break_long_words=False,
        )


def bound_of(family: Sequence[Limit]) -> str:
    """`>= 4044 to 4439 GB/s, peers 3 %`."""
    first = family[0]
    values = {name: [getattr(limit, name) for limit in family] for name in _SIGNS}
    parts = [f"{_SIGNS[name]} {_range(name, bounds)}" for name, bounds in values.items() if bounds[0] is not None]
    bound = with_unit(", ".join(parts), first.unit) if parts else ""
    sizes = sorted({size for limit in family for size in limit.listed_sizes()})
    more = ["same on all"] if first.uniform else []
    more += [f"peers {show(first.peers.deficit_at_most * 100)} %"] if first.peers else []
    more += [f"on {', '.join(map(str, sizes))}"] if sizes else []
    nodes = list(dict.fromkeys(text for limit in family for text in limit.listed_nodes()))
    more += [f"by {', '.join(nodes)} nodes"] if nodes else []
    return ", ".join([bound] * bool(bound) + more)


def _range(name: str, bounds: Sequence[Any]) -> str:
    """`4044 to 4439` of bounds that differ; what a figure must equal is listed."""
    values = [one for bound in bounds for one in _each_value(bound) if one is not None]
    ends = dict.fromkeys(values if name == "equals" else (min(values), max(values)))
    return (" or " if name == "equals" else " to ").join(map(show, ends))


def _each_value(bound: Any) -> Iterable[Any]:
    if isinstance(bound, ByNodes):
        return bound.nodes.values()
    return bound.values() if isinstance(bound, Mapping) else allowed_values(bound)


def whose(limit: Limit) -> str:
    """`job, one node`."""
    return limit.scope + {"any": "", "one": ", one node", "several": ", several nodes"}[limit.nodes]


def _folded(names: Sequence[Sequence[str]]) -> str:
    """`{copy, triad}.bandwidth` of names that end alike."""
    parts = [dict.fromkeys(name[position] for name in names) for position in range(min(map(len, names)))]
    if len(names) != math.prod(map(len, parts)) or len({len(name) for name in names}) > 1:
        parts = [dict.fromkeys(".".join(name[:-1]) for name in names), dict.fromkeys(name[-1] for name in names)]
    return ".".join(_braced(list(part)) for part in parts)


def _by_first_part(names: Sequence[str]) -> list[str]:
    """`node.{bios, cpu}` of names that begin alike."""
    starts: dict[str, list[str]] = {}
    for name in names:
        first, _, rest = name.partition(".")
        starts.setdefault(first if rest and "{" not in name else name, []).append(rest)
    return [f"{start}.{_braced(rests)}" if "{" not in start and all(rests) else start for start, rests in starts.items()]


def _braced(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{{{', '.join(names)}}}"


def validations_of(metric: str, suite: Path) -> dict[str, str]:
    """Return the validations that measure a metric, by node id, with the first paragraph of their docstrings.

    All of its subject if the source does not tell; none without such a file.
    """
    path = next(iter(sorted((suite / FOLDER).rglob(f"test_{subject_of_metric(metric)}.py"))), None)
    module = _parsed(path) if path else None
    if path is None or module is None:
        return {}
    tests = [node for node in module.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    scores = []  # the letters of the longest pattern that fits, and whether the test's name is the metric's second part
    for test in tests:
        fitting = [glob for glob in _globs(test, module) if fnmatchcase(metric, glob) or fnmatchcase(metric, f"{glob}.*")]
        letters = max((len(glob.replace("*", "")) for glob in fitting), default=0)
        scores.append((letters, test.name == f"test_{metric.split('.')[1]}"))
    file = path.relative_to(suite).as_posix()
    best = [test for test, score in zip(tests, scores, strict=True) if score == max(scores)]
    return {f"{file}::{test.name}": " ".join((ast.get_docstring(test) or "").split("\n\n")[0].split()) for test in best}


def _globs(test: ast.FunctionDef, module: ast.Module) -> Iterator[str]:
    """Yield all texts in the test, in the fixtures of its file that it uses, and in our functions that these name."""
    functions = {node.name: node for node in module.body if isinstance(node, ast.FunctionDef)}
    modules = {  # `nccl_physics` of `from gpu_acceptance.inventory import nccl_physics`, and its file
        alias.name: _ROOT.joinpath(*(node.module or "").split(".")[1:], f"{alias.name}.py")
        for node in module.body
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{_PACKAGE}.")
        for alias in node.names
    }
    todo = [functions.pop(test.name)]
    while todo:
        body = todo.pop()
        nodes = list(ast.walk(body))
        yield from _texts(body)
        used = [*(argument.arg for argument in body.args.args), *(node.id for node in nodes if isinstance(node, ast.Name))]
        todo += [functions.pop(name) for name in used if name in functions]
        for node in nodes:
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
                other = _parsed(modules[node.value.id])
                for one in other.body if other else ():
                    yield from _texts(one) if getattr(one, "name", "") == node.attr else ()


def _texts(node: ast.AST) -> list[str]:
    """Return each text, with a `*` for each part that exists only at run time."""
    found = [one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    joined = [one.values for one in ast.walk(node) if isinstance(one, ast.JoinedStr)]
    return found + ["".join(str(part.value) if isinstance(part, ast.Constant) else "*" for part in parts) for parts in joined]


@cache
def _parsed(path: Path) -> ast.Module | None:
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return None


def _explain(options: argparse.Namespace) -> int:
    """Say what a metric is, its limits, and how to change or waive one.

    Print what measures a metric, its limit in each profile with its source, what to do about a miss, an overlay that changes the limit,
    and the option that waives it. A subject (hbm) or a glob ('*.wrong') lists its metrics. Touches no GPU.
    """
    suite, overlays = suite_for(Path.cwd()), options.limits
    directory = profiles_of(suite)
    names = profile_names(directory)
    if options.hardware is None and overlays:
        raise ValueError(f"--limits={overlays[0]}: an overlay lies on a profile: add --hardware=NAME; profiles: {', '.join(names)}")
    chosen = [options.hardware] if options.hardware else names
    profiles = [load_profile(one, directory, overlays, suite / FOLDER) for one in chosen]
    if not options.hardware:
        with suppress(LimitsError):  # first the profile that a run on this machine would choose, if there is one
            gpus = nvml.read().gpus
            here = select_profile(gpus[0].name, directory, gpus[0].nvlink_to) if gpus else select_profile(None, directory)
            profiles = sorted(profiles, key=lambda profile: profile.name != here)
    limited = {metric: limit.unit for profile in profiles for metric, limit in profile.limits.items()}
    shipped = known_metrics(read_profiles(directory))
    known = KnownMetrics({**shipped.limited, **limited}, shipped.figures, frozenset())
    name, subject = options.metric, subject_of_metric(options.metric)
    if known.unit_of(name) is not None:
        before = load_profile(options.hardware, directory).limits.get(name) if overlays else None
        print(visible("\n".join(_one(name, known, profiles, before))))
    elif found := known.matching(name):
        print(visible("\n".join(_list(found, known, profiles))))
    elif subject not in known.subjects and "*" not in subject:
        hint = did_you_mean(subject, known.subjects)
        raise ValueError(f"unknown subject {subject!r}; known: {', '.join(sorted(known.subjects))}{hint}")
    else:
        hint = known.nearest(name) or f"; `gpu-acceptance explain {subject}` lists those of its subject"
        raise ValueError(f"unknown metric {name!r}{hint}")
    return 0


def _list(metrics: Sequence[str], known: KnownMetrics, profiles: Sequence[Profile]) -> Iterator[str]:
    """Yield one line per metric: its unit, and its limit if all these profiles agree, else their number."""
    width = max(map(len, metrics))
    for metric in metrics:
        limits = [profile.limits[metric] for profile in profiles if metric in profile.limits]
        bounds = sorted({_bounds(limit) for limit in limits})
        text = bounds[0] if len(bounds) == 1 else f"{len(bounds)} different limits" if bounds else "no limit"
        more = f", in {len(limits)} of {len(profiles)} profiles" if 0 < len(limits) < len(profiles) else ""
        yield f"{metric:{width}}  {known.unit_of(metric) or '':10} {text}{more}".rstrip()


def _one(metric: str, known: KnownMetrics, profiles: Sequence[Profile], before: Limit | None) -> Iterator[str]:
    """Yield the explanation of one metric. `before`: its limit without the overlays, if there are any."""
    unit = known.unit_of(metric) or ""
    yield f"{metric} ({_UNITS.get(unit, unit)})"
    if subject_of_metric(metric) == COUNTERS:
        yield "Read by the supervisor of each rank before and after every validation; the figure is what rose in between."
    for nodeid, text in validations_of(metric, suite_for(Path.cwd())).items():
        yield from _wrapped(f"measured by {nodeid}: {text}", "", _INDENT)
    levels, subject = profiles[0].levels, subject_of_metric(metric)
    named = [level for level, subjects in levels.items() if subject in subjects]
    others = [level for level in levels if level not in named]
    if option := next((option for option, (asked, _) in ASKED_BY.items() if asked == subject), None):
        yield f"part of a run with {option}"
    elif named:
        yield f"part of level {', '.join(named)}" + (f"; not tested at level {', '.join(others)}" if others else "")
    else:
        yield "part of every level"
    yield ""
    yield from _limits_of_profiles(metric, profiles)
    if before:
        yield from (
            f"{kind} by overlays: {key}, {old} -> {new}" for kind, key, old, new in limit_differences(before, profiles[0].limits[metric])
        )
    limits = {profile.name: profile.limits[metric] for profile in profiles if metric in profile.limits}
    own, kinds = dict.fromkeys(limit.remedy for limit in limits.values() if limit.remedy), kinds_of_metric(metric)
    remedies = [f": {' '.join(remedy.split())}" for remedy in own]
    remedies += [f", {kind}: {table().remedies[kind].do} (`gpu-acceptance remedy {kind}`)" for kind in kinds]
    yield from [""] if remedies else []
    for remedy in remedies:
        yield from _wrapped(f"after a miss{remedy}", "", _INDENT)
    name, limit = next(iter(limits.items()), (profiles[0].name, None))
    here = f"what {name} asks" if limit else "with any bound"
    yield f"\nTo {'change' if limit else 'set'} the limit, save this as mine.yaml ({here}), edit it, and add --limits=mine.yaml:"
    yield snippet(metric, limit, unit)
    if limit:
        yield f"To accept without it: --waive='{metric}={_REASON}'"


def _limits_of_profiles(metric: str, profiles: Sequence[Profile]) -> Iterator[str]:
    """Yield the first profile with its whole source. Other profiles that agree share a line, with the beginning of their source."""
    first, *others = profiles
    text, source = _limit_and_source(metric, first)
    yield from _wrapped(f"{first.name}: {text}", "", _INDENT)
    yield from _wrapped(source, _INDENT, _INDENT)
    alike: dict[tuple[str, str], list[str]] = {}
    for profile in others:
        alike.setdefault(_limit_and_source(metric, profile), []).append(profile.name)
    if others:
        yield "\nother profiles (--hardware=NAME shows one of them with its whole source):"
    for (text, source), names in alike.items():
        yield from _wrapped(f"{', '.join(names)}: {text}", "", _INDENT)
        yield from _wrapped(clip(source, _WIDTH - len(_INDENT)), _INDENT, _INDENT)


def _limit_and_source(metric: str, profile: Profile) -> tuple[str, str]:
    limit, reason = profile.limits.get(metric), matching_reason(metric, profile.not_applicable)
    if reason is not None:
        return f"not applicable: {reason}", ""
    if limit is None:
        return "no limit", ""
    required = "" if limit.subject in profile.requires else " (not required)"
    return f"{_bounds(limit)}{required}", f"source, in {limit.file}: {' '.join(limit.source.split())}"


def _bounds(limit: Limit) -> str:
    """Return `>= 4153 GB/s on each rank, spread at most 3 %, possible up to 4800`."""
    parts = [f"{sign} {_number(bound, limit.unit)}" for sign, bound in ((">=", limit.at_least), ("<=", limit.at_most)) if bound is not None]
    if limit.equals is not None:
        parts.append(f"== {with_unit(' or '.join(map(show, allowed_values(limit.equals))), limit.unit)}")
    parts += ["equal on all"] * limit.uniform
    parts += [f"at most {show(limit.peers.deficit_at_most * 100)} % below its peers"] if limit.peers else []
    more = [f"spread at most {_number(limit.spread_at_most, '%')}"] if limit.spread_at_most is not None else []
    more += [f"possible up to {show(limit.ceiling)}"] if limit.ceiling is not None else []
    more += [f"on {limit.nodes} node{'s' if limit.nodes == 'several' else ''} only"] if limit.nodes != "any" else []
    more += [f"with {', '.join(map(str, limit.world))} GPUs per node"] if limit.world else []
    whose = {"rank": "on each rank", "node": "on each node", "job": "for the job"}[limit.scope]
    return ", ".join([f"{' and '.join(parts)} {whose}", *more])


def _number(bound: Bound, unit: str) -> str:
    if isinstance(bound, ByNodes):
        numbers = [f"{'nothing' if number is None else show(number)} on {text}" for text, number in bound.nodes.items()]
        return f"{', '.join(numbers)} nodes ({unit})"
    if isinstance(bound, Mapping):
        return f"{', '.join(f'{show(number)} at {size}' for size, number in sorted(bound.items()))} GPUs per node ({unit})"
    return with_unit(show(bound), unit)


def snippet(metric: str, limit: Limit | None, unit: str) -> str:
    """Return a valid overlay with the limit as it stands, except for its source; with any bound if there is no limit."""
    if limit:
        entry = _plain(stated(limit))
    else:
        bound: dict[str, Any] = {"text": {"uniform": True}, "bool": {"equals": True}}.get(unit, {"at_least": 1})
        entry = {**bound, "unit": unit, "scope": "rank"}
    entry["source"] = f"policy: {_REASON}"
    content = {"limits": {metric: {name: entry[name] for name in Entry.model_fields if name in entry}}}
    return yaml.safe_dump(content, sort_keys=False, width=_WIDTH, allow_unicode=True).rstrip()


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < _MOST_WHOLE else value


def _wrapped(text: str, first: str, others: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=first, subsequent_indent=others, break_on_hyphens=False)
