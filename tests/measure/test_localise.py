from collections import Counter

import pytest
from gloo_ranks import answers_of

from gpu_acceptance.measure import collectives, localise, tournament
from gpu_acceptance.measure.exchange import LostContactError, Route, ring
from gpu_acceptance.measure.localise import Compared, Located

pytestmark = pytest.mark.slow

NAMES = [f"node-{node}" for node in range(8)]
NUM_ELEMENTS = 1001  # of the messages in gloo_pairs.py


def test_a_ring_goes_on_to_the_next_and_a_layout_knows_nodes_and_rails():
    assert [ring([3, 5, 9], 3), ring([3, 5, 9], 9), ring([0, 1], 1), ring([4], 4)] == [Route(5, 9), Route(3, 5), Route(0, 0), None]
    layout = localise.layout([0, 0, 1, 1, 2, 2], rank=3)
    assert (layout.ranks, len(layout.ranks), layout.num_rails) == (((0, 1), (2, 3), (4, 5)), 3, 2)
    assert (layout.node, layout.rail) == (1, 1)
    assert layout.name(5, ["a", "a", "b", "b", "c", "c"]) == "rank 5 (node 2, c, rail 1)"
    with pytest.raises(ValueError, match=r"^nodes of 2, 1, 2 ranks: rails need the same number on each$"):
        localise.layout([0, 0, 1, 2, 2], rank=0)


def test_what_is_compared_is_held_against_the_median():
    compared = Compared((48.0, 24.0, 47.0, 4.7))
    assert (compared.reference, compared.slowest) == (47.0, 3)
    assert [round(compared.deficit_percent(one)) for one in range(4)] == [-2, 49, 0, 90]
    assert compared.comparison(1) == "24 GB/s where the median has 47"
    assert Compared((10.0, 20.0)).reference == 20.0  # of two the faster


class Rounds:
    """An exchange that has these rates, round after round."""

    def __init__(self, *rates):
        self.left = list(rates)

    def measure(self, route):
        rates = self.left.pop(0)
        if isinstance(rates, Exception):
            raise rates
        return rates


@pytest.mark.parametrize(
    ("rates", "kept", "num_left"),
    [
        ([[48.0, 47.9, 48.1, 48.2], [1.0] * 4], (47.9, 48.1), 1),  # nobody is behind: one round
        ([[48.0, 24.0, 48.0, 48.2], [48.1, 48.2, 47.0, 48.3]], (48.1, 48.0), 0),  # a hiccup
        ([[48.0, 24.0, 48.0, 48.2], [48.0, 25.0, 48.0, 48.0]], (25.0, 48.0), 0),
    ],
)
def test_who_is_behind_is_measured_again_and_the_better_rate_counts(rates, kept, num_left):
    exchange, layout = Rounds(*rates), localise.layout([0, 0, 1, 1], rank=0)
    assert localise.inside(exchange, layout, 3.0).gb_per_s == kept
    assert len(exchange.left) == num_left
    by_rail = [[rate[0], rate[2], rate[1], rate[3]] for rate in rates]
    assert localise.rails(Rounds(*by_rail), layout, 3.0).gb_per_s == kept


@pytest.mark.parametrize("step", [localise.inside, localise.rails])
@pytest.mark.parametrize("before", [[], [[24.0, 48.0, 48.0, 48.0]]], ids=["at first", "when measured again"])
def test_who_was_lost_is_not_measured_again(step, before):
    exchange = Rounds(*before, LostContactError([(0, 1)], 30), [48.0] * 4)
    with pytest.raises(LostContactError):
        step(exchange, localise.layout([0, 0, 1, 1], rank=0), 3.0)
    assert exchange.left == [[48.0] * 4]


def located(slow=(), num_nodes=4):
    def measure(pairs):
        return {pair: 4.0 if set(pair) & set(slow) or pair in slow else 48.0 for pair in pairs}

    found = tournament.run(num_nodes, measure, num_rounds=3, suspect_percent=3, seed=1)
    return Located(found, NAMES, [Counter({0: 2, 5: 4}) for _ in NAMES], 48.0)


def test_a_slow_node_is_told_with_its_evidence():
    told = located(slow=[2])
    assert told.suspects == "node-2 91.7 %"
    first, again, rail = told.of_node(2).split("; ")
    assert sorted(first.removeprefix("4 GB/s, median node 48: ").split(", ")) == ["4 with node-0", "4 with node-1", "4 with node-3"]
    assert again.startswith("again, with nodes that passed: 4 with node-")
    assert rail == "rail 5 slowest in 4 of 6 pairs"
    assert "again" not in told.of_node(1)


def test_a_slow_path_is_told_with_its_ends():
    told = located(slow=[(1, 3)])
    assert told.suspects == "path node-1 to node-3 91.7 %"
    assert told.of_paths == "node-1 to node-3: 4 GB/s, at first 4, each has at least 48 elsewhere"


def test_of_many_suspects_the_worst_are_told_and_the_rest_counted():
    scores = {node: tournament.Score(node, ((40, 10.0),), 48.0) for node in range(30)}
    told = Located(tournament.Found(scores, [], 3.0), [f"node-{node}" for node in range(30)], [], 48.0).suspects
    assert told.endswith("node-15 79.2 %, and 14 more")


