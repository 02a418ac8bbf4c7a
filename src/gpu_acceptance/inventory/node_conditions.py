"""Conditions, labels and taints of a Kubernetes node: which of them are faults, by the table in node_conditions.yaml."""

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from gpu_acceptance.base.strict_yaml import parse
from gpu_acceptance.inventory.answer import Answer, Missing, Why, one_line, shown

CONDITIONS_FILE = Path(__file__).with_name("node_conditions.yaml")
KUBELET = "kubelet"
_STATUSES = ("True", "False", "Unknown")
_BAD = {  # the table's word -> statuses that are faults
    "bad_if_true": {"True"},
    "bad_if_false": {"False"},
    "bad_if_true_or_unknown": {"True", "Unknown"},
    "bad_if_false_or_unknown": {"False", "Unknown"},
}
_KINDS = {*_BAD, "blind_if_true", "plans"}
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")  # of `IBLinkDown`, `GPU_ECC_error`
_MOST_TEXT = 160  # characters of a reason or a message


class Condition(NamedTuple):
    """A condition. `type` is empty where it cannot be read. `reason` and `message`: words of its agent, on one line."""

    type: str
    status: Answer[str]
    reason: str
    message: str

    def __str__(self) -> str:
        said = f" ({self.reason})" if self.reason else ""
        return f"{self.type} {self.status}{said}".strip()


class Meaning(StrEnum):
    """Meaning of a condition in its status."""

    SOUND = "sound"
    FAULT = "fault"
    BLIND = "proves nothing"  # its agent does not know, or we do not know what its status means
    PLAN = "a plan"
    FOREIGN = "unknown, and its name speaks neither of hardware nor of a fault"


class Judged(NamedTuple):
    """A condition, the agent that sets it (empty: none in the table), and its meaning."""

    condition: Condition
    agent: str
    meaning: Meaning

    @property
    def name(self) -> str:
        return self.condition.type

    def __str__(self) -> str:
        """Return `XIDErrors True (AKS: XID 79 on GPU 3)`."""
        one = self.condition
        if isinstance(one.status, Missing):
            return one.status.detail
        said = one.message or one.reason or "no reason"
        return f"{one.type} {one.status} ({self.agent or 'an agent that is not in the table'}: {said})"


class Mark(NamedTuple):
    """A label or a taint, and its meaning."""

    name: str
    value: str
    meaning: Meaning

    def __str__(self) -> str:
        return f"{self.name}={self.value}" if self.value else self.name


def read_conditions(status: Mapping[str, Any]) -> tuple[Condition, ...]:
    """Return the conditions in the status of a node. One that cannot be read costs itself: its status is missing."""
    found = status["conditions"]
    if not isinstance(found, list):
        raise ValueError(f"no list of conditions: {found!r:.80}")
    return tuple(map(_condition, found))


def _condition(one: object) -> Condition:
    fields = one if isinstance(one, dict) else {}
    kind, status = fields.get("type"), fields.get("status")
    try:
        name = one_line(kind) if isinstance(kind, str) else ""
    except ValueError:
        name = ""
    if not name or status not in _STATUSES:
        said = f"a condition with type {kind!a:.60} and status {status!a:.60}; allowed: {', '.join(_STATUSES)}"
        return Condition(name, Missing(Why.UNREADABLE, said), "", "")
    return Condition(name, status, _said(fields.get("reason")), _said(fields.get("message")))


def _said(field: object) -> str:
    """Return any text on one line: reasons are meant for people, and some agents write JSON."""
    return shown(field, _MOST_TEXT) if isinstance(field, str) else ""


def judge(conditions: Sequence[Condition]) -> list[Judged]:
    """Return the meaning of each condition."""
    return [_judged(one) for one in conditions]


def _judged(one: Condition) -> Judged:
    agent, kind = _entry(one.type.lower())
    if kind == "plans":
        return Judged(one, agent, Meaning.PLAN)
    bad = _BAD.get(kind) or _bad_by_name(one.type)
    if one.type and not kind and not speaks_of_hardware(one.type):
        is_suspect = states_a_fault(one.type) and one.status in (bad or {"True"})
        return Judged(one, agent, Meaning.BLIND if is_suspect else Meaning.FOREIGN)
    if one.status in bad:
        is_blind = kind == "blind_if_true" or one.reason in _agents().get(agent, {}).get("blind_reasons", ())
        return Judged(one, agent, Meaning.BLIND if is_blind else Meaning.FAULT)
    return Judged(one, agent, Meaning.SOUND if bad and one.status in {"True", "False"} else Meaning.BLIND)


