"""`results.json` of a run folder. Whatever is read goes through validation."""

from pathlib import Path

from pydantic import BaseModel, ValidationError

from gpu_acceptance.base.model import encode, first_problem
from gpu_acceptance.base.process import gc_paused
from gpu_acceptance.base.text import one_line
from gpu_acceptance.folder.disk import RecordError, read_regular, write_atomically
from gpu_acceptance.record.run_record import SCHEMA_VERSION, RunRecord
from gpu_acceptance.verdict.run_record import conclude_again, find_concluded_otherwise

RESULTS = "results.json"


class _Written(BaseModel):
    gpu_acceptance_version: str


class _OtherSchema(BaseModel):
    """What a record of any schema says of itself."""

    schema_version: int
    plan: _Written | None = None
    header: _Written | None = None  # schema 1


def write_results(run_dir: Path, record: RunRecord) -> Path:
    """Write `results.json` of this run folder."""
    path = run_dir / RESULTS
    write_atomically(path, results_content(record))
    return path


def results_content(record: RunRecord) -> bytes:
    """What `results.json` of this record holds."""
    return f"{encode(record)}\n".encode()


def read_results(run_dir_or_file: Path) -> RunRecord:
    """The record of a run, validated. RecordError names the file and what is wrong with it."""
    path = run_dir_or_file / RESULTS if run_dir_or_file.is_dir() else run_dir_or_file
    data = read_regular(path)
    try:
        with gc_paused():
            record = RunRecord.model_validate_json(data)
    except ValidationError as error:
        raise RecordError(f"{path}: {_of_other_version(data) or first_problem(error)}") from None
    if "schema_version" not in record.model_fields_set:
        raise RecordError(f"{path}: no schema_version; this version reads {SCHEMA_VERSION}")
    again = conclude_again(record)
    if fault := next(find_concluded_otherwise(record, again), ""):
        raise RecordError(f"{path}: contradicts itself: {one_line(fault)}")
    return again  # its words are ours


def _of_other_version(data: bytes) -> str:
    """What to do with a record of another schema; nothing where it is none."""
    try:
        found = _OtherSchema.model_validate_json(data)
    except ValidationError:
        return ""
    by = found.plan or found.header
    if found.schema_version == SCHEMA_VERSION or by is None:
        return ""
    written = f"schema_version {found.schema_version}, by gpu-acceptance {by.gpu_acceptance_version}, which reads it"
    return f"{written}; this version reads {SCHEMA_VERSION}: without results.json, `report build` makes a record of its journals"
