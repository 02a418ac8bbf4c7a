"""The CPUs and the memory beside a GPU: what a reading of its host link must be made with. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from gpu_acceptance.inventory.answer import Answer, Missing, Why
from gpu_acceptance.inventory.cpu import NumaNode
from gpu_acceptance.inventory.parsing import cpus_in


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

    def reading(self, value: float, pages_by_node: Mapping[int, int], *, is_bound: bool) -> Answer[float]:
        """The value, if all of these pages lie beside the GPU: from farther away it says nothing of the link alone."""
        if self.node is None:
            return value
        if isinstance(self.node, Missing):
            return self.node
        far = sum(num_pages for number, num_pages in pages_by_node.items() if number != self.node.number)
        if pages_by_node and not far:
            return value
        if not pages_by_node:
            return Missing(Why.NOT_SUPPORTED, "/proc/self/numa_maps does not say where the host memory was")
        beside = f"NUMA node {self.node.number}, beside the GPU"
        if not is_bound:
            return Missing(Why.NOT_PERMITTED, f"this process may run on no CPU of {beside}: the host memory was elsewhere")
        pages = f"{far} of {sum(pages_by_node.values())} pages of host memory"
        return Missing(Why.NOT_THERE, f"{pages} were not on {beside}: it has no room, or a policy forbids it")
