"""XIDs of one GPU while a validation runs: events of NVML, which need no privilege. An event has a number and no text.

Of an XID of an NVLink (144 to 149) the number does not say if it is a fault: the same stands for fatal and for harmless events. So its
severity is looked up in the kernel's log. Where that cannot be told, there is no answer, never a fault.
"""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_acceptance.inventory import kernel_log
from gpu_acceptance.inventory.answer import Answer, Missing, Why, then, with_name
from gpu_acceptance.inventory.gpu import text
from gpu_acceptance.inventory.nvml import Asker
from gpu_acceptance.inventory.xids import links, meaning_of

_MOST_XIDS = 1_000  # in one reading; a lost GPU may report without end


@dataclass(frozen=True)
class Heard:
    """XIDs since the reading before. `unread`: the reason why there may be more; without one, these are all."""

    xids: tuple[int, ...] = ()
    unread: Missing | None = None

    def __add__(self, later: "Heard") -> "Heard":
        return Heard(self.xids + later.xids, self.unread or later.unread)


NOTHING_HEARD = Heard()


class XidEvents:
    """Events of one GPU from its construction on; earlier ones are in the kernel log alone."""

    def __init__(self, asker: Asker, handle: object, root: Path = Path("/")) -> None:
        self._asker = asker
        self._root = root
        self._address: Answer[str] = asker.ask("nvmlDeviceGetPciInfo", handle, make=lambda info: text(info.busId))
        self._events: Any = asker.ask("nvmlEventSetCreate", make=lambda events: events)
        kind = getattr(asker.pynvml, "nvmlEventTypeXidCriticalError", 8)
        self._registered = asker.ask("nvmlDeviceRegisterEvents", handle, kind, self._events, make=bool)

    def read(self) -> Heard:
        """Return the XIDs since the reading before that count, as far as they could be heard and told."""
        if isinstance(self._registered, Missing):
            return Heard(unread=self._registered)
        heard = self._hear()
        of_links = Counter(number for number in heard.xids if number in links())
        found = Heard(tuple(number for number in heard.xids if number not in of_links), heard.unread)
        return sum((self._faults(number, times) for number, times in of_links.items()), found)

    def _hear(self) -> Heard:
        xids: list[int] = []
        while len(xids) < _MOST_XIDS:
            try:
                event = self._asker.pynvml.nvmlEventSetWait_v2(self._events, 0)
            except self._asker.pynvml.NVMLError_Timeout:
                break
            except self._asker.pynvml.NVMLError as error:
                return Heard(tuple(xids), with_name(f"after {len(xids)} XIDs", self._asker.why("nvmlEventSetWait_v2", error)))
            xids.append(int(event.eventData))
        return Heard(tuple(xids))

    def _faults(self, number: int, times: int) -> Heard:
        answer = then(self._address, lambda address: faults_of(kernel_log.read(self._root), address, number, times))
        return Heard(unread=with_name(f"XID {number}", answer)) if isinstance(answer, Missing) else Heard((number,) * answer)


def faults_of(log: kernel_log.KernelLog, address: str, number: int, times: int) -> Answer[int]:
    """Return how many of the last XIDs of a GPU with this number need a repair, by their lines in the kernel's log."""
    if isinstance(log.xids, Missing):
        return log.xids
    lines = [meaning_of(number, xid.text) for xid in log.xids if (xid.pci_bus_id, xid.number) == (address, number)]
    if not any(one.needs_repair or one.doubt for one in lines):
        is_there = len(lines) >= min(times, kernel_log.MOST_ALIKE)
        return 0 if is_there else Missing(Why.NOT_THERE, "the kernel's log does not have it, and NVML does not tell its severity")
    last = lines[-times:] if log.num_left_out == 0 and len(lines) >= times else []
    doubt = next((one.doubt for one in last if one.doubt), "the kernel's log has several of it, and does not say which one this was")
    return sum(one.needs_repair for one in last) or Missing(Why.UNREADABLE, doubt)
