"""Makes a run fit to publish: `make_sample.py RUN_FOLDER SAMPLE_FOLDER`.

Serial numbers, UUIDs, host names, IPv4 addresses and the paths of the machine are replaced, everywhere alike, in all files of the
folder: what the terminal showed can be put there first. Links to outside are taken out, and so is `tensorboard/`: those who want it can
make it of the results. The page is built anew from the replaced results, so that it says what they say.
"""

import ipaddress
import re
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from gpu_acceptance.files import read_results
from gpu_acceptance.inventory.answer import Why
from gpu_acceptance.record import RunRecord
from gpu_acceptance.report import event_files, write_page

_ROOT = re.compile(r"""(?:^rootdir: (/\S+)|(/\w[^\s"']*?)/(?:acceptance|fixtures|src/gpu_acceptance)/\w+\.py)""", re.MULTILINE)
_PACKAGES = re.compile(r"""/[^\s"'=]+?(/lib/python3[.\d]*/(?:site|dist)-packages/)""")
_IPV4 = re.compile(r"(?<![\w.-])\d{1,3}(?:\.\d{1,3}){3}(?![\w-]|\.\d)")
_EXAMPLES = ipaddress.IPv4Network("192.0.2.0/24")  # RFC 5737: addresses for documents
_OTHER_UUID = re.compile(r"(?<![0-9a-f])(?!00000000-)[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?![0-9a-f-])", re.IGNORECASE)
_LINK = re.compile(r'<a href="https?:[^"]*">(.*?)</a>')


def main(run: Path, sample: Path) -> None:
    paths = [path.relative_to(run) for path in sorted(run.rglob("*")) if path.is_file()]
    texts = {path: (run / path).read_text(encoding="utf-8", errors="replace") for path in paths if event_files.FOLDER not in path.parts}
    names = replacements(read_results(run)) | found(texts.values())
    shutil.copytree(run, sample, ignore=shutil.ignore_patterns(event_files.FOLDER))
    for path, text in texts.items():
        (sample / path).write_text(replaced(text, names), encoding="utf-8")
    write_page(sample)


def replacements(record: RunRecord) -> dict[str, str]:
    """Each name of a machine in the record -> what stands for it."""
    names: dict[str, str] = {}
    for word in record.header.command:
        option, _, value = word.rpartition("=")
        if value.startswith("/"):
            names[value.rstrip("/")] = "/suite/reports" if option == "--report-dir" else Path(value).name
    for identity in record.header.ranks:
        names[identity.host] = f"node-{identity.node:02d}"
        names[identity.chassis_serial] = f"CHASSIS-{identity.node:02d}"
        names |= {text: f"{fact.upper()}-{identity.node:02d}" for fact, text in identity.inventory.items() if _is_a_serial(fact, text)}
        for gpu in identity.gpus:
            names[gpu.serial] = f"16500000{identity.node:02d}{gpu.index:02d}"
            names[gpu.uuid] = f"GPU-00000000-0000-0000-{identity.node:04d}-{gpu.index:012d}"
    return {name: other for name, other in names.items() if name}


def _is_a_serial(fact: str, text: str) -> bool:
    """Where a machine does not tell its own, the reason stands in its place."""
    return fact in {"product_serial", "chassis_serial"} and not text.startswith(tuple(Why))


def found(texts: Iterable[str]) -> dict[str, str]:
    """What the record does not name and the texts do: the checkout, and addresses. A version of four numbers is taken for one."""
    everything = "\n".join(texts)
    roots = {match[1] or match[2] for match in _ROOT.finditer(everything)}
    addresses = [address for address in dict.fromkeys(_IPV4.findall(everything)) if _is_of_a_machine(address)]
    return dict.fromkeys(roots, "/suite") | {address: str(_EXAMPLES[number]) for number, address in enumerate(addresses, start=1)}


def _is_of_a_machine(text: str) -> bool:
    try:
        address = ipaddress.IPv4Address(text)
    except ValueError:
        return False
    return not (address.is_loopback or address.is_unspecified or address in _EXAMPLES)


def replaced(text: str, names: dict[str, str]) -> str:
    """The text with every name replaced, the longest first: one may be a part of another."""
    for name in sorted(names, key=len, reverse=True):
        text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", names[name], text)  # a host `vm` is no part of `nvml`
    text = _PACKAGES.sub(r"/venv\1", text)
    text = _OTHER_UUID.sub("00000000-0000-0000-0000-ffffffffffff", text)
    return _LINK.sub(r"\1", text)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
