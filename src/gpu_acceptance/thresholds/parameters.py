"""The parameters of a profile: type, unit, and the range outside of which a parameter measures nothing or never ends.

A parameter is declared in parameters.yaml alone: files are read by it, and docs/parameters.md lists it. Its value stands in base.yaml.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, GetCoreSchemaHandler, GetPydanticSchema
from pydantic_core import core_schema

from gpu_acceptance.base.strict_yaml import parse
from gpu_acceptance.thresholds.limit import ByGpus, Value

Kind = Literal["whole number", "number", "words", "truth"]

BY_GPUS = "from_gpus"  # the key of a value by the number of GPUs in the job
BY_GPUS_ALLOWED = "a mapping from numbers of GPUs in the job, the first of them 1, to values: each holds up to the next number"
_GLOB = r"[A-Za-z0-9_.*?\[\]!-]+"  # characters of device names and globs; `,`, `=`, `^` and `:` would match none
_WORDS = rf"^{_GLOB}( {_GLOB})*$"
# A parameter that says how much is spoiled, and the one that says on which rank.
DRILLS: Mapping[str, str] = {
    "checkpoint.planted_bytes": "checkpoint.planted_rank",
    "corruption.planted_flip_every": "corruption.planted_flip_rank",
    "memory.planted_words": "memory.planted_rank",
    "nccl_exact.planted_elements": "nccl_exact.planted_rank",
}


@dataclass(frozen=True)
class Parameter:
    """A number has a range, both ends allowed; `step`: it must be a multiple. `why`: what would be wrong outside, in a few words.

    `unit` is empty for a count, a part of something, and what is no number.
    """

    kind: Kind
    unit: str = ""
    least: float = 0
    most: float = 0
    why: str = ""
    step: int = 1

    @property
    def allowed(self) -> str:
        """`a number from 0.01 to 3600 s (why)`."""
        if self.kind == "truth":
            return "true or false"
        if self.kind == "words":
            return f"words with a blank between them: {self.why}"
        multiple = f", a multiple of {self.step}" if self.step > 1 else ""
        unit = f" {self.unit}" if self.unit else ""
        return f"a {self.kind} from {_plain(self.least)} to {_plain(self.most)}{unit}{multiple} ({self.why})"


def _plain(number: float) -> str:
    return f"{number:.15g}"


def _read_parameters() -> Mapping[str, Parameter]:
    table = parse(Path(__file__).with_suffix(".yaml").read_bytes()).data
    shared = {name: Parameter(**entry) for name, entry in table["allowed"].items()}
    return {name: shared[entry] if isinstance(entry, str) else Parameter(**entry) for name, entry in table["parameters"].items()}


PARAMETERS = _read_parameters()


def _type_of(parameter: Parameter) -> Any:
    """Return the type that pydantic checks and an editor shows."""
    if parameter.kind == "truth":
        return Annotated[bool, Field(strict=True, description=parameter.allowed)]
    if parameter.kind == "words":
        return Annotated[str, Field(strict=True, pattern=_WORDS, description=parameter.allowed)]
    kind, step = int if parameter.kind == "whole number" else float, parameter.step if parameter.step > 1 else None
    bounds = Field(strict=True, ge=parameter.least, le=parameter.most, multiple_of=step, description=parameter.allowed)
    return Annotated[kind, bounds]


def one_or_by_gpus(schema: core_schema.CoreSchema) -> core_schema.CoreSchema:
    """Return the schema of a value, or of a mapping by number of GPUs to such values."""
    numbers = core_schema.dict_schema(core_schema.int_schema(ge=1, strict=True), schema, min_length=1, strict=True)
    entry = core_schema.typed_dict_schema({BY_GPUS: core_schema.typed_dict_field(numbers)}, extra_behavior="forbid")
    chosen = core_schema.no_info_after_validator_function(_for_each_job, entry)
    kinds = {"one": schema, BY_GPUS: chosen}
    return core_schema.tagged_union_schema(kinds, lambda value: BY_GPUS if isinstance(value, Mapping) else "one")


def _for_each_job(entry: Mapping[str, Mapping[int, Value]]) -> ByGpus:
    """Return the values by number of GPUs; raise ValueError where a job of 1 GPU has none."""
    if 1 not in entry[BY_GPUS]:
        raise ValueError(f"no value for a job of 1 GPU; it begins at {min(entry[BY_GPUS])}")
    return ByGpus(entry[BY_GPUS])


def _any_of_them(_source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
    types = {name: one_or_by_gpus(handler.generate_schema(_type_of(parameter))) for name, parameter in PARAMETERS.items()}
    fields = {name: core_schema.typed_dict_field(schema, required=False) for name, schema in types.items()}
    return core_schema.typed_dict_schema(fields, extra_behavior="forbid")


ParameterValues = Annotated[dict[str, Value | ByGpus], GetPydanticSchema(_any_of_them)]  # any of them, and no other
