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
    assert result.num_wrong == 0
    assert math.isfinite(result.spread.percent)


BOTH = pytest.mark.parametrize(("direction", "ways"), [("h2d", 1), ("d2h", 1), ("bidirectional", 2)])


def flip(dst, byte):
    dst.view(torch.uint8)[byte].bitwise_xor_(1)


@BOTH
@pytest.mark.parametrize("byte", [0, 2399, 2400, BUFFER_BYTES - 1])
def test_one_flipped_bit_is_one_wrong_byte_on_each_side(direction, ways, byte, copies):
    copies.after = lambda dst: flip(dst, byte)
    assert measure(direction).num_wrong == ways


@pytest.mark.parametrize("turn", [0, 1])
def test_of_both_directions_one_alone_may_be_wrong(turn, copies):
    copies.after = lambda dst: [flip(dst, byte) for byte in (5, 6, 700) if len(copies.seen) % 2 == turn]
    assert measure("bidirectional").num_wrong == 3


NUM_PAGES = 16
PAGED = {"buffer_bytes": 4096 * NUM_PAGES, "num_copies": 16, "num_samples": 7}  # ten samples, of which three do not count
PROVED = {"h2d": 4096 * NUM_PAGES, "d2h": 8 * NUM_PAGES, "bidirectional": (4096 + 8) * NUM_PAGES}  # bytes after each sample
NUM_COPIES = {"h2d": 160, "d2h": 160, "bidirectional": 320}


def skip(copies, is_skipped):
    """Make some copies, numbered from 0, do nothing."""
    real = copies.real
    copies.real = lambda dst, src, *rest, **options: dst if is_skipped(len(copies.seen) - 1) else real(dst, src, *rest, **options)


@pytest.mark.parametrize("direction", list(pcie.DIRECTIONS))
@pytest.mark.parametrize("samples", [range(10), [0], [4], [8]])
def test_corrupted_samples_are_found_though_others_or_their_last_copies_are_sound(direction, samples, copies):
    each, ways = NUM_COPIES[direction] // 10, len(pcie.DIRECTIONS[direction])
    last = NUM_COPIES[direction] - ways
    copies.after = lambda dst: dst.bitwise_not_() if (len(copies.seen) - 1) // each in samples and len(copies.seen) <= last else dst
    assert measure(direction, **PAGED).num_wrong == PROVED[direction]
    assert len(copies.seen) == NUM_COPIES[direction]


@BOTH
def test_skipped_copies_are_found_though_the_first_were_real(direction, ways, copies):
    skip(copies, lambda number: number >= ways)
    later = 8 * 8 * NUM_PAGES if direction != "h2d" else 0  # after the last sample host memory shows the poison of nine
    assert measure(direction, **PAGED).num_wrong == PROVED[direction] + later
    skip(copies, lambda number: True)
    assert measure(direction).num_wrong == ways * BUFFER_BYTES


@pytest.mark.parametrize("direction", list(pcie.DIRECTIONS))
@pytest.mark.parametrize("sample", [0, 4, 9])
def test_one_sample_that_copied_nothing_is_found(direction, sample, copies):
    each = NUM_COPIES[direction] // 10
    skip(copies, lambda number: number // each == sample)
    num_wrong = measure(direction, **PAGED).num_wrong
    assert num_wrong == PROVED[direction] if sample else num_wrong >= PROVED[direction]


@pytest.mark.parametrize("page", [0, 7, NUM_PAGES - 1])
def test_one_page_that_stays_old_in_one_sample_is_found_in_host_memory(page, copies):
    real = copies.real

    def all_but_a_page(dst, src, *rest, **options):
        kept = dst[512 * page : 512 * (page + 1)].clone()
        real(dst, src, *rest, **options)
        if 64 <= len(copies.seen) - 1 < 80:
            dst[512 * page : 512 * (page + 1)] = kept

    copies.real = all_but_a_page
    assert measure("d2h", **PAGED).num_wrong == 8


def test_in_host_memory_every_byte_is_compared_after_the_last_sample(copies):
    copies.after = lambda dst: flip(dst, 4096) if len(copies.seen) == 160 else dst  # the first word of a page: no sample's own
    assert measure("d2h", **PAGED).num_wrong == 1


def test_each_sample_proves_another_word_of_the_pages():
    way, offsets = pcie._Way("d2h", torch.zeros(512, dtype=torch.int64), CPU), set()
    for _ in range(512):
        way.prove_and_poison()
        offsets.add(way.place()[0])
    assert offsets == set(range(512))


@pytest.mark.parametrize("direction", list(pcie.DIRECTIONS))
def test_the_destination_holds_poison_when_ranks_meet_and_no_sample_has_begun(direction, copies):
    met = []
    places = {}
    copies.after = lambda dst: places.setdefault(dst.data_ptr(), dst)
    pattern = {name: next(pcie.with_pattern(name, torch.empty(300, dtype=torch.int64)))[1] for name in ("h2d", "d2h")}

    def before_sample():
        for name, dst in zip(pcie.DIRECTIONS[direction], places.values(), strict=False):
            met.append(int((dst[:300] == ~pattern[name]).sum()))

    measure(direction, **PAGED, before_sample=before_sample)
    assert len(met) == 9 * len(pcie.DIRECTIONS[direction])  # none was known before the first
    poisoned = {"h2d": {300}, "d2h": {0, 1}, "bidirectional": {300, 0, 1}}
    assert set(met) == poisoned[direction]


def test_the_two_directions_go_opposite_ways_and_carry_other_data(copies):
    measure("bidirectional", num_copies=1, num_samples=2)
    (to_device, from_host), (to_host, from_device) = copies.seen[:2]
    assert len({to_device, from_host, to_host, from_device}) == 4
    assert to_host - from_host == BUFFER_BYTES  # one mapping of the host has both
    h2d, d2h = (
        {int(word) for _, part in pcie.with_pattern(name, torch.empty(NUM_WORDS, dtype=torch.int64)) for word in part}
        for name in ("h2d", "d2h")
    )
    assert len(h2d) == len(d2h) == len(h2d | d2h) / 2 == NUM_WORDS


@BOTH
def test_the_median_sample_is_the_figure_of_all_that_was_moved(direction, ways):
    result = measure(direction, num_copies=5, in_turn=lambda work: work() and Blocks((4e-6, 1e-6, 2e-6), 1))
    moved_gb = ways * 5 * BUFFER_BYTES / 1e9
    assert (result.sample_s, result.gb_per_s, result.spread.best) == (
        2e-6,
        pytest.approx(moved_gb / 2e-6),
        pytest.approx(moved_gb / 1e-6),
    )
    assert result.spread.percent == pytest.approx(100 * 1.527525 / 2.333333, rel=1e-5)


def test_nothing_is_timed_but_in_turn_and_each_sample_is_announced(copies):
    told = []

    def in_turn(work):
        told.append(f"begin {len(copies.seen)}")
        blocks = work()
        told.append(f"end {len(copies.seen)}")
        return blocks

    measure("h2d", in_turn=in_turn, before_sample=lambda: told.append(len(copies.seen)))
    assert told == ["begin 0", 0, 3, 6, 9, 12, "end 15"]  # three samples do not count, two do
