"""The CPUs and the memory beside a GPU: what a reading of its host link must be made with. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from gpu_acceptance.inventory.answer import Answer, Missing, Why
from gpu_acceptance.inventory.cpu import NumaNode
from gpu_acceptance.inventory.parsing import cpus_in

_MOST_FAR = 0.01  # of the pages: at half the rate they make a copy take 1 % longer


@dataclass(frozen=True)
class HostSide:
    """The NUMA node of a GPU, or why nobody knows it; None where there is no GPU."""

    node: Answer[NumaNode] | None

    @property
    def cpus(self) -> frozenset[int] | None:
        """None where none are known."""
        if self.node is None or isinstance(self.node, Missing) or isinstance(self.node.cpu_list, Missing):
            return None
        return frozenset(cpus_in(self.node.cpu_list)) or None

    def reading(self, value: float, pages_by_node: Mapping[int, int], *, num_pages: int, is_bound: bool) -> Answer[float]:
        """The value, if the place of all pages is told and they lie beside the GPU: from farther away it says nothing of the link alone.

        At most 1 % of them may lie elsewhere: where a node is almost full of page cache, the kernel puts some there.
        """
        if self.node is None:
            return value
        if isinstance(self.node, Missing):
            return self.node
        if not pages_by_node:
            return Missing(Why.NOT_SUPPORTED, "/proc/self/numa_maps does not say where the host memory was")
        told = sum(pages_by_node.values())
        if told != num_pages:
            return Missing(Why.NOT_SUPPORTED, f"/proc/self/numa_maps told of {told} of {num_pages} pages of host memory where they were")
        far = told - pages_by_node.get(self.node.number, 0)
        if far <= _MOST_FAR * told:
            return value
        beside = f"NUMA node {self.node.number}, beside the GPU"
        if not is_bound:
            return Missing(Why.NOT_PERMITTED, f"this process may run on no CPU of {beside}: the host memory was elsewhere")
        pages = f"{far} of {num_pages} pages of host memory"
        return Missing(Why.NOT_THERE, f"{pages} were not on {beside}, and at most 1 % may be: it has no room, or a policy forbids it")
