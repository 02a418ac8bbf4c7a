"""Makes a run fit to publish: `make_sample.py RUN_FOLDER SAMPLE_FOLDER`.

Serial numbers, UUIDs and host names are replaced, everywhere alike.
The page is built anew from the replaced results, so that it says what they say.
"""

import re
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from gpu_acceptance.files import read_results
from gpu_acceptance.record import RunRecord
from gpu_acceptance.report import write_page

_SUFFIXES = {".json", ".jsonl", ".xml", ".html", ".txt", ".log", ".stacks", ".native", ".collectives"}


def main(run: Path, sample: Path) -> None:
    names = replacements(read_results(run))
    shutil.copytree(run, sample)
    for path in sorted(sample.rglob("*")):
        if path.suffix in _SUFFIXES:
            path.write_text(replaced(path.read_text(encoding="utf-8", errors="replace"), names), encoding="utf-8")
    write_page(sample)


def replacements(record: RunRecord) -> dict[str, str]:
    """Each name of a machine in the record -> what stands for it."""
    names: dict[str, str] = {}
    for identity in record.header.ranks:
        names[identity.host] = f"node-{identity.node:02d}"
        names[identity.chassis_serial] = f"CHASSIS-{identity.node:02d}"
        for gpu in identity.gpus:
            names[gpu.serial] = f"16500000{identity.node:02d}{gpu.index:02d}"
            names[gpu.uuid] = f"GPU-00000000-0000-0000-{identity.node:04d}-{gpu.index:012d}"
    return {name: other for name, other in names.items() if name}


def replaced(text: str, names: dict[str, str]) -> str:
    """The text with every name replaced, the longest first: one may be a part of another."""
    for name in sorted(names, key=len, reverse=True):
        text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", names[name], text)  # a host `vm` is no part of `nvml`
    return text


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
