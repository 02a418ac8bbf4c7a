"""Planted slow GPUs and paths are named by a matrix of copies, for 2 to 16 GPUs."""

import math
from itertools import permutations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gpu_acceptance.measure.peer_matrix import Cell, Matrix, attribution, from_text, num_wrong_of, pairs, to_text

HEALTHY, FLOOR, PATH = 395.0, 375.0, 0.97  # GB/s, as on an H200; the limits as the profiles have them
NOISE = 0.002
few = settings(max_examples=30)  # a matrix of 16 GPUs takes a while

sizes = st.integers(2, 16)
slow = st.floats(0.01, 0.94)  # of the healthy rate; one NVLink of 18 is 0.944


def matrix(num_gpus, out=None, into=None, paths=None, noise=None):
    """A copy is as fast as the slowest thing it passes. `out`, `into`: GPU -> part of the healthy rate; `paths`: of a pair."""
    out, into, paths = out or {}, into or {}, paths or {}
    wobble = noise or (lambda pair: 1.0)
    rates = {pair: HEALTHY * min(out.get(pair[0], 1), into.get(pair[1], 1), paths.get(pair, 1)) for pair in pairs(num_gpus)}
    return Matrix(num_gpus, {pair: Cell(rate * wobble(pair), 0.05, 0) for pair, rate in rates.items()})


def named(found):
    """GPUs whose way out is below the floor, those whose way in is, and the paths."""
    everyone = range(found.num_gpus)
    slow_out = {gpu for gpu in everyone if found.cells[found.fastest_out(gpu)].value < FLOOR}
    slow_in = {gpu for gpu in everyone if found.cells[found.fastest_in(gpu)].value < FLOOR}
    return slow_out, slow_in, {pair for pair in pairs(found.num_gpus) if found.path(pair) < PATH}


@st.composite
def faults(draw, fewest=2, most=16, sound=2):
    """GPUs, which of them are slow out and how slow, which are slow in, and noise; `sound` of them are neither."""
    num_gpus = draw(st.integers(fewest, most))
    order = draw(st.permutations(range(num_gpus)))
    able = order[: num_gpus - sound]
    chosen = st.dictionaries(st.sampled_from(able), slow) if able else st.just({})
    wobbles = draw(st.lists(st.floats(1 - NOISE, 1 + NOISE), min_size=7, max_size=7))
    return num_gpus, draw(chosen), draw(chosen), lambda pair: wobbles[(3 * pair[0] + 5 * pair[1]) % 7]


@given(faults())
@few
def test_slow_gpus_are_named_each_way_and_nothing_else_is_while_two_are_sound(planted):
    num_gpus, out, into, noise = planted
    assert named(matrix(num_gpus, out, into, noise=noise)) == (set(out), set(into), set())


@given(st.integers(3, 16).flatmap(lambda size: st.tuples(st.just(size), st.dictionaries(st.sampled_from(list(pairs(size))), slow))))
@few
def test_slow_paths_are_named_and_no_gpu_is_while_each_has_a_sound_path_each_way(planted):
    num_gpus, paths = planted
    sound = [pair for pair in pairs(num_gpus) if pair not in paths]
    assume({source for source, _ in sound} == {destination for _, destination in sound} == set(range(num_gpus)))
    assert named(matrix(num_gpus, paths=paths)) == (set(), set(), set(paths))


@given(faults(fewest=5, sound=4), slow)
@few
def test_a_slow_path_between_sound_gpus_is_named_beside_slow_gpus(planted, part):
    num_gpus, out, into, noise = planted
    path = tuple(gpu for gpu in range(num_gpus) if gpu not in {*out, *into})[:2]
    assert named(matrix(num_gpus, out, into, {path: part}, noise)) == (set(out), set(into), {path})


@given(st.integers(3, 16), slow, st.sampled_from([0, 1]))
@few
def test_of_two_gpus_both_are_named_for_they_share_the_copy_and_one_sound_one_alone_cannot_be_told(num_gpus, part, gpu):
    assert named(matrix(2, out={gpu: part})) == named(matrix(2, paths={(gpu, 1 - gpu): part})) == ({gpu}, {1 - gpu}, set())
    slow_ones = dict.fromkeys(range(1, num_gpus), part)
    assert named(matrix(num_gpus, slow_ones, slow_ones))[:2] == (set(range(num_gpus)),) * 2


@given(st.integers(2, 5).flatmap(lambda size: st.lists(st.floats(360, 400), min_size=size * (size - 1), max_size=size * (size - 1))))
def test_no_pair_is_slow_unseen_whatever_the_rates_are(rates):
    """Each pair is at least what the limits promise together, or somebody is named; and no path is faster than its GPUs."""
    num_gpus = 1 + next(size for size in range(5) if size * (size + 1) == len(rates))
    found = Matrix(num_gpus, {pair: Cell(rate, 0.0, 0) for pair, rate in zip(pairs(num_gpus), rates, strict=True)})
    assert max(found.path(pair) for pair in pairs(num_gpus)) <= 1
    assert all(found.path(found.slowest_path(gpu)) == min(map(found.path, found.row(gpu))) for gpu in range(num_gpus))
    if named(found) == (set(), set(), set()):
        assert min(rates) >= FLOOR * PATH * (1 - 1e-12)


