"""The bounds `equals`, `uniform` and `peers`, unstable figures, and the announced repeat."""

import math

import pytest

from gpu_acceptance.measure.pace import Spread
from gpu_acceptance.record.figure import make_figure
from gpu_acceptance.record.outcome import Outcome, Status
from gpu_acceptance.record.row import Attempt
from gpu_acceptance.thresholds.limit import ByNodes, Peers
from gpu_acceptance.verdict.judge import wants_repeat
from tests.judging import METRIC, all_equal, make_attempt, make_job, make_limit, make_profile, make_record, with_record
from tests.verdict.test_judge import SOURCE, judge, judge_values, the_one


def test_equals():
    limit = make_limit("nccl.all_reduce.algorithm", equals="NVLS", unit="text", scope="job")
    assert the_one(judge_values(all_equal("NVLS"), limit, unit="text")).status is Status.HELD
    missed = the_one(judge_values({0: "NVLS", 1: "RING"}, limit, unit="text"))
    assert missed.status is Status.MISSED
    assert missed.message == f"nccl.all_reduce.algorithm = RING, need == NVLS {SOURCE} (job)"


@pytest.mark.parametrize(
    ("value", "wanted", "status"),
    [
        (1, 1.0, Status.HELD),
        (True, True, Status.HELD),
        (False, True, Status.MISSED),
        (math.nextafter(1.0, 2), 1.0, Status.MISSED),
    ],
)
def test_equals_compares_numbers_by_value_and_bools_by_type(value, wanted, status):
    assert the_one(judge_values({0: value}, make_limit(equals=wanted))).status is status


def test_equals_one_of_several():
    limit = make_limit("nccl.transport.internode", equals=("IB", "RoCE"), unit="text", scope="node")
    assert the_one(judge_values(all_equal("RoCE"), limit, unit="text")).status is Status.HELD
    missed = the_one(judge_values({0: "IB", 1: "Socket"}, limit, unit="text"))
    assert (missed.status, missed.asked) == (Status.MISSED, "IB or RoCE")
    assert missed.message.startswith("nccl.transport.internode = Socket, need == IB or RoCE [")
    number = the_one(judge_values(all_equal(1), limit, unit="text"))
    assert (number.status, "a number cannot be compared with a text" in number.message) == (Status.INVALID, True)


BY_NODES = ByNodes({"2": 400.0, "3-8": 300.0, "9-9999": None})


@pytest.mark.parametrize(
    ("num_nodes", "value", "status", "text"),
    [
        (2, 400.0, Status.HELD, ", need >= 400 GB/s ["),
        (2, 399.0, Status.MISSED, ", need >= 400 GB/s ["),
        (3, 399.0, Status.HELD, ", need >= 300 GB/s ["),
        (8, 299.0, Status.MISSED, ", need >= 300 GB/s ["),
        (9, 1.0, Status.NOT_APPLICABLE, "not applicable: h200-sxm.yaml asks for nothing on 9 nodes"),
        (1, 999.0, Status.NO_LIMIT, "no limit on 1 node; h200-sxm.yaml lists 2, 3-8, 9-9999 (never interpolated)"),
    ],
)
def test_a_bound_by_the_number_of_nodes(num_nodes, value, status, text):
    limit = make_limit(METRIC, at_least=BY_NODES, scope="job")
    judgement = the_one(judge_values({0: value}, limit, job=make_job(num_nodes * 2, 2)))
    assert (judgement.status, text in judgement.message) == (status, True), judgement.message


ONE_ULP = math.nextafter(1.0, 2)


@pytest.mark.parametrize(
    ("values", "ranks", "text"),
    [
        (
            {0: "570.2", 1: "570.2", 2: "570.1", 3: "570.2"},
            (2,),
            f"= 570.1 where most have 570.2 on ranks 0-1,3, need equal on all {SOURCE} on rank 2 (node-00, GPU 2, serial 165390002)",
        ),
        ({0: "a", 1: "b"}, (0, 1), "= a without a majority (a on rank 0, b on rank 1), need equal on all"),
        ({0: 1.0, 1: 1.0, 2: 1.0, 3: ONE_ULP}, (3,), "= 1.0000000000000002 where most have 1 on ranks 0-2"),
        ({0: True, 1: 1, 2: 1}, (0,), "= true where most have 1 on ranks 1-2"),
    ],
    ids=["the odd one is named", "a tie names all", "a difference of one ulp", "types count"],
)
def test_uniform(values, ranks, text):
    judgement = the_one(judge_values(values, make_limit(uniform=True, unit="text"), unit="text"))
    assert (judgement.status, judgement.ranks) == (Status.MISSED, ranks)
    assert judgement.message.startswith(f"{METRIC} {text}")


