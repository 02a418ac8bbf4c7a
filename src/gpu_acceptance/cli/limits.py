"""`limits` prints the policy for one GPU: each bound with its unit, whose figure it holds for, and where the number comes from."""

import argparse
import math
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpu_acceptance.base.text import visible
from gpu_acceptance.cli import arguments
from gpu_acceptance.cli.arguments import Verbs
from gpu_acceptance.inventory import nvml
from gpu_acceptance.report.words import count
from gpu_acceptance.run.suite import FOLDER, profiles_of, suite_for
from gpu_acceptance.thresholds.limit import (
    ByNodes,
    Limit,
    Profile,
    allowed_values,
    is_of_speed,
    matching_reason,
    show,
    source_kind,
    with_unit,
)
from gpu_acceptance.thresholds.profile import load_profile, profile_names, select_profile

_WIDTH = 118
_COLUMNS = (33, 19, 9)  # the widest that a bound, a scope and a kind of source are
_SIGNS = {"at_least": ">=", "at_most": "<=", "equals": "="}


def add_verb(verbs: Verbs) -> None:
    """Add `limits`."""
    limits = arguments.add_verb(verbs, "limits", _limits)
    limits.add_argument("profile", metavar="PROFILE", nargs="?", help="as in h200-sxm (default: that of this machine's GPU)")
    arguments.add_overlays(limits)


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
        name = select_profile(gpus[0].name, directory)
    print(visible("\n".join(policy(load_profile(name, directory, options.limits, suite / FOLDER)))))
    return 0


def policy(profile: Profile) -> Iterator[str]:
    """Yield the lines of the page: a heading, the limits of each subject, and what does not apply."""
    applying = [limit for limit in profile.limits.values() if matching_reason(limit.metric, profile.not_applicable) is None]
    speeds = Counter(source_kind(limit.source) for limit in applying if is_of_speed(limit))
    kinds = ", ".join(f"{number} {kind}" for kind, number in speeds.most_common())
    yield f"{profile.name} ({profile.device_name or 'no GPU'}): {', '.join(file.file for file in profile.files)}"
    yield f"{count(len(applying), 'limit')}; {count(sum(speeds.values()), 'speed limit')}{': ' if kinds else ''}{kinds}"
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
