"""Makes a snapshot and the `nvidia-smi -q -x` beside it fit to publish: `python tools/redact_snapshots.py RAW OUT`.

Reads RAW.json and RAW.xml, writes OUT.json and OUT.xml. What the snapshot names is replaced as `gpu-acceptance snapshot --redact` does, and
by the same in the XML. The supported clocks are left out of the XML: half of the file, and no snapshot has them.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from gpu_acceptance.base.files import write_atomically
from gpu_acceptance.cli.snapshot_file import Snapshot, encode, read_snapshot, redact

_IN_BOTH = {"serial", "uuid", "clusterUuid"}
_NUMBERED = {  # elements that only nvidia-smi shows, whose values name a part, a place or a program -> what stands for them
    "pdi": "0x{:016x}",
    "board_id": "0x{:x}",
    "chassis_serial_number": "CHASSIS-{:02d}",
    "slot_number": "{}",
    "tray_index": "{}",
    "host_id": "{}",
    "gpu_fabric_guid": "0x{:016x}",
    "process_name": "process-{:02d}",
}
_NO_VALUE = {"", "N/A"}


def main(raw: Path, out: Path) -> None:
    snapshot = read_snapshot(raw.with_suffix(".json"))
    redacted = redact(snapshot)
    write_atomically(out.with_suffix(".json"), encode(redacted))
    write_atomically(out.with_suffix(".xml"), redact_xml(raw.with_suffix(".xml").read_text(encoding="utf-8"), snapshot, redacted))


def redact_xml(text: str, raw: Snapshot, redacted: Snapshot) -> str:
    """Raises ValueError over a name that the snapshot does not have: then the two are of different machines."""
    others = dict(zip(texts(raw), texts(redacted), strict=True))
    seen: dict[str, list[str]] = {}
    root = ElementTree.fromstring(text)  # noqa: S314 - written by the nvidia-smi of whoever calls this
    for gpu in root.iter("gpu"):
        for clocks in gpu.findall("supported_clocks"):
            gpu.remove(clocks)
    for element in root.iter():
        element.text = _replaced(element, others, seen)
    text = '<?xml version="1.0" ?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"
    if left := [name for name, other in others.items() if other != name and len(name) > 2 and name in text]:
        raise ValueError(f"the XML shows {', '.join(left)} where no element is known to name anything")
    return text


def _replaced(element: Element, others: dict[str, str], seen: dict[str, list[str]]) -> str | None:
    value = (element.text or "").strip()
    if value in _NO_VALUE:
        return element.text
    if element.tag in _IN_BOTH:
        if value not in others:
            raise ValueError(f"{element.tag} {value} of the XML is not in the snapshot")
        return others[value]
    if element.tag in _NUMBERED:
        known = seen.setdefault(element.tag, [])
        if value not in known:
            known.append(value)
        return _NUMBERED[element.tag].format(known.index(value))
    return element.text


def texts(value: object) -> Iterator[str]:
    """Every text of a snapshot, always in the same order."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from texts(part)
    elif hasattr(value, "__dataclass_fields__"):
        for name in value.__dataclass_fields__:
            yield from texts(getattr(value, name))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