def test_uniform_of_a_job_compares_its_ranks():
    limit = make_limit(uniform=True, scope="job")
    assert the_one(judge_values(all_equal(3), limit)).status is Status.HELD
    assert the_one(judge_values({0: 3}, limit, job=make_job(2))).status is Status.NOT_MEASURED
    assert the_one(judge_values({0: 3, 1: 4, 2: 3}, limit)).ranks == (1,)


def test_uniform_compares_ranks_within_an_attempt_and_a_difference_in_any_of_them_counts():
    profile = make_profile(make_limit(uniform=True, unit="text"))

    def status_of(*values_of_attempts):
        attempts = [make_attempt(values, unit="text", number=number) for number, values in enumerate(values_of_attempts, start=1)]
        return the_one(judge(attempts, profile, make_job(2), {}, "hbm"))

    assert status_of({0: "a", 1: "a"}, {0: "b", 1: "b"}).status is Status.HELD
    for odd in (({0: "a", 1: "c"}, {0: "b", 1: "b"}), ({0: "a", 1: "a"}, {0: "b", 1: "c"})):
        assert status_of(*odd).status is Status.MISSED


def test_uniform_over_one_figure_proves_nothing():
    judgement = the_one(judge_values({0: 3}, make_limit(uniform=True)))
    assert judgement.status is Status.NOT_APPLICABLE
    assert judgement.message == f"{METRIC}: not applicable: one figure has nothing to be equal to"
    assert the_one(judge_values({0: math.nan}, make_limit(uniform=True))).status is Status.INVALID


@pytest.mark.parametrize(("scope", "values"), [("rank", {0: 3}), ("node", {0: 3, 1: 3})])
def test_uniform_compares_a_unit_with_others_and_not_with_itself(scope, values):
    """The second attempt of a rank, and the second rank of a node, are no second unit."""
    attempts = tuple(make_attempt(values, number) for number in (1, 2))
    judgement = the_one(judge(attempts, make_profile(make_limit(uniform=True, scope=scope)), make_job(len(values)), {}, "hbm"))
    assert judgement.status is Status.NOT_APPLICABLE


# Attempts


def attempts(first, second=None, *, spreads=(1.0, 1.0)):
    made = [make_attempt(first, 1, spread=spreads[0])]
    return made if second is None else [*made, make_attempt(second, 2, spread=spreads[1])]


STEADY = make_limit(spread_at_most=2.0)


@pytest.mark.parametrize(
    ("bounds", "value", "best", "status"),
    [
        ({"at_least": 337}, 371.0, 380.0, Status.UNSTABLE),
        ({"at_least": 587}, 371.0, 380.0, Status.MISSED),
        ({"at_least": 587}, 371.0, 587.0, Status.UNSTABLE),
        ({"at_least": 587}, 371.0, None, Status.UNSTABLE),
        ({"at_least": 587}, 371.0, 300.0, Status.UNSTABLE),  # no best block is worse than the median
        ({"at_most": 5}, 9.0, 6.0, Status.MISSED),
        ({"at_most": 5}, 9.0, 5.0, Status.UNSTABLE),
        ({"equals": 5.0}, 9.0, 6.0, Status.UNSTABLE),
    ],
)
def test_an_unstable_figure_is_missed_where_its_best_block_misses_as_well(bounds, value, best, status):
    limit = make_limit(**{"at_least": None, **bounds}, spread_at_most=2)
    figure = make_figure(METRIC, value, "GB/s", judged=True, spread=Spread(12.0, best))
    attempt = Attempt(number=1, ranks=(make_record(0, figures=(figure,)),))
    judged = the_one(judge((attempt,), make_profile(limit), make_job(1), {}, limit.subject))
    assert judged.status is status
    assert ("best block" in judged.message) == (status is Status.MISSED)


def test_an_unstable_figure_is_not_judged():
    judgement = the_one(judge(attempts({0: 1.0}, spreads=(2.1, 0)), make_profile(STEADY), make_job(1), {}))
    assert judgement.status is Status.UNSTABLE
    why = "= 1 GB/s with a spread of 2.1 %, above 2 %: too unstable to judge"
    assert judgement.message == f"{METRIC} {why}, need >= 100 GB/s {SOURCE} on rank 0 (node-00, GPU 0, serial 165390000)"


@pytest.mark.parametrize(("num_ranks", "status"), [(2, Status.HELD), (4, Status.UNSTABLE)])
def test_a_spread_may_be_allowed_by_size(num_ranks, status):
    limit = make_limit(spread_at_most={2: 5.0, 4: 2.0})
    both = attempts(dict.fromkeys(range(num_ranks), 120.0), spreads=(3.0, 0))
    assert the_one(judge(both, make_profile(limit), make_job(num_ranks), {})).status is status


