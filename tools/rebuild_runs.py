"""Writes the words of all committed runs anew, from the facts that stand in their results.json: verdict line, reasons, pages, exports.

After a change of any sentence or of the page. Refuses to touch a run of which anything but words would change.
"""

import sys
from pathlib import Path

from gpu_acceptance.base.files import write_atomically
from gpu_acceptance.folder.files import RESULTS, write_results
from gpu_acceptance.folder.manifest import MANIFEST, write_manifest
from gpu_acceptance.record.run_record import RunRecord
from gpu_acceptance.report.build import REPORT, write_page
from gpu_acceptance.report.exports import EXPORTS
from gpu_acceptance.verdict.run_record import conclude_again, find_concluded_otherwise

ROOT = Path(__file__).resolve().parents[1]


def rebuild(folder: Path) -> None:
    """One run, in its own folder. Raises ValueError where its facts no longer give its verdict."""
    record = RunRecord.model_validate_json((folder / RESULTS).read_bytes())
    again = conclude_again(record)
    for difference in find_concluded_otherwise(record, again):
        raise ValueError(f"{folder}: {difference}")
    write_results(folder, again)
    if (folder / REPORT).exists():
        write_page(folder)
    for name, build in EXPORTS.items():
        if (folder / name).exists():
            write_atomically(folder / name, build(again))
    if (folder / MANIFEST).exists():
        write_manifest(folder)


def main() -> None:
    for path in sorted((ROOT / "reports").rglob(RESULTS)):
        rebuild(path.parent)


if __name__ == "__main__":
    sys.exit(main())
