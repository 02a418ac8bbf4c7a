"""The format of a limits file: its keys, their values, and the rules inside one limit.

Error messages and thresholds/schema.json show the texts of `description`.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, GetPydanticSchema, Tag, model_validator

from gpu_acceptance.base.strict_yaml import shown
from gpu_acceptance.thresholds.families import CAN_BE_WITHDRAWN, FAMILY, METRIC, NAMES, READING, WITHDRAWN, each_a_metric
from gpu_acceptance.thresholds.limit import (
    BY_SIZE,
    COUNTERS,
    RESERVED_SUBJECTS,
    Bound,
    ByGpus,
    ByNodes,
    Level,
    Limit,
    Nodes,
    Peers,
    Scope,
    kind_of,
    range_of_nodes,
    subject_of_metric,
)
from gpu_acceptance.thresholds.parameters import ParameterValues, one_or_by_gpus

_NODES = r"^[1-9][0-9]{0,3}(-[1-9][0-9]{0,3})?$"
_SUBJECT = r"^[a-z][a-z0-9_]*$"
_FIGURES = r"^[a-z0-9_.,{}*]{1,300}$"
_PLACED = r"^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)?$"
_GLOB = r"^[a-z][a-z0-9_]*\.[^ ]+$"
PROFILE = r"^[a-z0-9][a-z0-9-]*$"
_EXPONENT = re.compile(r"([-+]?[0-9]+)(?:\.)?[eE]([-+]?)([0-9]+)")
_SOURCE = r"^(measured|datasheet|derived|published|policy)[: ] *[^ :].*$"


def printable(text: str) -> str:
    """The text itself; ValueError where it holds what is no plain text on one line."""
    if not text.isprintable():
        raise ValueError(f"{shown(text)} holds a line break, a control character or an invisible one; write plain text on one line")
    return text


def number_hint(value: object) -> str:
    """Return the correct form of `1e3`, which YAML takes for a text; empty for anything else."""
    match = _EXPONENT.fullmatch(value[:40]) if isinstance(value, str) else None
    return f"{match[0]} is text in YAML, write {match[1]}.0e{match[2] or '+'}{match[3]}" if match else ""


def _no_number_in_disguise(text: str) -> str:
    if hint := number_hint(text):
        raise ValueError(hint)
    return text


def _not_reserved(name: str) -> str:
    if subject_of_metric(name) in RESERVED_SUBJECTS:
        raise ValueError(f"{shown(name)} is not allowed; {' and '.join(sorted(RESERVED_SUBJECTS))} are rows of the suite itself")
    return name


def _not_counters(name: str) -> str:
    if name == COUNTERS:
        raise ValueError(f"{shown(name)} is not allowed; counters are read at each level")
    return name


def unique(items: list[Any]) -> list[Any]:
    """The list itself; ValueError where something is in it twice."""
    if len(set(items)) < len(items):
        raise ValueError(f"{shown(items)} names one of them twice")
    return items


def _each_in_one(phases: dict[str, list[str]]) -> dict[str, list[str]]:
    unique([name for listed in phases.values() for name in listed])
    return phases


def _kind_of_bound(value: object) -> str:
    if isinstance(value, ByNodesEntry) or (isinstance(value, Mapping) and "nodes" in value):
        return "nodes"
    return "sizes" if isinstance(value, Mapping) else "number"


def _one_or_several(value: object) -> str:
    return "several" if isinstance(value, list) else "one"


def _range(key: object) -> object:
    """Return a key of ByNodesEntry as text; ValueError over a range that goes backwards."""
    text = str(key) if isinstance(key, int) and not isinstance(key, bool) else key
    if isinstance(text, str) and re.fullmatch(_NODES, text) and not range_of_nodes(text):
        raise ValueError(f"{shown(text)} goes backwards; write the smaller number first")
    return text


def _number_or_none(value: object) -> object:
    return None if value == WITHDRAWN else value


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class ByNodesEntry(_Model):
    """One number for each range of the number of nodes."""

    nodes: dict[
        Annotated[str, BeforeValidator(_range), Field(pattern=_NODES)], Annotated[float | None, BeforeValidator(_number_or_none)]
    ] = Field(min_length=1, description="a mapping from numbers of nodes, 2 or 3-8, to finite numbers, or none where nothing is asked")

    @model_validator(mode="after")
    def _no_number_twice(self) -> Self:
        ordered = sorted(self.nodes, key=lambda text: range_of_nodes(text)[0])
        for text, other in pairwise(ordered):
            if (first := range_of_nodes(other)[0]) in range_of_nodes(text):
                raise ValueError(f"{first} nodes are in two ranges, {text} and {other}")
        return self


Text = Annotated[str, Field(min_length=1), AfterValidator(printable)]
Size = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(gt=0, lt=1)]
Positive = Annotated[float, Field(gt=0)]
Seconds = Annotated[float | ByGpus, GetPydanticSchema(lambda _source, handler: one_or_by_gpus(handler.generate_schema(Positive)))]
BySize = Annotated[dict[Size, float], Field(min_length=1)]
BoundEntry = Annotated[
    Annotated[float, Tag("number")] | Annotated[BySize, Tag("sizes")] | Annotated[ByNodesEntry, Tag("nodes")],
    Discriminator(_kind_of_bound),
]
Spread = Annotated[
    Annotated[Positive, Tag("number")] | Annotated[Annotated[dict[Size, Positive], Field(min_length=1)], Tag("sizes")],
    Discriminator(_kind_of_bound),
]
SettingValue = bool | int | float | Annotated[Text, AfterValidator(_no_number_in_disguise)]
Allowed = Annotated[
    Annotated[SettingValue, Tag("one")] | Annotated[list[SettingValue], Field(min_length=2), AfterValidator(unique), Tag("several")],
    Discriminator(_one_or_several),
]
Metric = Annotated[str, Field(pattern=METRIC), AfterValidator(_not_reserved)]
Subject = Annotated[str, Field(pattern=_SUBJECT), AfterValidator(_not_reserved)]
Phase = Annotated[str, Field(pattern=_SUBJECT)]

_BOUNDS = ("at_least", "at_most", "equals", "uniform", "peers")
_BOUND = "a finite number, or one by GPUs per node as in {8: 449}, or by the number of nodes as in {nodes: {2: 408, 3-8: 304}}"
_FRACTION = "a fraction between 0 and 1; 0.03 is 3 %"


class PeersEntry(_Model):
    """The allowed deficit of a unit to the median of its peers."""

    deficit_at_most: Fraction = Field(description=_FRACTION)
    sigma: Fraction = Field(description=_FRACTION)


class FabricMatch(_Model):
    """The network between nodes that a fabric is for; a key that is left out may have any value."""

    link: Literal["IB", "RoCE", "EFA", "gVNIC", "NVLink", "none"] = Field(description="IB, RoCE, EFA, gVNIC, NVLink or none")
    ports: Size | None = Field(None, description="the ports of a node that are nearest to a GPU, a whole number from 1")
    gbit_per_s: Positive | None = Field(None, description="the nominal rate of a port in Gbit/s, above 0")
    gpus: Size | None = Field(None, description="the GPUs of a node, a whole number from 1")
    driver: Text | None = Field(None, description="the driver of RoCE ports, by which their counters differ: mlx5, bnxt_re, irdma")


class Match(_Model):
    """The hardware that a profile, a fabric or an overlay is for."""

    device_name: Text | None = Field(None, description="the GPU's name exactly as NVML gives it")
    nvlink: Literal["gpu"] | None = Field(
        None, description="gpu: boards on which every NVLink of the GPU leads to another GPU, and to no switch; without the key: all others"
    )
    fabric: FabricMatch | None = Field(None, description="a mapping of link, ports, gbit_per_s, gpus and driver")
    gpus_per_node: Size | None = Field(None, description="the GPUs that each node has, a whole number from 1; in overlays alone")
    profiles: Annotated[list[Annotated[str, Field(pattern=PROFILE)]], Field(min_length=1), AfterValidator(unique)] | None = Field(
        None, description="a list of the profiles beside which this fabric is judged, as in [h100-sxm, h200-sxm]"
    )

    @model_validator(mode="after")
    def _names_something(self) -> Self:
        if self.device_name and self.fabric:
            raise ValueError("device_name and fabric: a file is for a GPU or for a network, and not both")
        if not (self.device_name or self.fabric or self.gpus_per_node):
            raise ValueError("needs device_name, or for a network fabric, or for an overlay gpus_per_node")
        if self.nvlink and self.device_name is None:
            raise ValueError("nvlink stands beside device_name alone")
        return self


class Entry(_Model):
    """One limit. At least one of at_least, at_most, equals, uniform, peers."""

    at_least: BoundEntry | None = Field(None, description=_BOUND)
    at_most: BoundEntry | None = Field(None, description=_BOUND)
    equals: Allowed | None = Field(None, description="a finite number, a text, true or false, or a list of those that are allowed")
    uniform: Literal[True] | None = Field(None, description="true, or leave the key out")
    peers: PeersEntry | None = Field(None, description="a mapping of deficit_at_most and sigma")
    unit: Text = Field(description="the unit that the test passes, as in GB/s; 'text' or 'bool' where the figure is none")
    scope: Scope = Field(description="whose figure it is: rank, node or job")
    world: Annotated[list[Size], Field(min_length=1), AfterValidator(unique)] | None = Field(
        None, description="the GPUs per node it applies to, a list of whole numbers from 1; without the key: all"
    )
    nodes: Nodes = Field("any", description="any, one or several")
    min_ranks: Size = Field(1, description="minimum world size that this limit applies to (integer >= 1)")
    min_ranks_per_node: Size = Field(1, description="minimum number of ranks on the largest node (integer >= 1)")
    floor: float = Field(0.0, description="the finite number below which a reading is a measuring error; without the key: 0")
    ceiling: float | None = Field(None, description="the finite number above which a reading is a measuring error")
    spread_at_most: Spread | None = Field(
        None, description="percent, above 0, or a mapping from GPUs per node to percent; a figure that spreads more is not judged"
    )
    source: Annotated[Text, Field(min_length=20, pattern=_SOURCE)] = Field(
        description="a sentence of 20 characters or more that begins with measured, datasheet, derived, published or policy and a colon"
    )

    remedy: Annotated[Text, Field(min_length=10)] | Literal[""] = Field("", description="what to do about a miss, in a sentence")

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        if problems := list(disagreements(self)):
            raise ValueError("; ".join(problems))
        return self

    def limit(self, metric: str, file: str) -> Limit:
        """The limit this entry states for `metric`."""
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        return Limit(
            **fields
            | {
                "metric": metric,
                "file": file,
                "at_least": _bound(self.at_least),
                "at_most": _bound(self.at_most),
                "equals": tuple(self.equals) if isinstance(self.equals, list) else self.equals,
                "uniform": bool(self.uniform),
                "peers": self.peers and Peers(self.peers.deficit_at_most, self.peers.sigma),
                "world": self.world and tuple(self.world),
            }
        )


def _bound(entry: float | Mapping[int, float] | ByNodesEntry | None) -> Bound | None:
    return ByNodes(entry.nodes) if isinstance(entry, ByNodesEntry) else entry


def disagreements(entry: Entry, wrong: Collection[str] = ()) -> Iterator[str]:
    """Yield contradictions between keys. `wrong`: keys that this entry lacks because each is wrong by itself."""
    if set(wrong) <= Entry.model_fields.keys() - {*_BOUNDS, "scope"}:  # an unknown key may be a bound, misspelt
        yield from _bound_problems(entry)
    if not {"equals", "unit"} & set(wrong):
        yield from _unit_problems(entry)
    yield from _order_problems(entry)
    yield from _size_problems(entry)


def _bound_problems(entry: Entry) -> Iterator[str]:
    if all(getattr(entry, name) is None for name in _BOUNDS):
        yield f"no bound; one of {', '.join(_BOUNDS)} is needed"
    if entry.scope == "job" and (entry.peers or entry.uniform):
        yield "peers and uniform compare members, and a job is only one; scope must be rank or node"


def _unit_problems(entry: Entry) -> Iterator[str]:
    values = entry.equals if isinstance(entry.equals, list) else [entry.equals] if entry.equals is not None else []
    for value, kind in ((value, kind_of(value)) for value in values):
        if entry.unit not in ("text", "bool") and kind != "number":
            yield f"equals is {shown(value)}, so the unit must be {kind}, not {shown(entry.unit)}"
        elif entry.unit in ("text", "bool") and kind != entry.unit:
            yield f"equals is {shown(value)}, and the unit {entry.unit} wants {'a text' if entry.unit == 'text' else 'true or false'}"
    if entry.unit not in ("text", "bool"):
        return
    for name in ("at_least", "at_most", "peers", "floor", "ceiling", "spread_at_most"):
        if name in entry.model_fields_set:
            yield f"{name} needs a number, and the unit is {entry.unit}; {entry.unit} takes equals or uniform"


def _order_problems(entry: Entry) -> Iterator[str]:
    low, high = _by_size(entry.at_least), _by_size(entry.at_most)
    for name, bounds in (("at_least", low), ("at_most", high)):
        for size, number in bounds.items():
            yield from _impossible(f"{name}{_at(size)} is {number:.10g}", number, entry)
    for value in entry.equals if isinstance(entry.equals, list) else [entry.equals]:
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield from _impossible(f"equals is {value:.10g}", value, entry)
    yield from _impossible(f"floor is {entry.floor:.10g}", entry.floor, entry)
    for size in low | high:
        least, most = low.get(size, low.get("")), high.get(size, high.get(""))
        if least is not None and most is not None and least > most:
            yield f"at_least{_at(size)} is {least:.10g}, above at_most {most:.10g}"


def _impossible(bound: str, value: float, entry: Entry) -> Iterator[str]:
    if entry.ceiling is not None and value > entry.ceiling:
        meant = f"is it in {entry.unit}? If it is meant, give a higher ceiling beside it"
        yield f"{bound}, above the ceiling {entry.ceiling:.10g}, the most that is physically possible; {meant}"
    if value < entry.floor:
        named = "floor" in entry.model_fields_set
        yield f"{bound}, below the floor {entry.floor:.10g}" if named else f"{bound}, below 0; where that is possible, give a floor"


def _size_problems(entry: Entry) -> Iterator[str]:
    """Yield sizes that only one of two keys names: they would never be judged."""
    named = {name: set(bound) for name in BY_SIZE if isinstance(bound := getattr(entry, name), dict)}
    for (name, sizes), (other, others) in pairwise(named.items()):
        if sizes != others:
            yield f"{name} names the sizes {_sizes(sizes)}, {other} {_sizes(others)}; they must be the same"
    for name, sizes in named.items():
        if entry.world is not None and sizes != set(entry.world):
            yield f"{name} names the sizes {_sizes(sizes)}, world {_sizes(entry.world)}; they must be the same, or leave world out"
    smallest = max(entry.min_ranks_per_node, entry.min_ranks if entry.nodes == "one" else 1)
    for name, sizes in (named | ({"world": set(entry.world)} if entry.world else {})).items():
        if too_small := [size for size in sizes if size < smallest]:
            yield f"{name} names the sizes {_sizes(too_small)}, and it applies to no node of less than {smallest} ranks"


def _by_size(bound: float | Mapping[int, float] | ByNodesEntry | None) -> dict[str, float]:
    """A bound as a mapping by the name of a size; "" stands for all sizes that it does not name."""
    if bound is None:
        return {}
    if isinstance(bound, ByNodesEntry):
        return {f"{text} nodes": number for text, number in bound.nodes.items() if number is not None}
    return {str(size): number for size, number in bound.items()} if isinstance(bound, Mapping) else {"": bound}


def _at(size: str) -> str:
    return f" at {size}" if size else ""


def _sizes(sizes: Iterable[int]) -> str:
    return shown(sorted(sizes))


class Content(_Model):
    """A profile or an overlay. Only overlays have a `reason`; only profiles have `extends`."""

    model_config = ConfigDict(title="gpu-acceptance limits file")

    extends: Annotated[str, Field(pattern=PROFILE)] | None = Field(None, description="the name of one parent profile, as in hopper-sxm")
    match: Match | None = Field(None, description="a mapping of device_name and nvlink; of a fabric: of fabric and profiles")
    reason: Text | None = Field(None, description="a text on one line: why this overlay exists")
    requires: Annotated[list[Subject], AfterValidator(unique)] = Field([], description="a list of subjects, as in [gemm, hbm]")
    figures: dict[Annotated[str, Field(pattern=_FIGURES), AfterValidator(each_a_metric)], Text] = Field(
        {}, description="a mapping from figures without a limit to their units; a name may hold {a,b} and *"
    )
    limits: dict[Metric, Entry] = Field({}, description="a mapping from metrics to limits")
    parameters: ParameterValues = Field({}, description="a mapping from parameters to values")
    deadline_s: Positive | None = Field(None, description="seconds, above 0")
    levels: dict[Level, dict[Annotated[Subject, AfterValidator(_not_counters)], Seconds]] = Field(
        {},
        description="a mapping from levels (health, quick, full, soak) to mappings from subjects to seconds, above 0, or to from_gpus",
    )
    phases: Annotated[dict[Phase, list[Annotated[str, Field(pattern=_PLACED)]]], AfterValidator(_each_in_one)] = Field(
        {}, description="a mapping from phases, in the order of a run, to lists of subjects and validations, as in [hbm, nccl.physics]"
    )
    not_applicable: dict[Annotated[str, Field(pattern=_GLOB), AfterValidator(printable)], Text] = Field(
        {}, description="a mapping from globs to a reason, a text on one line"
    )


def json_schema() -> dict[str, Any]:
    """Return the format of a file as a JSON schema, for editors. Only loading knows what must agree between keys.

    An entry is described as it is written: a family of metrics may have one value for each name in its braces.
    """
    schema = Content.model_json_schema()
    definitions = schema["$defs"]
    entry = definitions["Entry"]
    entry["properties"][READING] = {"type": ["number", "string"], "description": "what {reading} in the source stands for"}
    entry["required"] = ["source"]
    schema["properties"]["limits"]["patternProperties"] = {FAMILY: {"$ref": "#/$defs/Entry"}}
    for properties in (definitions["PeersEntry"]["properties"], entry["properties"]):
        for name in [name for name in properties if name != "peers"]:
            definitions[name] = properties[name]
            value = {"$ref": f"#/$defs/{name}"}
            by_name = {"type": "object", "minProperties": 1, "propertyNames": {"pattern": NAMES}, "additionalProperties": value}
            properties[name] = {"anyOf": [value, by_name]}
    by_nodes = definitions["ByNodesEntry"]["properties"]["nodes"]
    by_nodes["additionalProperties"] = {"anyOf": [{"type": "number"}, {"const": WITHDRAWN}]}
    for name in CAN_BE_WITHDRAWN:
        properties[name] = {"anyOf": [properties[name], {"const": WITHDRAWN}]}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
