"""The JSON schema of `results.json`, for whoever reads it with other tools. Rewrite it: `python -m gpu_acceptance.report.schema`."""

import json
from pathlib import Path

from gpu_acceptance.folder.disk import write_atomically
from gpu_acceptance.record.run_record import RunRecord

SCHEMA_FILE = Path(__file__).with_name("results.schema.json")


def schema_text() -> str:
    """The schema of this version of the record."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **RunRecord.model_json_schema()}
    return json.dumps(schema, indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    write_atomically(SCHEMA_FILE, schema_text())
