"""What a kernel's log holds of its GPUs, as lines for people. Pure."""

from collections import Counter
from collections.abc import Iterator

from gpu_acceptance.cli.plain_text import moment, say, say_why, section
from gpu_acceptance.inventory.answer import Answer, Missing
from gpu_acceptance.inventory.kernel_log import KernelLog, PcieError, SXid, Xid
from gpu_acceptance.inventory.kmsg import Reach
from gpu_acceptance.inventory.node import NodeReading
from gpu_acceptance.inventory.xids import Remedy, XidMeaning, meaning_of
from gpu_acceptance.report.formatting import count

_MOST_KINDS = 4
_WEIGHT = {remedy: weight for weight, remedy in enumerate(Remedy)}  # listed there from the least to the most


def kernel_log_lines(node: NodeReading) -> list[str]:
    """Since when it reaches, how many of each kind, and the XIDs that ask for most."""
    log = node.kernel_log
    if isinstance(log.reach, Missing):
        return section("log", say_why(log.reach))
    boot = node.system.boot_time_s
    return section("log", _reach(log.reach, boot), _counts(log), *_xid_texts(log.xids, _names(node), boot))


def _reach(reach: Reach, boot: Answer[int]) -> str:
    gaps = {"overwritten before it": reach.first_sequence, "lost while it was read": reach.num_lost, "unreadable": reach.num_unreadable}
    holes = [f"{number} {what}" for what, number in gaps.items() if number]
    if reach.is_cut_short:
        holes.append("not read to its end")
    holes_text = f" ({', '.join(holes)})" if holes else ""
    whole = "all since boot" if reach.is_since_boot else f"not all since boot{holes_text}"
    return f"kernel log from {_at(reach.first_s, boot)} to {_at(reach.last_s, boot)}: {whole}"


def _at(since_boot_s: float, boot: Answer[int]) -> str:
    return f"{since_boot_s:.7g} s after boot" if isinstance(boot, Missing) else moment(boot, since_boot_s)


def _counts(log: KernelLog) -> str:
    kinds = (
        f"XIDs {say(log.xids, _number)}",
        f"SXids {say(log.sxids, _sxids)}",
        f"lost GPUs {say(log.lost_gpus, lambda lost: ' '.join(one.pci_bus_id for one in lost) or '0')}",
        f"PCIe errors {say(log.pcie_errors, _pcie_errors)}",
        f"errors of the host {say(log.host_errors, _number)}",
        f"in no known form {say(log.unreadable, _number)}",
        f"not listed {say(log.num_left_out)}",
    )
    return ", ".join(kinds)


def _number(found: tuple[object, ...]) -> str:
    return str(len(found))


def _sxids(found: tuple[SXid, ...]) -> str:
    return f"{len(found)} ({_tally(str(one.number) for one in found)})" if found else "0"


def _pcie_errors(found: tuple[PcieError, ...]) -> str:
    return f"{len(found)} ({_tally(say(one.severity) for one in found)})" if found else "0"


def _tally(names: Iterator[str]) -> str:
    """`corrected 6, fatal 1`."""
    return ", ".join(f"{name}: {number}" for name, number in Counter(names).most_common())


def _names(node: NodeReading) -> dict[str, str]:
    """What people call the GPU of a PCI bus id."""
    gpus = () if isinstance(node.gpus.gpus, Missing) else node.gpus.gpus
    return {gpu.pci_bus_id: f"GPU {gpu.index}" for gpu in gpus if not isinstance(gpu.pci_bus_id, Missing)}


def _xid_texts(xids: Answer[tuple[Xid, ...]], names: dict[str, str], boot: Answer[int]) -> Iterator[str]:
    """The kinds whose remedy goes furthest, each once for a GPU."""
    if isinstance(xids, Missing):
        return
    kinds: dict[tuple[int, str], list[Xid]] = {}
    for xid in xids:
        kinds.setdefault((xid.number, xid.pci_bus_id), []).append(xid)
    worst = sorted(((_heaviest(found), found) for found in kinds.values()), key=lambda one: -_WEIGHT[one[0].remedy])
    for meaning, found in worst[:_MOST_KINDS]:
        where = say(names.get(found[0].pci_bus_id, found[0].pci_bus_id))
        often = f"{count(len(found), 'time')}, last at {_at(found[-1].at_s, boot)}"
        by = " (mostly the application's own mistake)" if meaning.is_application else ""
        yield f"XID {meaning.number} on {where}, {often}: {say(meaning.name)}{by}; to do: {meaning.remedy}"
    if rest := worst[_MOST_KINDS:]:
        yield f"and {_tally(f'XID {meaning.number}' for meaning, found in rest for _ in found)}"


def _heaviest(xids: list[Xid]) -> XidMeaning:
    return max((meaning_of(xid.number, xid.text) for xid in xids), key=lambda meaning: _WEIGHT[meaning.remedy])
