"""Which values a field of our records may only have: words of ours there, whatever a machine is named."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from pydantic import TypeAdapter

from gpu_acceptance.record.job import RankFacts, RankIdentity
from gpu_acceptance.record.row import RankRecord
from gpu_acceptance.record.run_record import RunPlan, RunRecord


@cache
def closed_values() -> Mapping[str, frozenset[str]]:
    """By the name of the field, over all records of a run: the texts that it may be."""
    schema = TypeAdapter(RunRecord | RankIdentity | RankRecord | RankFacts | RunPlan).json_schema()
    found = defaultdict[str, set[str]](set)
    for model in schema["$defs"].values():
        for name, field in model.get("properties", {}).items():
            found[name].update(_choices(field, schema["$defs"]))
    return {name: frozenset(values) for name, values in found.items() if values}


def _choices(field: Mapping[str, Any], definitions: Mapping[str, Any]) -> Iterator[str]:
    if "$ref" in field:
        yield from _choices(definitions[field["$ref"].rpartition("/")[2]], definitions)
    for one in field.get("anyOf", ()):
        yield from _choices(one, definitions)
    yield from (value for value in (*field.get("enum", ()), field.get("const")) if isinstance(value, str))