def judge_labels(labels: Mapping[str, str]) -> list[Mark]:
    """Return the meaning of each label. One that the table does not have is of no agent."""
    return [Mark(key, value, _by_table("labels", f"{key}={value}") or Meaning.FOREIGN) for key, value in labels.items()]


def judge_taints(taints: Iterable[tuple[str, str]]) -> list[Mark]:
    """Return the meaning of each taint, key and value. One of no agent proves nothing if it speaks of a fault of hardware."""
    return [Mark(key, value, _by_table("taints", f"{key}={value}") or _by_words(f"{key} {value}")) for key, value in taints]


def _by_table(kind: str, mark: str) -> Meaning | None:
    for word, meaning in (("bad", Meaning.FAULT), ("blind", Meaning.BLIND)):
        if any(fnmatchcase(mark, pattern) for rows in _agents().values() for pattern in rows.get(f"{word}_{kind}", ())):
            return meaning
    return None


def _by_words(text: str) -> Meaning:
    return Meaning.BLIND if speaks_of_hardware(text) and states_a_fault(text) else Meaning.FOREIGN


@cache
def _agents() -> Mapping[str, Mapping[str, Any]]:
    return parse(CONDITIONS_FILE.read_bytes()).data["agents"]  # type: ignore[no-any-return]


@cache
def _unlisted(name: str) -> frozenset[str]:
    return frozenset(parse(CONDITIONS_FILE.read_bytes()).data["unlisted"][name])


@cache
def _entries() -> Mapping[str, tuple[str, str]]:
    """Return agent and the table's word by name or pattern in lower case."""
    kinds = [(agent, kind, names) for agent, rows in _agents().items() for kind, names in rows.items() if kind in _KINDS]
    return {name.lower(): (agent, kind) for agent, kind, names in kinds for name in names}


def _entry(name: str) -> tuple[str, str]:
    """Return the agent that sets a condition of this name, and the table's word for it; both empty where the table has none."""
    patterns = (entry for pattern, entry in _entries().items() if "*" in pattern and fnmatchcase(name, pattern))
    return _entries().get(name) or next(patterns, ("", ""))


def _words(name: str) -> set[str]:
    """Return the words of a name in lower case; of `GPUXIDError` XID and Error, as no case tells where GPU ends."""
    rest = re.sub("|".join(_unlisted("hardware_texts")), " ", name, flags=re.IGNORECASE)
    rest = re.sub("|".join(_unlisted("acronyms")), r" \g<0> ", rest)
    acronyms = _unlisted("acronyms") & set(rest.split())
    return {word.lower() for word in [*acronyms, *_WORD.findall(rest)]}


def speaks_of_hardware(name: str) -> bool:
    """Return True for a name that speaks of GPUs, of what connects them, or of the node's hardware."""
    return any(text in name.lower() for text in _unlisted("hardware_texts")) or bool(_words(name) & _unlisted("hardware_words"))


def _fault_words(name: str) -> frozenset[str]:
    return _unlisted("fault_words") | (_unlisted("hardware_fault_words") if speaks_of_hardware(name) else frozenset())


def states_a_fault(name: str) -> bool:
    """Return True for a name with a word for a fault, or with the opposite of a word for what is well: `DiskFailed`, `StorageNotReady`."""
    words = _words(name)
    return bool(words & _fault_words(name) or (words & _unlisted("negations") and words & _unlisted("sound_words")))


def _bad_by_name(name: str) -> set[str]:
    """Return the status that is a fault by the words of a name, nothing where they do not tell: `GpuEccErrors` True, `GPUHealthy` False."""
    kinds = (_fault_words(name), _unlisted("sound_words"), _unlisted("negations"))
    is_fault, is_sound, is_negated = (bool(_words(name) & kind) for kind in kinds)
    if is_negated:
        is_fault, is_sound = is_sound or not is_fault, is_fault
    if is_fault == is_sound:
        return set()
    return {"True"} if is_fault else {"False"}


def of_meaning(judged: Iterable[Judged], *meanings: Meaning) -> list[Condition]:
    """Return the conditions with one of these meanings, in the order of the meanings; the kubelet's own are left out."""
    rows = [one for one in judged if one.agent != KUBELET]
    return [one.condition for meaning in meanings for one in rows if one.meaning is meaning]
