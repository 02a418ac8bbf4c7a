"""Nodes that a site's file declares, compared with those that are here."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gpu_acceptance.base.model import Model
from gpu_acceptance.inventory.answer import join_fitting

NONE = "none"


class DeclaredNode(Model):
    """A node that the file of `--site` declares."""

    host: str
    gpus: int  # GPUs that exist on it
    rack: str = ""

    @property
    def place(self) -> str:
        return place_of(self.host, self.rack)


def place_of(host: str, rack: str) -> str:
    """Return the place of a node, `node-03, rack B2`."""
    return f"{host}, rack {rack}" if rack else host


def by_declared_name(hosts: Iterable[str], declared: Iterable[str]) -> dict[str, str]:
    """Return the declared name of each host: its own, or the only one that differs just by a domain.

    A host calls itself `node-01` or `node-01.cluster.internal`, as its administrator set it. Where two names fit, none does.
    """
    hosts, declared = set(hosts), set(declared)
    found = {host: host for host in hosts & declared}
    fits = {
        (host, name) for host in hosts - declared for name in declared - hosts if host.startswith(f"{name}.") or name.startswith(f"{host}.")
    }
    num_names, num_hosts = Counter(host for host, _ in fits), Counter(name for _, name in fits)
    return found | {host: name for host, name in fits if num_names[host] == num_hosts[name] == 1}


@dataclass(frozen=True)
class Seen:
    """Node of one rank."""

    node: int
    host: str
    num_gpus: int


def difference(declared: Sequence[DeclaredNode], seen: Iterable[Seen]) -> str:
    """Return `none`, or the nodes that are missing, undeclared, or have another number of GPUs."""
    found: dict[str, dict[int, int]] = {}
    seen = list(seen)
    names = by_declared_name({one.host for one in seen}, {node.host for node in declared})
    for one in seen:
        numbers = found.setdefault(names.get(one.host, one.host), {})
        numbers[one.node] = max(one.num_gpus, numbers.get(one.node, 0))
    return join_fitting(list(_differences({node.host: node for node in declared}, found))) or NONE


def _differences(declared: dict[str, DeclaredNode], found: dict[str, dict[int, int]]) -> Iterator[str]:
    """Yield each difference. `found`: by host name, the number of GPUs of each node of that name."""
    for host, node in declared.items():
        if host not in found:
            yield f"{node.place} is declared and has no rank"
    for host, numbers in found.items():
        if host not in declared:
            yield f"{host} is not declared"
            continue
        if len(numbers) > 1:
            yield f"{declared[host].place} is there {len(numbers)} times, as nodes {', '.join(map(str, sorted(numbers)))}"
        for num_gpus in sorted({number for number in numbers.values() if number != declared[host].gpus}):
            yield f"{declared[host].place} has {num_gpus} GPUs, not {declared[host].gpus}"