def test_where_nothing_is_slow_or_nobody_met_nobody_is_told():
    told = located()
    assert told.suspects == "none"
    assert told.of_paths.endswith(": 48 GB/s, each has at least 48 elsewhere")
    told = Located(tournament.Found({}, [], 3.0), NAMES, [Counter()], 48.0)
    assert (told.of_node(0), told.worst_path, told.of_paths, told.suspects) == ("", None, "", "none")


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """The output of four real ranks."""
    return answers_of("gloo_pairs.py", 4, tmp_path_factory.mktemp("gloo"))


def test_all_ranks_know_the_rate_of_every_pair(answers):
    first = answers[0]["sound"]
    assert all(answer["sound"] == first for answer in answers)
    assert [[pair for pair, _ in one] for one in first["rates"]] == [[[0, 1], [2, 3]], [[0, 2], [1, 3]], [[0, 3], [1, 2]]]
    assert all(rate > 0 for one in first["rates"] for _, by_rail in one for rate in by_rail)
    assert first["num_wrong"] == 0


def test_nodes_by_themselves_rails_by_themselves_and_a_pair_of_nodes_over_both_rails(answers):
    first = answers[0]["rings"]
    assert all(answer["rings"] == first for answer in answers)
    assert [len(first[name]) for name in ("inside", "rails", "pair")] == [2, 2, 1]
    assert all(rate > 0 for name in ("inside", "rails", "pair") for rate in first[name])
    assert first["slowest"] in ([[[0, 1]]] * 2, [[[1, 1]]] * 2)  # one rail was the slowest, the same for both nodes
    assert first["num_wrong"] == 0
    assert first["known"] == []  # of two nodes nobody can say which is slow


def test_all_ranks_name_the_same_node(answers):
    assert [answer["located"] for answer in answers] == [{"suspects": "d 90.0 %", "rate": 10.0, "num_rounds": 3 + 3}] * 4


def test_wrong_elements_are_counted_where_they_came_and_where_nothing_moves_all_are(answers):
    assert [answer["wrong"]["num_wrong"] for answer in answers] == [0, 3, 0, 0]
    assert [answer["nothing"] for answer in answers] == [3 * NUM_ELEMENTS] * 4


@pytest.mark.parametrize(
    ("scene", "pairs", "lost", "num_timed"),
    [
        ("lost_inside", [[2, 3]], [2, 3], 0),
        ("lost_in_the_second_round", [[1, 3]], [1, 3], 1),
        ("lost_on_a_rail", [[0, 3], [2, 3]], [3], 0),
    ],
)
def test_all_ranks_know_who_lost_contact_before_anybody_times_anything(scene, pairs, lost, num_timed, answers):
    first = answers[0][scene]
    assert [answer[scene] for answer in answers] == [first] * 4
    assert (first["pairs"], first["lost"], first["num_timed"]) == (pairs, lost, num_timed)


def test_a_rank_that_is_there_and_silent_is_told_with_those_that_waited_for_it(answers):
    text = "no contact within 1 s between rank 0 and rank 3, rank 2 and rank 3; lost by several partners: rank 3"
    assert answers[1]["lost_on_a_rail"]["told"].startswith(f"{text}; to do: ")


def test_in_a_loopback_each_two_ranks_of_a_node_have_one_rate_and_a_lone_rank_has_none(answers):
    met = [[[peer for peer, _ in one["rates"]] for one in answer["loopback"]] for answer in answers]
    assert met == [[[1], [1, 2], []], [[0], [0, 2], []], [[3], [0, 1], []], [[2], [], []]]
    two_nodes = [answer["loopback"][0] for answer in answers]
    assert two_nodes[0]["rates"][0][1] == two_nodes[1]["rates"][0][1] > 0
    assert two_nodes[2]["rates"][0][1] == two_nodes[3]["rates"][0][1] > 0
    assert [one["num_wrong"] for answer in answers for one in answer["loopback"]] == [0] * 12
    assert [answer["loopback_wrong"]["num_wrong"] for answer in answers] == [0, 1, 0, 0]


@pytest.mark.parametrize("collective", collectives.NAMES)
def test_each_node_measures_its_own_collectives_at_the_same_time(collective, answers):
    found = [answer["inside_nodes"][collective] for answer in answers]
    assert [one["num_wrong"] for one in found] == [0] * 4
    for one, other in ((0, 1), (2, 3)):
        assert found[one] == found[other]
        assert found[one]["busbw_gb_per_s"] == pytest.approx(
            4_000 / found[one]["elapsed_s"] / 1e9 * collectives.bus_factor(collective, world_size=2)
        )
    assert found[0]["elapsed_s"] != found[2]["elapsed_s"]


def test_a_node_that_is_all_or_one_rank_has_no_group_but_takes_part_in_making_those_of_others(answers):
    """NCCL splits the communicator of all ranks: those who called it would wait for one who did not."""
    assert [answer["no_groups"] for answer in answers] == [[None, None]] * 4
    assert [answer["takes_part"] for answer in answers] == [1] * 4
