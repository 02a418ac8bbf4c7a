"""Meaning and remedy of each XID. The table and its sources are in xids.yaml."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from pathlib import Path

from gpu_acceptance.base.model import Model
from gpu_acceptance.base.strict_yaml import parse
from gpu_acceptance.base.text import parse_ranges

XIDS_FILE = Path(__file__).with_name("xids.yaml")
_UNKNOWN = "In no source of this table: treat it as a fault of the GPU or its driver until NVIDIA's catalogue or the vendor says otherwise."
_RECOVERY_ACTION = 154
_NEW_ACTION = re.compile(r".*recovery action changed from .* to 0x[0-9a-fA-F]+ \(([^)]*)\).*")


class Remedy(StrEnum):
    """Action that an XID asks for."""

    IGNORE = "no repair"
    RESTART_APPLICATION = "restart the application"
    RESET_GPU = "reset the GPU"
    REBOOT_NODE = "reboot the node"
    CHECK_LINK = "check the link, its cables and the fabric manager"
    CHECK_SEATING = "check power cables and seating"
    UPDATE_SOFTWARE = "update driver and firmware"
    FIELD_DIAGNOSTICS = "run NVIDIA's field diagnostics"
    CONTACT_SUPPORT = "contact the vendor's support"
    REPLACE = "replace the GPU (RMA)"


_ACTIONS = {  # in the words of the catalogue, and of newer drivers' logs
    "None": Remedy.IGNORE,
    "Drain and Reset": Remedy.RESET_GPU,
    "GPU Reset Required": Remedy.RESET_GPU,
    "PF FLR": Remedy.RESET_GPU,
    "Node Reboot Required": Remedy.REBOOT_NODE,
    "OS Reboot": Remedy.REBOOT_NODE,
}


class _Entry(Model):
    name: str
    advice: str
    application: bool = False


@dataclass(frozen=True)
class XidMeaning:
    """One XID. `is_application`: mostly an application's own mistake causes it, and the GPU is held healthy."""

    number: int
    name: str
    remedy: Remedy
    is_application: bool
    advice: str

    def __str__(self) -> str:
        return f"XID {self.number}, {self.name}: {self.remedy}"


@cache
def meanings() -> Mapping[int, XidMeaning]:
    """Return the table by number."""
    found: dict[int, XidMeaning] = {}
    for remedy, rows in parse(XIDS_FILE.read_bytes()).data.items():
        for numbers, row in rows.items():
            entry = _Entry.model_validate(row)
            for number in parse_ranges(str(numbers)):
                assert number not in found, f"{XIDS_FILE.name}: XID {number} stands there twice"
                found[number] = XidMeaning(number, entry.name, Remedy[str(remedy)], entry.application, entry.advice)
    return found


def meaning_of(number: int, text: str = "") -> XidMeaning:
    """Return the meaning of an XID. `text` is the rest of its log line: that of XID 154 names the action."""
    meaning = meanings().get(number)
    if meaning is None:
        return XidMeaning(number, "not in the table", Remedy.CONTACT_SUPPORT, is_application=False, advice=_UNKNOWN)
    if number == _RECOVERY_ACTION and (action := _NEW_ACTION.fullmatch(text)) and action[1] in _ACTIONS:
        return replace(meaning, remedy=_ACTIONS[action[1]], advice="It sums up the XIDs beside it, which give the cause.")
    return meaning


def labels_of(found: Iterable[XidMeaning]) -> dict[str, int]:
    """Return labels of a figure: the number of XIDs by remedy, by its name in lower case."""
    return dict(Counter(meaning.remedy.name.lower() for meaning in found))


def remedies_in(labels: Iterable[str]) -> list[Remedy]:
    """Return the remedies that a figure with these labels counts."""
    return [remedy for remedy in Remedy if remedy.name.lower() in labels]
