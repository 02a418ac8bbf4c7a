"""Copies between buffers that stand for GPUs: what is measured, what is proved, and that planted faults are found where they are."""

from types import SimpleNamespace

import pytest
import torch

from gpu_acceptance.measure import p2p
from gpu_acceptance.measure.peer_matrix import pairs

CPU = torch.device("cpu")
NUM_WORDS = 300
NUM_SAMPLES, NUM_COPIES = 3, 4  # and one sample more, which is not timed


def bandwidth(mode="unidirectional", num_gpus=3, **options):
    given = {"devices": [CPU] * num_gpus, "num_bytes": 8 * NUM_WORDS, "num_copies": NUM_COPIES, "num_samples": NUM_SAMPLES, **options}
    return p2p.bandwidth(mode, **given)


def latency(num_gpus=3, **options):
    return p2p.latency(**{"devices": [CPU] * num_gpus, "num_round_trips": 5, "num_samples": NUM_SAMPLES, **options})


def sent_by(gpu):
    """The first word of all that it sends."""
    return int(p2p._words_of(gpu, 1, CPU))


@pytest.fixture
def copies(monkeypatch):
    """Calls `copy(dst, src)` where something is copied between two GPUs; what is known of them without copying is made by other calls."""
    real = torch.Tensor.copy_
    link = SimpleNamespace(copy=real, real=real, num_seen=0)

    def copy(dst, src, *arguments, **options):
        if "non_blocking" not in options:
            return real(dst, src, *arguments, **options)
        link.num_seen += 1
        link.copy(dst, src)
        return dst

    monkeypatch.setattr(torch.Tensor, "copy_", copy)
    return link


@pytest.mark.parametrize("mode", p2p.MODES)
@pytest.mark.parametrize("num_gpus", [2, 3, 4])
def test_sound_gpus_have_a_rate_for_each_pair_and_no_wrong_word(mode, num_gpus, copies):
    found = bandwidth(mode, num_gpus)
    assert set(found.cells) == set(pairs(num_gpus))
    assert found.wrong() == {}
    assert all(cell.value > 0 and cell.cv_percent >= 0 for cell in found.cells.values())
    assert copies.num_seen == len(found.cells) * (1 + NUM_SAMPLES) * NUM_COPIES


def test_the_median_sample_is_the_rate_and_the_first_does_not_count(monkeypatch):
    seconds = iter([5.0, 1e-6, 4e-6, 2e-6] * 2)
    real = p2p._on_cpu_s
    monkeypatch.setattr(p2p, "_on_cpu_s", lambda *way: (real(*way), next(seconds))[1])
    found = bandwidth(num_gpus=2)
    assert found.cells[0, 1].value == pytest.approx(NUM_COPIES * 8 * NUM_WORDS / 1e9 / 2e-6)
    assert found.cells[0, 1].cv_percent == pytest.approx(100 * 1.527525 / 2.333333, rel=1e-5)


@pytest.mark.parametrize("mode", p2p.MODES)
def test_wrong_words_are_counted_for_the_pair_that_left_them(mode, copies):
    def copy(dst, src):
        copies.real(dst, src)
        if int(src[0]) == sent_by(1):
            dst[7] ^= 1 << 40

    copies.copy = copy
    assert bandwidth(mode).wrong() == {(1, 0): 1, (1, 2): 1}
    other = p2p._words_of(2, NUM_WORDS, CPU)  # sound in itself
    copies.copy = lambda dst, src: copies.real(dst, other if int(src[0]) == sent_by(1) else src)
    assert bandwidth(mode).wrong() == {(1, 0): NUM_WORDS, (1, 2): NUM_WORDS}
    copies.copy = lambda dst, src: None
    assert bandwidth(mode).wrong() == dict.fromkeys(pairs(3), NUM_WORDS)


@pytest.mark.parametrize("sample", range(1 + NUM_SAMPLES))
def test_one_sample_that_copied_nothing_is_found_and_named(sample, copies):
    copies.copy = lambda dst, src: copies.real(dst, src) if (copies.num_seen - 1) // NUM_COPIES != sample else None
    first_pair = bandwidth().wrong()
    assert first_pair == {next(iter(first_pair)): NUM_WORDS}


def test_no_word_of_one_gpu_is_a_word_of_another():
    sent = {int(word) for gpu in range(16) for word in p2p._words_of(gpu, NUM_WORDS, CPU)}
    assert len(sent) == 16 * NUM_WORDS


def test_pairs_that_share_no_gpu_copy_at_once_and_both_directions_only_where_asked(monkeypatch):
    together = []
    real = p2p._sample_s
    monkeypatch.setattr(p2p, "_sample_s", lambda ways, num: together.append(len(ways)) or real(ways, num))
    for mode, num_rounds, num_at_once in (("unidirectional", 6, 2), ("bidirectional", 3, 4)):
        together.clear()
        bandwidth(mode, num_gpus=4)
        assert together == [num_at_once] * num_rounds * (1 + NUM_SAMPLES)


def test_small_copies_go_to_and_fro_between_each_pair(copies):
    found = latency()
    assert set(found.cells) == set(pairs(3))
    assert found.cells[0, 2] == found.cells[2, 0]
    assert copies.num_seen == 3 * (1 + NUM_SAMPLES) * 2 * 5
    assert found.wrong() == {}


@pytest.mark.parametrize("directions", [{0}, {1}, {0, 1}])
def test_a_small_copy_that_never_happens_in_one_direction_or_both_is_wrong(directions, copies):
    calls = iter(range(10**6))  # there and back in turns: on a CPU all ways there of a sample come first
    copies.copy = lambda dst, src: copies.real(dst, src) if (next(calls) // 5) % 2 not in directions else None
    assert latency(num_gpus=2).wrong() == {(0, 1): 1, (1, 0): 1}


@pytest.mark.parametrize(("lost", "median_us"), [((), 2.0), ((1,), 2.0), ((1, 2, 3), None)])
def test_a_small_copy_is_half_a_round_trip_and_samples_in_which_the_host_was_too_slow_do_not_count(lost, median_us, monkeypatch):
    numbers = iter(range(1 + NUM_SAMPLES))
    monkeypatch.setattr(p2p, "_round_trips_s", lambda *_: float("nan") if next(numbers) in lost else 2 * 5 * 2e-6)
    assert latency(num_gpus=2).cells[0, 1].value == pytest.approx(median_us or float("nan"), nan_ok=True)


def test_the_gpus_that_a_process_sees_have_the_uuids_of_nvml(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid=f"ab-{index}"))
    assert p2p.visible_gpus() == {"GPU-ab-0": 0, "GPU-ab-1": 1}
