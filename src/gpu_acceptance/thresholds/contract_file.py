"""Files of entries in YAML, and the one that names the lines of a contract."""

from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from gpu_acceptance.base.model import Model
from gpu_acceptance.base.strict_yaml import Key, shown
from gpu_acceptance.base.text import did_you_mean
from gpu_acceptance.thresholds.contract import Contract, ContractLine
from gpu_acceptance.thresholds.file import LimitsError, M, dotted, read_validated
from gpu_acceptance.thresholds.known_metrics import nearest_metric
from gpu_acceptance.thresholds.limit import FileDigest, Limit, Nodes, Profile, show
from gpu_acceptance.thresholds.schema import printable, unique

MOST_LINES = 100  # all of them travel to each rank in one message
MOST_METRICS = 20  # in one line
_BOUNDS = ("at_least", "at_most")

_Words = Annotated[str, Field(min_length=1, max_length=300), AfterValidator(printable)]
_Number = Annotated[str, Field(pattern=r"^[!-~]([ -~]{0,30}[!-~])?$")]
_Glob = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*(\.[a-z0-9_*?]+){1,4}$", max_length=120)]
_A_LINE = f"1 to {MOST_LINES} lines of the contract by their numbers, each to a mapping of text and metrics"


def read_entries(path: Path, top: type[M], entry: type[BaseModel], *, bad_key: str, an_entry: str) -> tuple[FileDigest, M]:
    """A YAML file of entries as `top` has it. LimitsError has one line for each problem: file, key, line, what was seen, what is allowed.

    `bad_key`: what to say of the name of an entry that cannot be one. `an_entry`: what an entry is.
    """

    def what(detail: Any, key: tuple[Key, ...]) -> str:
        known = (entry if len(key) > 2 else top).model_fields
        if detail["type"] == "extra_forbidden":
            return f"unknown key; known: {', '.join(known)}{did_you_mean(key[-1], known)}"
        if detail["type"] == "value_error":
            return str(detail["ctx"]["error"])
        if detail["loc"][-1] == "[key]":
            return bad_key
        allowed = an_entry if len(key) == 2 else str(known[str(key[2 if len(key) > 2 else 0])].description)
        if detail["type"] == "missing":
            return f"is missing; needed: {allowed}"
        return f"{shown(detail['input'])} is not allowed; allowed: {allowed}"

    return read_validated(path, top, what)


class LineEntry(Model):
    """One line of the contract."""

    text: _Words = Field(description="what the contract says, at most 300 characters on one line")
    metrics: Annotated[list[_Glob], Field(min_length=1, max_length=MOST_METRICS), AfterValidator(unique)] | None = Field(
        None, description=f"a list of 1 to {MOST_METRICS} metrics or globs of them, as in nccl.all_reduce.busbw or 'gpu_health.*'"
    )
    nodes: Nodes = Field("any", description="any, one or several: of how many nodes a run must be that can answer it")
    at_least: float | None = Field(None, description="a finite number, which each figure must reach beside its limit")
    at_most: float | None = Field(None, description="a finite number, which no figure may exceed beside its limit")
    unit: _Words | None = Field(None, description="the unit of at_least and at_most, that of the metrics: as in GB/s")
    not_tested: _Words | None = Field(None, description="in place of metrics: why no run need test it, at most 300 characters on one line")

    @model_validator(mode="after")
    def _asks_for_something(self) -> Self:
        if (self.metrics is None) == (self.not_tested is None):
            raise ValueError("wants either metrics, or not_tested with a reason")
        bounds = [name for name in _BOUNDS if getattr(self, name) is not None]
        if bounds and self.metrics is None:
            raise ValueError(f"{bounds[0]} is only allowed together with metrics")
        if bool(bounds) != (self.unit is not None):
            raise ValueError(f"{bounds[0]} needs a unit" if bounds else "`unit` is only allowed together with at_least or at_most")
        if self.at_least is not None and self.at_most is not None and self.at_least > self.at_most:
            raise ValueError("at_least is above at_most")
        return self


class ContractContent(Model):
    """A contract's file."""

    model_config = ConfigDict(title="gpu-acceptance contract file")

    title: _Words | None = Field(None, description="which contract it is, at most 300 characters on one line")
    lines: Annotated[dict[_Number, LineEntry], Field(min_length=1, max_length=MOST_LINES)] = Field(description=f"a mapping of {_A_LINE}")


def read_contract(path: Path) -> Contract:
    """The file at `path`. LimitsError says file, key, line, what was seen, and what is allowed."""
    bad_key = "not the number of a line; allowed: 1 to 32 printable ASCII characters, in quotes where it looks like a whole number"
    an_entry = "a mapping of text, metrics and what else a line says"
    digest, content = read_entries(path, ContractContent, LineEntry, bad_key=bad_key, an_entry=an_entry)
    given = {number: entry.model_dump(exclude_none=True) for number, entry in content.lines.items()}
    lines = [ContractLine(number=number, **keys | {"metrics": tuple(keys.get("metrics", ()))}) for number, keys in given.items()]
    return Contract(file=digest.file, sha256=digest.sha256, title=content.title or "", lines=tuple(lines))


def digest_of(contract: Contract) -> FileDigest:
    return FileDigest(contract.file, contract.sha256)


def json_schema() -> dict[str, Any]:
    """The format as a JSON schema, for editors."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **ContractContent.model_json_schema()}


def refuse_unanswerable(contract: Contract, profile: Profile) -> None:
    """LimitsError over metrics and bounds that nothing in this profile could ever answer."""
    problems = [problem for line in contract.lines for problem in _misfits(line, profile)]
    if problems:
        raise LimitsError(f"{contract.file}: {problem}" for problem in problems)


def _misfits(line: ContractLine, profile: Profile) -> Iterator[str]:
    for glob in line.metrics:
        limits = [limit for metric, limit in sorted(profile.limits.items()) if fnmatchcase(metric, glob)]
        if not limits:
            hint = nearest_metric(glob, profile.limits.keys())
            yield f"{dotted(('lines', line.number, 'metrics'))}: {glob} matches no limit of profile {profile.name}{hint}"
        for limit in limits:
            for bound in _BOUNDS:
                if problem := _unfit(line, bound, limit):
                    yield f"{dotted(('lines', line.number, bound))}: {problem}"


def _unfit(line: ContractLine, bound: str, limit: Limit) -> str:
    asked: float | None = getattr(line, bound)
    if asked is None:
        return ""
    if getattr(limit, bound) is None:
        return f"the limit of {limit.metric} in {limit.file} has no {bound}, and a figure is compared where its limit is"
    if line.unit != limit.unit:
        return f"in {shown(line.unit)}, and {limit.metric} is in {limit.unit}"
    if bound == "at_least" and limit.ceiling is not None and asked > limit.ceiling:
        return f"{show(asked)} {limit.unit} is above what is physically possible of {limit.metric}, {show(limit.ceiling)}"
    return ""
