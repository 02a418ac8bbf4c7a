"""One limit and a profile of them, and how values are compared and written."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from operator import not_
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, TypeGuard, get_args

from pydantic import Field, PlainSerializer

from gpu_acceptance.base.text import plural

Whole = Annotated[int, Field(ge=-(2**63), lt=2**63)]  # a range that other tools can read and a float can hold
Value = float | Whole | str | bool  # tried in this order; each keeps its own type, 1 stays an int
Scope = Literal["rank", "node", "job"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
Nodes = Literal["any", "one", "several"]
COUNTERS = "counters"  # the subject of what supervisors read round every validation
RESERVED_SUBJECTS = frozenset({"world_formation", "worker_end"})  # rows of the suite itself, of no acceptance file

BY_SIZE = ("at_least", "at_most", "spread_at_most")  # keys that hold one number, or one for each size

Level = Literal["health", "quick", "full", "soak"]  # the part of the suite that runs; a profile says which levels it has
LEVELS: tuple[Level, ...] = get_args(Level)
DEFAULT_LEVEL = "full"
SOAK = "soak"  # the level, and the subject that it alone runs
LOCALISE_ASKED = "localise.asked"  # a parameter
RDMA_DEVICES = "infiniband.devices"  # a parameter
MODEL = "train.llama.model"  # the parameter: which model-*.yaml lies on the profile
OWN_MODEL = "own"  # its value where the profile itself states the shape
MOST_GPUS = 99_999  # of a job; a profile that is read without one is that of the largest
SOAK_DURATION = "soak.duration_s"  # the parameter: for how long

ChangeKind = Literal["dropped", "loosened", "tightened", "added", "changed", "not applicable"]
_WITHOUT_UNIT = {"", "text", "bool"}  # "NVLS text" says less than "NVLS"
_MOST_TEXT = 200
_MOST_BRIEF = 20
_KINDS: Mapping[type, str] = {bool: "bool", int: "number", float: "number", str: "text"}  # a bool is an int too


@dataclass(frozen=True)
class Peers:
    """A unit is compared with the median of the others (all of one job, same GPU model).

    `deficit_at_most` and `sigma` are fractions: 0.03 is 3 %. `sigma` is the healthy spread of one unit, blocks included.
    """

    deficit_at_most: float
    sigma: float


@dataclass(frozen=True)
class ByNodes:
    """A number by the number of nodes, in ranges that do not overlap: `{"2": 408, "3-8": 304, "9-9999": None}`.

    None declares that nothing is asked there. A number of nodes that is in no range has no limit.
    """

    nodes: Mapping[str, float | None]

    def at(self, num_nodes: int) -> float | None:
        return next((bound for text, bound in self.nodes.items() if num_nodes in range_of_nodes(text)), None)


@dataclass(frozen=True)
class ByGpus:
    """A value by the number of GPUs in the job: each holds from its number up to the next. `{1: 2, 4: 8}`: 2 for 1 to 3 GPUs."""

    from_gpus: Mapping[int, Value]

    def at(self, num_gpus: int) -> Value:
        return self.from_gpus[max(first for first in self.from_gpus if first <= num_gpus)]


def in_job(given: Mapping[str, Any], num_gpus: int) -> dict[str, Any]:
    """Return each value as it is in a job of this size."""
    return {name: value.at(num_gpus) if isinstance(value, ByGpus) else value for name, value in given.items()}


def range_of_nodes(text: str) -> range:
    """Return the numbers of nodes that a key of ByNodes stands for: `2`, `3-8`."""
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


Bound = float | Mapping[int, float] | ByNodes  # one number, or one by GPUs per node or by the number of nodes


@dataclass(frozen=True)
class Limit:
    """A bound on one metric: what is enough, in which unit, for whom, and why anyone should believe it.

    Several bounds may stand in one limit; each is judged. At least one is set.
    """

    metric: str
    unit: str
    scope: Scope
    source: str
    file: str  # base name of the YAML file that this entry comes from
    at_least: Bound | None = None
    at_most: Bound | None = None
    equals: Value | tuple[Value, ...] | None = None  # several: each of them is allowed
    uniform: bool = False
    peers: Peers | None = None
    world: tuple[int, ...] | None = None  # GPUs per node it applies to; None: all
    nodes: Nodes = "any"
    min_ranks: int = 1  # minimum world size that this limit applies to; same as the marker of a validation
    min_ranks_per_node: int = 1
    floor: float = 0.0  # physically possible: a reading below it is a measuring error
    ceiling: float | None = None  # physically possible: a reading above it is a measuring error
    spread_at_most: float | Mapping[int, float] | None = None  # percent; above it a figure is unstable and is not judged
    remedy: str = ""  # the action after a miss, if the limit names one

    @property
    def subject(self) -> str:
        return subject_of_metric(self.metric)

    def applies(self, gpus_per_node: int, num_nodes: int) -> bool:
        """Return whether this limit applies to a job of this shape, with nodes of equal size."""
        if self.nodes != "any" and (self.nodes == "one") != (num_nodes == 1):
            return False
        if gpus_per_node < self.min_ranks_per_node or gpus_per_node * num_nodes < self.min_ranks:
            return False
        return self.covers(gpus_per_node, num_nodes)

    def covers(self, gpus_per_node: int, num_nodes: int) -> bool:
        """Return whether every bound by size lists this size. A size that is not listed has no limit; nothing is interpolated."""
        if self.world is not None and gpus_per_node not in self.world:
            return False
        return all(gpus_per_node in bound for bound in self._by_size()) and all(
            bound.at(num_nodes) is not None for bound in self._by_nodes()
        )

    def listed_sizes(self) -> tuple[int, ...]:
        """The GPUs per node that this limit names anywhere; empty: it holds for all."""
        return tuple(sorted({*(self.world or ()), *(size for bound in self._by_size() for size in bound)}))

    def listed_nodes(self) -> tuple[str, ...]:
        """The numbers of nodes that this limit names anywhere, `2`, `3-8`; empty: its bounds hold for all."""
        return tuple(dict.fromkeys(text for bound in self._by_nodes() for text in bound.nodes))

    def asks_nothing(self, num_nodes: int) -> bool:
        """Return whether this limit declares that it asks for nothing on so many nodes."""
        listed = [text for text in self.listed_nodes() if num_nodes in range_of_nodes(text)]
        return bool(listed) and all(bound.at(num_nodes) is None for bound in self._by_nodes())

    def _by_size(self) -> list[Mapping[int, float]]:
        return [bound for name in BY_SIZE if isinstance(bound := getattr(self, name), Mapping)]

    def _by_nodes(self) -> list[ByNodes]:
        return [bound for bound in (self.at_least, self.at_most) if isinstance(bound, ByNodes)]


def subject_of_metric(metric: str) -> str:
    """`nccl` of `nccl.all_reduce.busbw`: the metric may be checked in acceptance/test_nccl.py alone."""
    return metric.split(".", 1)[0]


def subject_of(nodeid: str) -> str:
    """`nccl` of `acceptance/test_nccl.py::test_large[all_gather]`."""
    return PurePosixPath(nodeid.split("::", 1)[0]).stem.removeprefix("test_")


def validation_of(nodeid: str) -> str:
    """Return `nccl.large` for `acceptance/test_nccl.py::test_large[all_gather]`: the name that a declaration must match."""
    function = nodeid.split("[", 1)[0].rsplit("::", 1)[-1]
    return f"{subject_of(nodeid)}.{function.removeprefix('test_')}"


def source_kind(source: str) -> str:
    """`measured` of `measured 2026-11-20, 8x NVIDIA H200: ...`; a file can say measured, datasheet, derived, published or policy."""
    return source.partition(" ")[0].rstrip(":") or "unknown"


def is_of_speed(limit: Limit) -> bool:
    return limit.at_least is not None and limit.unit.endswith("/s")


def bound_at(bound: Bound | None, gpus_per_node: int, num_nodes: int) -> float | None:
    """The number that a bound asks for in a job of this shape, or None where it asks for none."""
    if isinstance(bound, ByNodes):
        return bound.at(num_nodes)
    if isinstance(bound, Mapping):
        return bound.get(gpus_per_node)
    return bound


@dataclass(frozen=True)
class Change:
    """One thing that an overlay (`--limits=FILE`) made different from the profile it lies on."""

    kind: ChangeKind
    key: str  # "nccl.all_reduce.busbw at_least", "parameter gemm.size", ...
    old: str
    new: str
    file: str
    sha256: str


@dataclass(frozen=True)
class FarBound:
    """A bound that overlays moved so far from the machine's own profile that it may be a slip of the unit."""

    metric: str
    kind: Literal["loosened", "tightened"]
    ratio: float  # to the bound of the machine's own profile


