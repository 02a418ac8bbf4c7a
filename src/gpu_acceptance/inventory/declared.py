"""The nodes that a site's file declares against those that are here."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gpu_acceptance.base.model import Model
from gpu_acceptance.inventory.answer import join_fitting

NONE = "none"


class DeclaredNode(Model):
    """A node that `--site` says there must be."""

    host: str
    gpus: int  # that exist on it
    rack: str = ""

    @property
    def place(self) -> str:
        return place_of(self.host, self.rack)


def place_of(host: str, rack: str) -> str:
    """`node-03, rack B2`: where to find a node."""
    return f"{host}, rack {rack}" if rack else host


def by_declared_name(hosts: Iterable[str], declared: Iterable[str]) -> dict[str, str]:
    """Host -> the declared name of the same node: its own, or the only one of which it is the beginning, or that is its beginning.

    A host calls itself `node-01` or `node-01.cluster.internal` by what its administrator set. Where two fit, none does.
    """
    hosts, declared = set(hosts), set(declared)
    found = {host: host for host in hosts & declared}
    fits = {(host, name) for host in hosts - declared for name in declared - hosts if _same_but_for_domain(host, name)}
    num_names, num_hosts = Counter(host for host, _ in fits), Counter(name for _, name in fits)
    return found | {host: name for host, name in fits if num_names[host] == num_hosts[name] == 1}


def _same_but_for_domain(one: str, other: str) -> bool:
    return one.startswith(f"{other}.") or other.startswith(f"{one}.")


@dataclass(frozen=True)
class Seen:
    """What one rank says of its node."""

    node: int
    host: str
    num_gpus: int


def difference(declared: Sequence[DeclaredNode], seen: Iterable[Seen]) -> str:
    """`none`, or in words which node is not there, not declared, or has another number of GPUs."""
    found: dict[str, dict[int, int]] = {}
    seen = list(seen)
    names = by_declared_name({one.host for one in seen}, {node.host for node in declared})
    for one in seen:
        numbers = found.setdefault(names.get(one.host, one.host), {})
        numbers[one.node] = max(one.num_gpus, numbers.get(one.node, 0))
    return join_fitting(list(_differences({node.host: node for node in declared}, found))) or NONE


def _differences(declared: dict[str, DeclaredNode], found: dict[str, dict[int, int]]) -> Iterator[str]:
    """By host name: the number of GPUs of each node that calls itself so."""
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
