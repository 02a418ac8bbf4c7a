"""No node, rail or path between two nodes is slower than the median one. Found by a tournament of pairs.

On several nodes. A rail is the GPUs of one local rank on all nodes. Of two nodes a slow pair is named, but not which end of it is slow.
"""

import pytest

from gpu_acceptance.inventory.answer import Missing, Why
from gpu_acceptance.measure import localise

UNKNOWN = Missing(Why.NOT_THERE, "which end of a single pair is slow cannot be told: that takes three nodes")


@pytest.fixture
def layout(ranks, parameter):
    """The ranks of each node. Without --localise the validation is skipped, which the profile has declared."""
    if not parameter("localise.asked"):
        pytest.skip("no --localise")
    return localise.layout(ranks.gather("node", ranks.node), ranks.rank)


@pytest.fixture
def exchange(layout, exchange_of):
    return exchange_of("localise")


@pytest.fixture
def hosts(layout, ranks):
    return ranks.gather("host", ranks.host)


@pytest.fixture
def contact(layout, hosts, lost_ranks_fail):
    """Fails the ranks that lose contact, and names them by node and rail."""
    return lost_ranks_fail(lambda rank: layout.name(rank, hosts))


def test_inside(layout, exchange, contact, parameter, check, record):
    """Each node by itself, all at the same time: none is slower inside than the median node."""
    record("localise.inside.ranks", layout.num_rails, "count")
    if layout.num_rails > 1:
        with contact:
            compared = localise.inside(exchange, layout, parameter("localise.suspect_percent"))
            check("localise.inside.deficit", compared.deficit_percent(layout.node), "%", detail=compared.comparison(layout.node))
            check("localise.inside.wrong", exchange.num_wrong, "elements")


def test_rails(layout, exchange, contact, parameter, check, record):
    """Each rail by itself, through all nodes, all at the same time: none is slower than the median rail."""
    with contact:
        compared = localise.rails(exchange, layout, parameter("localise.suspect_percent"))
        rail = compared.slowest
        if layout.num_rails > 1:
            check("localise.rail.deficit", compared.deficit_percent(rail), "%", detail=f"rail {rail}: {compared.comparison(rail)}")
        check("localise.rail.wrong", exchange.num_wrong, "elements")
        record("localise.rail.rate", compared.reference, "GB/s")


def test_pairs(layout, exchange, contact, hosts, parameter, check, record):
    """Pairs of nodes, many at once: no node, and no path between two good ones, is slower than the median node."""
    with contact:
        located = localise.locate(
            exchange,
            layout,
            names=[f"node {node} ({hosts[members[0]]})" for node, members in enumerate(layout.ranks)],
            num_rounds=parameter("localise.num_rounds"),
            suspect_percent=parameter("localise.suspect_percent"),
            seed=parameter("localise.seed"),
        )
        score, path = located.found.scores.get(layout.node), located.worst_path
        check("localise.node.deficit", score.deficit_percent if score else UNKNOWN, "%", detail=located.of_node(layout.node))
        check("localise.path.deficit", path.deficit_percent if path else UNKNOWN, "%", detail=located.of_paths)
        check("localise.pairs.wrong", exchange.num_wrong, "elements")
        record("localise.pairs.suspects", located.suspects, "text")
        record("localise.pairs.rounds", located.found.num_rounds, "count")
        record("localise.pairs.rate", located.rate, "GB/s")