@dataclass(frozen=True)
class FileDigest:
    file: str
    sha256: str


@dataclass(frozen=True)
class Profile:
    """The limits for one kind of hardware, everything inherited and all overlays merged."""

    name: str
    device_name: str | None  # the GPU's name in NVML; None: the profile of a machine without GPUs, or no one GPU (base)
    requires: Annotated[frozenset[str], PlainSerializer(sorted, list[str])]  # in one order wherever it is written
    limits: Mapping[str, Limit]
    parameters: Mapping[str, Value]
    deadline_s: float  # for one validation, unless its `deadline` marker says otherwise
    expected_s: Mapping[str, float] = field(default_factory=dict)  # by subject: one validation of it, at the chosen level
    not_applicable: Mapping[str, str] = field(default_factory=dict)  # glob over metrics and `subject.validation` -> reason
    changes: tuple[Change, ...] = ()
    far_bounds: tuple[FarBound, ...] = ()  # by all overlays together
    files: tuple[FileDigest, ...] = ()
    digest: str = ""  # sha256 over all files read, in order

    def is_for(self, device_name: str | None, nvlink_to: str) -> bool:
        """Say whether this profile is for a GPU of this name whose NVLinks lead there; empty: NVML does not tell."""
        return self.device_name == device_name and (not nvlink_to or self.nvlink_to in ("", nvlink_to))

    @property
    def device(self) -> str:
        """Return the GPU that this profile is for: `NVIDIA H200 on a board without NVLink switches`; empty without one."""
        return f"{self.device_name or ''}{' on a board without NVLink switches' if self.nvlink_to else ''}"

    def find_other_node(self, nodes: Sequence[tuple[str, int]]) -> str | None:
        """Return which overlay is not for which of these nodes, or None. Of each node: its host, and the GPUs that it has."""
        for file, wanted in self.gpus_per_node.items():
            for host, seen in nodes:
                if seen != wanted:
                    return f"{file}: match.gpus_per_node: this overlay is for nodes with {plural(wanted, 'GPU')}, and {host} has {seen}"
        return None

    @property
    def digests(self) -> dict[str, str]:
        """The sha256 of each file, by its name."""
        return {file.file: file.sha256 for file in self.files}

    nvlink_to: str = ""  # gpu: the profile is for boards whose NVLinks lead to other GPUs alone; empty: for all others
    fabric: str = ""  # the network between nodes that is judged; empty: none was chosen
    levels: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # by level: subject -> seconds of one validation
    level: str = DEFAULT_LEVEL  # the chosen one
    gpus_per_node: Annotated[Mapping[str, int], Field(exclude_if=not_)] = field(default_factory=dict)  # by overlay: of the nodes it is for
    num_gpus: Annotated[int, Field(exclude_if=not_)] = 0  # of the job, for which parameters were chosen; 0 in older records
    by_gpus: Annotated[Mapping[str, ByGpus], Field(exclude_if=not_)] = field(default_factory=dict)  # what `parameters` was chosen from
    # In the order of a run: phase -> subjects and validations. Not written where there are none, as in older records.
    phases: Annotated[Mapping[str, tuple[str, ...]], Field(exclude_if=not_)] = field(default_factory=dict)


