"""`results.json` of a run folder. Whatever is read goes through validation."""

from pathlib import Path

from pydantic import ValidationError

from gpu_acceptance.folder.disk import RecordError, read_regular, write_atomically
from gpu_acceptance.folder.encoding import encode, first_problem
from gpu_acceptance.processes.gc_pause import gc_paused
from gpu_acceptance.record.run_record import SCHEMA_VERSION, RunRecord
from gpu_acceptance.text.visible import one_line
from gpu_acceptance.verdict.contradictions import find_contradiction
from gpu_acceptance.verdict.judged_again import find_concluded_otherwise
from gpu_acceptance.verdict.run_record import conclude_again

RESULTS = "results.json"


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
        raise RecordError(f"{path}: {first_problem(error)}") from None
    if "schema_version" not in record.model_fields_set:
        raise RecordError(f"{path}: no schema_version; this version reads {SCHEMA_VERSION}")
    if contradiction := find_contradiction(record):
        raise RecordError(f"{path}: contradicts itself: {contradiction}")
    if record.plan is None:
        return record
    again = conclude_again(record)
    if fault := next(find_concluded_otherwise(record, again), ""):
        raise RecordError(f"{path}: contradicts itself: {one_line(fault)}")
    return again  # its words are ours
