"""Commands of the table of remedies, with the culprit's own names in them. Whatever a machine said is quoted for a shell."""

import re
import shlex
from collections.abc import Mapping

from gpu_acceptance.record.figure import Labels
from gpu_acceptance.record.job import RankIdentity

PLACEHOLDERS = ("HOST", "UUID", "BUS", "DEVICE", "PORT", "RUN", "PID", "POD")  # the last two only a person at the machine knows
_PLACEHOLDER = re.compile(r"<([A-Z]+)>")
_LONGEST_NAME = 255  # of a host; what is longer is no name to paste into a shell
_LONG_DOMAIN = re.compile(r"0000([0-9A-Fa-f]{4}:[0-9A-Fa-f:.]+)")


def names_of(identity: RankIdentity | None, run_id: str, labels: Labels) -> dict[str, str]:
    """What is known of a culprit, by placeholder: its node and GPU, and the network port that the figure of its limit is of."""
    names = {"RUN": run_id}
    if identity:
        names["HOST"] = identity.host
        if identity.gpu:
            names |= {"UUID": identity.gpu.uuid, "BUS": _as_linux_has_it(identity.gpu.pci_bus_id)}
    names |= {name.upper(): str(labels[name]) for name in ("device", "port") if name in labels}
    return {name: value for name, value in names.items() if 0 < len(value) <= _LONGEST_NAME and value[0] != "-"}  # nor is an option a name


def filled(command: str, names: Mapping[str, str]) -> str:
    """The command with what is known; a placeholder of which nothing is known stays as it is."""
    return _PLACEHOLDER.sub(lambda found: shlex.quote(names[found[1]]) if found[1] in names else found[0], command)


def _as_linux_has_it(pci_bus_id: str) -> str:
    """`0000:1b:00.0` of NVML's `00000000:1B:00.0`."""
    match = _LONG_DOMAIN.fullmatch(pci_bus_id)
    return (match[1] if match else pci_bus_id).lower()