def choices(profile: Profile) -> list[str]:
    """Return `lora.num_parts = 4 (from 1: 2; from 2: 4; from 4: 8)` for each parameter that the number of GPUs in the job decides."""
    return [f"{name} = {_brief(profile.parameters[name])} ({by_gpus_text(value)})" for name, value in sorted(profile.by_gpus.items())]


def by_gpus_text(value: ByGpus) -> str:
    """Return `from 1: 2; from 4: 8`, by the number of GPUs."""
    return "; ".join(f"from {first}: {_brief(one)}" for first, one in sorted(value.from_gpus.items()))


def _brief(value: Value) -> str:
    text = show(value)
    return text if len(text) <= _MOST_BRIEF else f"{text[:_MOST_BRIEF]}..."


def allowed_values(equals: Value | tuple[Value, ...]) -> tuple[Value, ...]:
    """Each value that `equals` allows."""
    return equals if isinstance(equals, tuple) else (equals,)


def matching_reason(name: str, reasons: Mapping[str, str]) -> str | None:
    """The reason of the first glob that matches, or None. Waivers name metrics; `not_applicable` also names `subject.validation`."""
    return next((reason for glob, reason in reasons.items() if fnmatchcase(name, glob)), None)


def show(value: Value, digits: int = 6) -> str:
    """Up to `digits` significant digits; whole numbers in full; true and false as in YAML; a text in one line."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return f"{value:.{digits}g}"
    text = value if value.isprintable() and value == value.strip() and value else repr(value)
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}..."


def show_whole(value: Value) -> str:
    """As `show`, with every digit of a number of which six would show another one."""
    shown = show(value)
    return str(value) if isinstance(value, float) and float(shown) != value else shown


def first_of(names: Sequence[str], most: int) -> str:
    """`a, b and 3 more`."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def show_apart(*values: Value) -> tuple[str, ...]:
    """All of them as `show` writes them, with as many digits as it takes to tell different ones apart."""
    num_different = len({typed(value) for value in values})
    for digits in (6, 9, 12, 15, 17):
        shown = tuple(show(value, digits) for value in values)
        if len(set(shown)) >= num_different:
            return shown
    return tuple(map(repr, values))


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether a value is a finite int or float, and not a bool."""
    return kind_of(value) == "number" and is_finite(value)


def is_finite(number: Any) -> bool:
    """Return whether a number fits a finite float."""
    try:
        return math.isfinite(number)
    except OverflowError:
        return False


def kind_of(value: object) -> str:
    """`number`, `text` or `bool`."""
    return _KINDS.get(type(value)) or next((kind for known, kind in _KINDS.items() if isinstance(value, known)), "")


def typed(value: Value) -> tuple[str, Value]:
    """A key under which True is not 1, and 1 is 1.0."""
    return kind_of(value), value


def with_unit(shown: str, unit: str) -> str:
    """`262.5 GB/s`; a text or a truth has no unit worth writing."""
    return shown if unit in _WITHOUT_UNIT else f"{shown} {unit}"


def level_text(level: str, parameters: Mapping[str, Value]) -> str:
    """Return the level for people: `quick`; a soak with its time in the largest unit of which it is a whole number: `soak of 4 h`."""
    seconds = parameters.get(SOAK_DURATION)
    if level != SOAK or not isinstance(seconds, int | float):
        return level
    size, unit = next(((size, unit) for size, unit in ((3600, "h"), (60, "min")) if seconds % size == 0), (1, "s"))
    return f"{level} of {seconds / size:g} {unit}"