NAMES = ["rank 0", "rank 1", "rank 2", "rank 3"]


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ([], ""),
        ([(2, 3)], "rank 2 to rank 3"),
        ([(2, 0), (2, 1), (2, 3)], "all that rank 2 sent"),
        ([(0, 2), (1, 2), (3, 2)], "all that rank 2 received"),
        ([(0, 2), (1, 2), (3, 2), (2, 0), (2, 1), (2, 3), (0, 3)], "all that rank 2 sent, all that rank 2 received, rank 0 to rank 3"),
        ([(2, 0), (2, 1)], "rank 2 to rank 0, rank 2 to rank 1"),
    ],
)
def test_whose_copies_are_bad(bad, said):
    assert attribution(bad, NAMES) == said
    assert attribution([(0, 1)], NAMES[:2]) == "rank 0 to rank 1"  # of two GPUs it is nobody's in particular


def test_a_long_list_ends_in_how_many_more():
    names = [f"rank {number}" for number in range(8)]
    bad = [pair for pair in permutations(range(8), 2) if sum(pair) % 2]
    assert attribution(bad, names).startswith("rank 0 to rank 1, rank 0 to rank 3, ")
    assert attribution(bad, names).endswith(", rank 1 to rank 6, 24 more")


cells = st.builds(Cell, st.floats(1e-6, 1e6), st.floats(0, 1000), st.integers(0, 2**40))


@given(st.integers(2, 16), st.data())
@few
def test_a_matrix_can_be_told_in_text(num_gpus, data):
    told = Matrix(num_gpus, {pair: data.draw(cells) for pair in [*pairs(num_gpus)][:5]})
    told = Matrix(num_gpus, {pair: told.cells.get(pair, Cell(395.2, 0.05, 0)) for pair in pairs(num_gpus)})
    got = from_text(to_text(told), num_gpus)
    for pair in pairs(num_gpus):
        assert got.cells[pair].value == pytest.approx(told.cells[pair].value, rel=1e-5)
        assert got.cells[pair].cv_percent == pytest.approx(told.cells[pair].cv_percent, rel=1e-2)
        assert got.cells[pair].num_wrong == told.cells[pair].num_wrong
    got = from_text(to_text(Matrix(2, dict.fromkeys(pairs(2), Cell(math.nan, 0.0, 0)))), 2)
    assert all(math.isnan(cell.value) for cell in got.cells.values())  # what was not read stays so


@pytest.mark.parametrize(
    "text",
    [
        *("[]", "{}", "3", "[[395.1,0.1,0]]", "[[395.1,0.1,0],[395.1,0.1]]", "[[395.1,0.1,0],[395.1,0.1,-1]]"),
        "[[395.1,0.1,0],[0.0,0.1,0]]",
        *("[[395.1,0.1,0],[395.1,-0.1,0]]", "[[395.1,0.1,0],[395.1,NaN,0]]", "[[395.1,0.1,0],[Infinity,0.1,0]]"),
        *('[[395.1,0.1,0],["395.1",0.1,0]]', "[[395.1,0.1,0],[395.1,0.1,true]]", "[[395.1,0.1,0],[395.1,0.1,0.5]]", "nonsense"),
    ],
)
def test_what_is_no_matrix_is_refused(text):
    with pytest.raises(ValueError, match=r"no matrix of 2 GPUs: |Expecting value"):
        from_text(text, 2)


@given(
    st.integers(2, 8).flatmap(lambda size: st.tuples(st.just(size), st.dictionaries(st.sampled_from(list(pairs(size))), st.integers(1, 9))))
)
def test_each_wrong_word_is_held_against_one_gpu(planted):
    num_gpus, wrong = planted
    found = Matrix(num_gpus, {pair: Cell(HEALTHY, 0.0, wrong.get(pair, 0)) for pair in pairs(num_gpus)})
    assert sum(num_wrong_of(gpu, found) for gpu in range(num_gpus)) == sum(wrong.values())


@pytest.mark.parametrize("num_gpus", [3, 8])
@pytest.mark.parametrize("end", [0, 1])
def test_a_gpu_of_which_all_is_wrong_has_all_of_it(num_gpus, end):
    found = Matrix(num_gpus, {pair: Cell(HEALTHY, 0.0, 5 * (pair[end] == 1)) for pair in pairs(num_gpus)})
    assert [num_wrong_of(gpu, found) for gpu in range(num_gpus)] == [5 * (num_gpus - 1) * (gpu == 1) for gpu in range(num_gpus)]
