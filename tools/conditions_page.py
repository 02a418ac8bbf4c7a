"""docs/node-conditions.md: what a condition of a Kubernetes node means to subject `kubernetes`, from the table that judges it."""

from collections.abc import Mapping
from typing import Any

from gpu_acceptance.base.strict_yaml import parse
from gpu_acceptance.inventory.node_conditions import CONDITIONS_FILE
from tools.markdown import MADE_BY, cell

_HEAD = f"""# Conditions of a Kubernetes node

{MADE_BY} Agents on a node write what they find into its conditions (`kubectl describe node NAME`). Kubernetes fixes no
polarity: `True` is a fault for one name, `False` for another. `kubernetes.node.faults` counts the faults that agents report;
`kubernetes.node.ready` and `kubernetes.node.pressure` judge the kubelet's own. Labels by which an agent reports a fault count among its
conditions; `kubernetes.node.taints` counts taints. What proves nothing leaves the number unknown, and the run
INCOMPLETE, unless another condition is a fault. All conditions of agents are recorded as `kubernetes.node.conditions`.
"""
_MEANINGS = {
    "bad_if_true": "a fault if `True`; `Unknown` proves nothing",
    "bad_if_false": "a fault if `False`; `Unknown` proves nothing",
    "bad_if_true_or_unknown": "a fault unless `False`",
    "bad_if_false_or_unknown": "a fault unless `True`",
    "blind_if_true": "proves nothing if `True`: the agent cannot look at the GPUs",
    "blind_reasons": "a fault with this reason proves nothing: the agent cannot look at the GPUs",
    "bad_labels": "labels that are a fault",
    "blind_labels": "labels that prove nothing",
    "bad_taints": "taints for a fault",
    "blind_taints": "other taints: they prove nothing",
    "plans": "not judged: a plan, or software of the provider",
}


def conditions_page() -> str:
    """docs/node-conditions.md."""
    table = parse(CONDITIONS_FILE.read_bytes()).data
    return _HEAD + "".join(_agent(str(agent), rows) for agent, rows in table["agents"].items()) + _unlisted(table["unlisted"])


def _agent(agent: str, rows: Mapping[str, Any]) -> str:
    lines = [f"| {_MEANINGS[kind]} | {cell(_names(rows[kind]))} |\n" for kind in _MEANINGS if kind in rows]
    return f"\n## {agent}\n\nSource: {rows['source']}.\n\n| meaning | which |\n|---|---|\n{''.join(lines)}"


def _unlisted(words: Mapping[str, Any]) -> str:
    return f"""
## Any other name

A name speaks of hardware if it contains {_names(words["hardware_texts"])}, or if one of its words is
{_names(words["hardware_words"])}. Inside a word these count too, written so: {_names(words["acronyms"])}.

Then its words tell the polarity. With one of these it is a fault if `True`: {_names(words["fault_words"])}; here also
{_names(words["hardware_fault_words"])}. With one of these it is a fault if `False`: {_names(words["sound_words"])}.
Each of {_names(words["negations"])} turns that round. With words of both kinds, or of neither, the condition proves nothing: ask
who sets it what it means, and waive `kubernetes.node.faults` with that answer as the reason.

A name that does not speak of hardware, and with a word for a fault, proves nothing in the status that reports it. Any other is recorded and
not judged. A taint of no agent above that speaks of a fault of hardware proves nothing; any other, and any other label, is not judged.
"""


def _names(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