@pytest.mark.parametrize(
    ("first", "second", "status"),
    [
        ((1.0, 5.0), (120.0, 1.0), Status.HELD),
        ((1.0, 5.0), (50.0, 1.0), Status.MISSED),
        ((1.0, 5.0), (120.0, 3.0), Status.UNSTABLE),
        ((50.0, 1.0), (120.0, 1.0), Status.MISSED),  # the worst attempt counts for a floor
    ],
)
def test_the_repeat_replaces_an_unstable_figure_and_no_other(first, second, status):
    both = attempts({0: first[0]}, {0: second[0]}, spreads=(first[1], second[1]))
    assert the_one(judge(both, make_profile(STEADY), make_job(1), {})).status is status


def test_a_repeat_without_a_figure_replaces_nothing():
    both = [*attempts({0: 1.0}, spreads=(5.0, 0)), Attempt(number=2, ranks=(make_record(0, attempt=2),))]
    assert the_one(judge(both, make_profile(STEADY), make_job(1), {})).status is Status.UNSTABLE


def test_an_impossible_unstable_figure_may_be_repeated():
    limit = make_limit(spread_at_most=2.0, ceiling=450)
    assert the_one(judge(attempts({0: 900.0}, spreads=(5.0, 0)), make_profile(limit), make_job(1), {})).status is Status.UNSTABLE


def test_a_repeat_is_wanted_for_an_unstable_figure():
    judged = judge(attempts({0: 120.0}, spreads=(5.0, 0)), make_profile(STEADY), make_job(1), {})
    assert wants_repeat(judged, 1) == f"unstable: {METRIC}"
    assert wants_repeat(judged, 2) is None
    assert wants_repeat(judge(attempts({0: 120.0}), make_profile(STEADY), make_job(1), {}), 1) is None


def test_no_repeat_is_wanted_where_a_floor_was_missed():
    values = {**all_equal(120.0), 2: 50.0}
    judged = judge(attempts(values), make_profile(make_limit(peers=Peers(0.03, 0.0), at_least=100)), make_job(4), {})
    assert [judgement.status for judgement in judged] == [Status.MISSED, Status.MISSED]
    assert wants_repeat(judged, 1) is None


# Peers: the rule itself is tested in test_bounds.py

PEERS = make_limit(peers=Peers(deficit_at_most=0.03, sigma=0.0))


def test_a_unit_behind_its_peers_is_named():
    judgement = the_one(judge_values({**all_equal(100.0, 8), 5: 91.0}, PEERS))
    assert judgement.status is Status.MISSED
    said = "= 91 GB/s, 9 % below its peers' median 100, need <= 3 % below its peers"
    assert judgement.message == f"{METRIC} {said} {SOURCE} on rank 5 (node-00, GPU 5, serial 165390005)"
    assert judgement.margin == pytest.approx(-2.0)
    assert wants_repeat((judgement,), 1) == f"behind its peers: {METRIC}"


@pytest.mark.parametrize(("rank", "status"), [(5, Status.MISSED), (6, Status.HELD)])
def test_only_the_same_unit_behind_in_both_attempts_misses(rank, status):
    both = attempts({**all_equal(100.0, 8), 5: 91.0}, {**all_equal(100.0, 8), rank: 91.0})
    judgement = the_one(judge(both, make_profile(PEERS), make_job(8), {}))
    assert judgement.status is status
    assert judgement.ranks[0] == 5 or status is Status.HELD


def test_a_miss_that_nothing_cleared_stands():
    both = [*attempts({**all_equal(100.0, 8), 5: 91.0}), Attempt(number=2, ranks=(make_record(5, Outcome.ERROR, attempt=2),))]
    assert the_one(judge(both, make_profile(PEERS), make_job(8), {})).ranks == (5,)


def test_two_units_cannot_tell_which_is_odd():
    alone = the_one(judge_values({0: 100.0, 1: 99.0}, PEERS))
    assert (alone.status, alone.message) == (Status.NOT_MEASURED, f"{METRIC}: not measured: needs 3 units to name the odd one")
    floor, peers = judge_values({0: 100.0, 1: 99.0}, make_limit(peers=Peers(0.03, 0.0), at_least=40))
    assert floor.status is Status.HELD
    assert (peers.status, peers.message) == (Status.NOT_APPLICABLE, f"{METRIC}: not applicable: needs 3 units to name the odd one")


