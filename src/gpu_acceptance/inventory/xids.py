"""Meaning and remedy of each XID. The table and its sources are in xids.yaml."""

import json
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


NO_REPAIR = frozenset({Remedy.IGNORE, Remedy.RESTART_APPLICATION})
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


class Catalogue(Model):
    """Source of the table."""

    title: str
    url: str
    version: str


class ResetIf(Model):
    """A test of the interrupt information beside an error status."""

    statuses: tuple[str, ...]
    mask: str
    value: str

    def holds(self, status: int, information: int) -> bool:
        return status in _hexadecimal(self.statuses) and information & int(self.mask, 16) == int(self.value, 16)


class UnitRules(Model):
    """Error statuses of one unit of an NVLink by the catalogue's immediate action, in hexadecimal as the driver writes them."""

    IGNORE: tuple[str, ...] = ()
    RESTART_APPLICATION: tuple[str, ...] = ()
    RESET_GPU: tuple[str, ...] = ()
    reset_if: tuple[ResetIf, ...] = ()

    def remedy(self, status: int, information: int) -> Remedy | None:
        """Return the action for an error status; None where the catalogue has no row."""
        if any(test.holds(status, information) for test in self.reset_if):
            return Remedy.RESET_GPU
        rows = {Remedy.RESET_GPU: self.RESET_GPU, Remedy.RESTART_APPLICATION: self.RESTART_APPLICATION, Remedy.IGNORE: self.IGNORE}
        return next((remedy for remedy, statuses in rows.items() if status in _hexadecimal(statuses)), None)


def _hexadecimal(texts: Iterable[str]) -> set[int]:
    return {int(text, 16) for text in texts}


class _Table(Model):
    catalogue: Catalogue
    remedies: dict[str, dict[str, _Entry]]
    links: dict[int, dict[str, UnitRules]]


@dataclass(frozen=True)
class XidMeaning:
    """One XID. `is_application`: mostly an application's own mistake causes it, and the GPU is held healthy.

    `doubt`: why nobody can tell if this one needs its remedy.
    """

    number: int
    name: str
    remedy: Remedy
    is_application: bool
    advice: str
    doubt: str = ""

    @property
    def needs_repair(self) -> bool:
        return not self.doubt and self.remedy not in NO_REPAIR

    def __str__(self) -> str:
        return f"XID {self.number}, {self.name}: {self.remedy}"


@cache
def _table() -> _Table:
    data = parse(XIDS_FILE.read_bytes()).data
    remedies = {remedy: {str(numbers): row for numbers, row in rows.items()} for remedy, rows in data["remedies"].items()}
    return _Table.model_validate_json(json.dumps({**data, "remedies": remedies}))


def catalogue() -> Catalogue:
    """Return the source of the table."""
    return _table().catalogue


def links() -> Mapping[int, Mapping[str, UnitRules]]:
    """Return what XIDs of an NVLink mean by unit and error status."""
    return _table().links


@cache
def meanings() -> Mapping[int, XidMeaning]:
    """Return the table by number."""
    found: dict[int, XidMeaning] = {}
    for remedy, rows in _table().remedies.items():
        for numbers, entry in rows.items():
            for number in parse_ranges(numbers):
                assert number not in found, f"{XIDS_FILE.name}: XID {number} stands there twice"
                found[number] = XidMeaning(number, entry.name, Remedy[remedy], entry.application, entry.advice)
    return found


def meaning_of(number: int, text: str = "") -> XidMeaning:
    """Return the meaning of an XID. `text` is the rest of its log line: that of XID 154 names the action, that of a link its severity."""
    meaning = meanings().get(number)
    if meaning is None:
        return XidMeaning(number, "not in the table", Remedy.CONTACT_SUPPORT, is_application=False, advice=_UNKNOWN)
    if number == _RECOVERY_ACTION and (action := _NEW_ACTION.fullmatch(text)) and action[1] in _ACTIONS:
        return replace(meaning, remedy=_ACTIONS[action[1]], advice="It sums up the XIDs beside it, which give the cause.")
    return _meaning_of_link(meaning, text) if number in links() else meaning


# <sub component> <fatal or nonfatal> <crosscontain> <injected> <link> (<intrInfo> <errorStatus> <errorDebugData...>)
_LINK_EVENT = re.compile(
    r"(?:.*, )?(?P<unit>[^ ,]+) +(?i:Non-?fatal)\b(?:.*?[(\[] *(?P<information>0x[0-9a-fA-F]{1,8})(?: +(?P<status>0x[0-9a-fA-F]{1,8}))?)?.*"
)
_FATAL = re.compile(r"(?i)(?<!non)(?<!non-)\bfatal\b")


def _meaning_of_link(meaning: XidMeaning, text: str) -> XidMeaning:
    """Return what an NVLink event means that its line calls non-fatal; any other one has the meaning of its number.

    A status that the unit's rows do not have may be several of them at once, and as bad as any.
    """
    event = _LINK_EVENT.fullmatch(text)
    if event is None or _FATAL.search(text):  # a process may call itself anything; the driver prints its name before the event
        return meaning
    units = links()[meaning.number].items()
    rules = next((its for unit, its in units if any(part.startswith(unit) for part in event["unit"].split("/"))), None)
    if rules is None or event["status"] is None:
        return replace(meaning, remedy=Remedy.IGNORE)
    remedy = rules.remedy(int(event["status"], 16), int(event["information"], 16))
    return replace(meaning, remedy=remedy) if remedy else replace(meaning, doubt=f"{event['unit']} has no error status {event['status']}")


def labels_of(found: Iterable[XidMeaning]) -> dict[str, int]:
    """Return labels of a figure: the number of XIDs by remedy, by its name in lower case."""
    return dict(Counter(meaning.remedy.name.lower() for meaning in found))


def remedies_in(labels: Iterable[str]) -> list[Remedy]:
    """Return the remedies that a figure with these labels counts."""
    return [remedy for remedy in Remedy if remedy.name.lower() in labels]
