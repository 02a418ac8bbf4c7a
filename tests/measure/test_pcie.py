import math
from types import SimpleNamespace

import pytest
import torch

from gpu_acceptance.measure import pcie
from gpu_acceptance.measure.timing import Blocks

CPU = torch.device("cpu")
NUM_WORDS = 1000  # three full chunks and one of 100
BUFFER_BYTES = 8 * NUM_WORDS


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(pcie, "_CHUNK", 300)


def measure(direction, **options):
    given = {"buffer_bytes": BUFFER_BYTES, "num_copies": 3, "num_samples": 2, "device": CPU, **options}
    return pcie.measure(direction, **given)


@pytest.fixture
def copies(monkeypatch):
    """Calls `after(dst)` when a buffer has been copied, as a link that goes wrong would; the pattern itself is made by other copies."""
    real = torch.Tensor.copy_
    done = SimpleNamespace(after=lambda dst: None, real=real, seen=[])

    def copy(dst, src, *arguments, **options):
        if "non_blocking" not in options:
            return real(dst, src, *arguments, **options)
        done.seen.append((dst.data_ptr(), src.data_ptr()))
        done.real(dst, src, *arguments, **options)
        done.after(dst)
        return dst

    monkeypatch.setattr(torch.Tensor, "copy_", copy)
    return done


@pytest.mark.parametrize("direction", list(pcie.DIRECTIONS))
@pytest.mark.parametrize("num_words", [1, 299, 300, 301, NUM_WORDS])
def test_a_sound_link_has_no_wrong_byte(direction, num_words):
    result = measure(direction, buffer_bytes=8 * num_words)
    assert (result.direction, result.buffer_bytes, result.num_wrong) == (direction, 8 * num_words, 0)
    assert math.isfinite(result.cv_percent)


def flip(dst, byte):
    dst.view(torch.uint8)[byte].bitwise_xor_(1)


@pytest.mark.parametrize(("direction", "ways"), [("h2d", 1), ("d2h", 1), ("bidirectional", 2)])
@pytest.mark.parametrize("byte", [0, 2399, 2400, BUFFER_BYTES - 1])
def test_one_flipped_bit_is_one_wrong_byte_on_each_side(direction, ways, byte, copies):
    copies.after = lambda dst: flip(dst, byte)
    assert measure(direction).num_wrong == ways


@pytest.mark.parametrize("turn", [0, 1])
def test_of_both_directions_one_alone_may_be_wrong(turn, copies):
    copies.after = lambda dst: [flip(dst, byte) for byte in (5, 6, 700) if len(copies.seen) % 2 == turn]
    assert measure("bidirectional").num_wrong == 3


@pytest.mark.parametrize(("direction", "ways"), [("h2d", 1), ("d2h", 1), ("bidirectional", 2)])
def test_copies_that_never_happen_leave_every_byte_wrong(direction, ways, copies):
    copies.real = lambda dst, src, *_, **__: dst
    assert measure(direction).num_wrong == ways * BUFFER_BYTES


def test_the_two_directions_go_opposite_ways_and_carry_other_data(copies):
    measure("bidirectional", num_copies=1, num_samples=2)
    (to_device, from_host), (to_host, from_device) = copies.seen[:2]
    assert len({to_device, from_host, to_host, from_device}) == 4
    assert to_host - from_host == BUFFER_BYTES  # one mapping of the host has both
    h2d, d2h = (
        {int(word) for _, part in pcie._with_pattern(name, torch.empty(NUM_WORDS, dtype=torch.int64)) for word in part}
        for name in ("h2d", "d2h")
    )
    assert len(h2d) == len(d2h) == len(h2d | d2h) / 2 == NUM_WORDS


@pytest.mark.parametrize(("direction", "ways"), [("h2d", 1), ("d2h", 1), ("bidirectional", 2)])
def test_the_median_sample_is_the_figure_of_all_that_was_moved(direction, ways):
    result = measure(direction, num_copies=5, in_turn=lambda work: work() and Blocks((4e-6, 1e-6, 2e-6), 1))
    moved_gb = ways * 5 * BUFFER_BYTES / 1e9
    assert (result.sample_s, result.gb_per_s, result.best_gb_per_s) == (
        2e-6,
        pytest.approx(moved_gb / 2e-6),
        pytest.approx(moved_gb / 1e-6),
    )
    assert result.cv_percent == pytest.approx(100 * 1.527525 / 2.333333, rel=1e-5)


def test_nothing_is_timed_but_in_turn_and_each_sample_is_announced(copies):
    told = []

    def in_turn(work):
        told.append(f"begin {len(copies.seen)}")
        blocks = work()
        told.append(f"end {len(copies.seen)}")
        return blocks

    measure("h2d", in_turn=in_turn, before_sample=lambda: told.append(len(copies.seen)))
    assert told == ["begin 0", 0, 3, 6, 9, 12, "end 15"]  # three samples do not count, two do


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"direction": "d2d"}, r"unknown direction 'd2d'; known: h2d, d2h, bidirectional"),
        ({"buffer_bytes": 0}, r"buffer_bytes=0: a positive multiple of 8"),
        ({"buffer_bytes": -8}, r"buffer_bytes=-8: a positive multiple of 8"),
        ({"buffer_bytes": 12}, r"buffer_bytes=12: a positive multiple of 8"),
        ({"num_copies": 0}, r"num_copies=0: at least 1"),
        ({"num_samples": 1}, r"num_blocks=1: at least 2, or there is no spread"),
        ({"cpus": frozenset()}, r"cpus=\[\]: numbers of CPUs, at least one; None where they are not known"),
        ({"cpus": frozenset({0, -1})}, r"cpus=\[-1, 0\]: numbers of CPUs, at least one; None where they are not known"),
        ({"device": torch.device("meta")}, r"cannot copy to and from device 'meta'; known: cpu, cuda"),
    ],
)
def test_nonsense_is_refused(options, text):
    with pytest.raises(ValueError, match=f"^{text}$"):
        measure(**{"direction": "h2d", **options})
