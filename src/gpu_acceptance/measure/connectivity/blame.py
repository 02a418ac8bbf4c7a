"""Whose fault is a connection that did not come about? Pure."""

from collections import Counter
from collections.abc import Iterable

Way = tuple[int, int]  # from a node, to a node


def blamed(ways: Iterable[Way]) -> dict[int, list[Way]]:
    """By node, the failed ways that are held against it: each against the end that has more of them; of as many, against both."""
    ways = sorted(set(ways))
    of_node = Counter(node for way in ways for node in way)
    found: dict[int, list[Way]] = {}
    for way in ways:
        for node in way:
            if of_node[node] == max(of_node[one] for one in way):
                found.setdefault(node, []).append(way)
    return found