@pytest.mark.parametrize(
    ("first", "second", "spread", "difference"),
    [
        ({0: 100.0, 1: 96.3}, None, None, 0.037),
        ({0: 96.3, 1: 100.0}, None, 3.6, 0.037),
        ({0: 96.3, 1: 100.0}, None, 3.8, None),  # their blocks lie as far apart
        ({0: 100.0, 1: 97.0}, None, None, None),  # as far as the limit of peers allows
        ({0: 100.0, 1: 96.3}, {0: 100.0, 1: 99.0}, None, None),  # one good attempt clears both
        ({0: 100.0, 1: 90.0}, {0: 96.0, 1: 100.0}, None, 0.04),
        ({0: 0.0, 1: 0.0}, None, None, None),
    ],
)
def test_two_units_that_differ_are_told_and_neither_is_accused(first, second, spread, difference):
    limit = make_limit(peers=Peers(0.03, 0.0), at_least=0)
    made = [make_attempt(values, number, spread=spread) for number, values in enumerate(filter(None, (first, second)), 1)]
    floor, peers = judge(made, make_profile(limit), make_job(2), {}, limit.subject)
    assert (floor.status, peers.status) == (Status.HELD, Status.NOT_APPLICABLE)
    assert ("differ" in peers.message) == (difference is not None)
    if difference is not None:
        worse = min(made[-1].ranks, key=lambda record: record.figures[0].value)
        assert f"two that differ by {100 * difference:.3g} %, {worse.figures[0].value:g} GB/s on rank {worse.rank}" in peers.message
        assert "cannot tell which of them is odd" in peers.message


def test_peers_around_zero_cannot_be_judged():
    judgement = the_one(judge_values({0: 1.0, 1: 0.0, 2: 0.0, 3: 0.0}, PEERS))
    assert judgement.status is Status.INVALID
    assert f"{METRIC} has no peers in its attempt whose median is above zero, need <= 3 % below its peers" in judgement.message
    assert judgement.ranks == (0, 1, 2, 3)


def test_units_that_were_never_measured_together_cannot_be_judged():
    limit = make_limit(peers=Peers(0.03, 0.0), spread_at_most=2.0)
    first = with_record(make_attempt({0: 100.0, 1: 100.0}, 1, spread=1.0), make_record(2, Outcome.ERROR))
    second = make_attempt({2: 100.0}, 2, spread=1.0)
    assert the_one(judge([first, second], make_profile(limit), make_job(3), {})).status is Status.INVALID


# Nothing depends on order


REPLAYS = make_limit("counters.pcie.replays", at_most=8, unit="count")
HEAT = make_limit("counters.throttle.sw_thermal", at_most=0, unit="s")
FELL = "fell from 9 to 3"


def judge_least(limit, *values):
    """One attempt for each value; the first is the least that a counter rose, the others are whole."""
    figures = [
        make_figure(limit.metric, value, limit.unit, judged=True, is_least=not place, detail=FELL) for place, value in enumerate(values)
    ]
    made = tuple(Attempt(number=number, ranks=(make_record(0, counters=(one,)),)) for number, one in enumerate(figures, 1))
    return judge(made, make_profile(limit), make_job(1), {}, "hbm")


@pytest.mark.parametrize(
    ("limit", "values", "status", "says"),
    [
        (REPLAYS, [9], Status.MISSED, "counters.pcie.replays = 9 count (fell from 9 to 3), or more, need <= 8 count"),
        (REPLAYS, [8], Status.INVALID, f"counters.pcie.replays = at least 8 count, which decides nothing: {FELL}, need <= 8 count"),
        (REPLAYS, [8, 0], Status.INVALID, "counters.pcie.replays = at least 8 count"),  # an error that nobody counted remains
        (HEAT, [0.0], Status.UNSTABLE, f"counters.throttle.sw_thermal = at least 0 s, which decides nothing: {FELL}, need <= 0 s"),
        (HEAT, [0.0, 0.0], Status.HELD, "counters.throttle.sw_thermal = 0 s"),
        (HEAT, [0.0, 1.5], Status.MISSED, "counters.throttle.sw_thermal = 1.5 s"),
        (make_limit("counters.infiniband.sent_bytes", at_least=3, unit="bytes"), [3], Status.HELD, "= 3 bytes"),
        (make_limit("counters.infiniband.sent_bytes", equals=3, unit="bytes"), [3], Status.INVALID, "decides nothing"),
    ],
)
def test_the_least_that_a_counter_rose_decides_only_what_more_would_not_change(limit, values, status, says):
    (judgement,) = judge_least(limit, *values)
    assert judgement.status is status
    assert says in judgement.message


def test_a_time_that_nobody_knows_is_measured_again():
    assert wants_repeat(judge_least(HEAT, 0.0), 1) == "unstable: counters.throttle.sw_thermal"
    assert wants_repeat(judge_least(REPLAYS, 1), 1) is None
