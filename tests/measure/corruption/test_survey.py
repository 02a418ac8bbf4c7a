"""All kernels of one device in a few numbers, healthy and with planted faults."""

import math
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpu_acceptance.measure.corruption import kernels, survey
from gpu_acceptance.measure.corruption.hashing import Difference, Flip
from gpu_acceptance.measure.corruption.repeat import RepeatResult, deterministic, repeat
from gpu_acceptance.measure.corruption.survey import (
    SHORT,
    Survey,
    differing_works,
    excluded_rate_per_minute,
    kind_of,
    majority,
    odd_kind,
)

CPU = torch.device("cpu")
FEW = ("mm_fp32", "mm_tf32", "sort")


@pytest.fixture
def few_kernels(monkeypatch):
    monkeypatch.setattr(kernels, "NAMES", FEW)


def made(kernel="mm_fp32", shape="1x2x3", num_mismatches=0, differences=None, **more):
    given = {"hash": "0" * 32, "input_hash": "1" * 32, "inputs_changed": False, "exposure_s": 2.0, "hash_s": 1.0, "planted": None}
    given |= {"num_repetitions": 50, "mismatches": tuple(range(num_mismatches)), "differences": differences}
    return RepeatResult(kernel=kernel, shape=shape, reruns_that_differ=0 if num_mismatches else None, **(given | more))


def test_a_healthy_device(few_kernels):
    found = survey.measure(device=CPU, seconds=0.001)
    assert [(result.kernel, result.shape) for result in found.results[:2]] == [("mm_fp32", "128x128x128"), ("mm_fp32", "256x64x64")]
    assert found.works[-1] == "sort 127x129"
    assert {kernel: len(results) for kernel, results in found.by_kernel.items()} == {"mm_fp32": 3, "sort": 3}
    assert found.unsupported == {"mm_tf32": "a CPU has no TF32"}
    assert (found.num_mismatches, found.mismatches, found.inputs_changed, found.num_planted) == (0, "", (), 0)
    again = survey.measure(device=CPU, seconds=0.001)
    assert (again.hash, again.fingerprint) == (found.hash, found.fingerprint)
    assert len(found.fingerprint) == SHORT * len(found.works)


def test_a_pulsing_load_rests_in_the_second_half_and_has_the_same_bits(few_kernels, monkeypatch):
    asked = []
    monkeypatch.setattr(survey, "repeat", lambda kernel, **options: asked.append(options) or repeat(kernel, **options))
    steady, pulsing = (survey.measure(device=CPU, seconds=0.001, pulse_s=pulse_s) for pulse_s in (None, 0.0001))
    assert [one["pulse_s"] for one in asked] == [None] * 6 + [0.0001] * 6
    assert {(one["seconds"], one["steady_s"]) for one in asked} == {(0.001, 0.0005)}
    assert (pulsing.hash, pulsing.works, pulsing.num_mismatches) == (steady.hash, steady.works, 0)


def test_each_planted_bit_is_found_and_the_right_hash_with_it(few_kernels):
    healthy = survey.measure(device=CPU, seconds=0.001)
    drill = survey.measure(device=CPU, seconds=0.001, flip_every=5)
    assert drill.num_mismatches == drill.num_planted >= 6 * 2 // 5  # at least two repetitions of each of six works
    assert "mm_fp32 " in drill.mismatches
    assert drill.hash == healthy.hash


def test_a_bit_that_is_flipped_in_every_repetition_is_in_the_hash_alone(few_kernels):
    healthy, always = (survey.measure(device=CPU, seconds=0.001, flip_every=every) for every in (None, 1))
    assert always.num_mismatches == 0
    assert always.num_planted == sum(result.num_repetitions for result in always.results)
    parts = [[one.fingerprint[at : at + SHORT] for at in range(0, 6 * SHORT, SHORT)] for one in (healthy, always)]
    assert all(part != other for part, other in zip(*parts, strict=True))


@pytest.mark.parametrize(("every", "wanted"), [(4, [3, 7, 11]), (1, list(range(12)))])
def test_one_in_so_many_is_counted_over_all_kernels(every, wanted, few_kernels, monkeypatch):
    planted, done = [], 0

    def twice(kernel, *, flip, **_):
        nonlocal done
        planted.extend(done + number for number in range(2) if flip.is_due(number))
        done += 2
        return made(kernel.name, kernel.shape, num_repetitions=2)

    monkeypatch.setattr(survey, "repeat", twice)
    survey.measure(device=CPU, seconds=1, flip_every=every)
    assert planted == wanted


@pytest.mark.parametrize(
    ("differences", "text"),
    [
        (
            (Difference(0, 3, "0010", (64, 192, 320), 128), Difference(1, 1, "80", (7,), 0)),
            "3 elements of output 0 at 64, 192, 320, period 128, bits 0010; 1 element of output 1 at 7, bits 80",
        ),
        (
            (Difference(0, 17, "01", tuple(range(16)), 1),),
            "17 elements of output 0 at 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, ..., period 1, bits 01",
        ),
        ((), "its hash alone, and no bit of the output"),
    ],
)
def test_a_mismatch_says_kernel_place_bits_period_and_what_came_of_running_again(differences, text):
    found = Survey((made(), made("sort", "127x129", 2, differences)), {})
    assert found.num_mismatches == 2
    assert found.mismatches == f"sort 127x129: 2 of 50 repetitions differ ({text}; 0 of 3 re-runs differ)"


def test_a_planted_fault_and_inputs_that_changed_are_told():
    found = Survey((made(num_mismatches=1, differences=(), planted=Flip(repetition=9, element=0, bit=0, every=20)),), {})
    assert found.mismatches.endswith("; 0 of 3 re-runs differ, planted)")
    assert found.num_planted == 3  # 9, 29 and 49 of 50
    assert Survey((made(), made("sort", inputs_changed=True)), {}).inputs_changed == ("sort 1x2x3",)


@pytest.mark.parametrize("changed", [{"hash": "2" * 32}, {"input_hash": "2" * 32}, {"shape": "3x2x1"}, {"kernel": "sort"}])
def test_whatever_differs_is_in_hash_and_fingerprint(changed):
    one, other = Survey((made(),), {}), Survey((made(**changed),), {})
    assert one.hash != other.hash
    assert one.fingerprint != other.fingerprint


def test_the_detection_limit_is_of_all_the_time_and_of_the_kernel_that_had_least():
    found = Survey((made(exposure_s=2.0), made(exposure_s=3.0), made("sort", exposure_s=1.0)), {})
    assert found.detection_limits_per_minute == (excluded_rate_per_minute(6.0), excluded_rate_per_minute(1.0))


@given(st.floats(1e-3, 1e9), st.floats(1.01, 100))
def test_the_excluded_rate_would_be_missed_with_five_percent_and_falls_with_time(exposure_s, factor):
    rate = excluded_rate_per_minute(exposure_s)
    assert math.exp(-rate * exposure_s / 60) == pytest.approx(0.05)
    assert excluded_rate_per_minute(factor * exposure_s) < rate


# --- peers ----------------------------------------------------------------------------------------------------------------------


@given(st.integers(3, 72), st.data())
def test_a_majority_is_more_than_half_and_no_minority_of_wrong_gpus_is_one(num_gpus, data):
    wrong = data.draw(st.sets(st.integers(0, num_gpus - 1), max_size=(num_gpus - 1) // 2))
    assert majority([data.draw(st.sampled_from("xyz")) if rank in wrong else "right" for rank in range(num_gpus)]) == "right"
    assert [majority(hashes) for hashes in ("aa", "aba", "ab", "aaaabcde", "aaaaabcd", "bbaaa")] == ["a", "a", None, None, "a", "a"]


ALWAYS, ONCE = Flip(repetition=None, element=77, bit=0), Flip(repetition=2, element=77, bit=0)


@pytest.mark.parametrize(
    ("flips", "mismatches", "minority"),
    [
        ([None] * 8, [0] * 8, []),
        ([None] * 3 + [ONCE] + [None] * 4, [0, 0, 0, 1, 0, 0, 0, 0], []),  # found by the device itself alone
        ([None] * 5 + [ALWAYS] + [None] * 2, [0] * 8, [5]),  # found by its peers alone
        ([ALWAYS] * 8, [0] * 8, []),  # all are wrong alike: found by neither
    ],
)
def test_a_device_finds_faults_that_come_and_go_and_its_peers_find_one_that_stays(flips, mismatches, minority):
    with deterministic(CPU):
        kernel = kernels.make("attention", "ragged", CPU)
        results = [repeat(kernel, num_repetitions=5, flip=flip) for flip in flips]
    assert [len(result.mismatches) for result in results] == mismatches
    common = majority([result.hash for result in results])
    assert [rank for rank, result in enumerate(results) if result.hash != common] == minority


H200, H100 = "NVIDIA H200, 132 SMs, torch 2.11.0", "NVIDIA H100 80GB HBM3, 132 SMs, torch 2.11.0"
WORKS = ("mm_bf16 8192x8192x8192", "mm_bf16 8191x8193x4099", "sort 8192x8192")


def fingerprint(*works):
    return "".join(work * SHORT for work in works)


def differing(*ranks):
    """`ranks`: works of ranks of one kind, the own first."""
    told = [(H200, fingerprint(*one)) for one in ranks]
    return differing_works(told[0][1], H200, WORKS, told)


def test_a_kind_is_the_hardware_and_the_libraries_under_it():
    versions = {"torch": "2.11.0", "cuda": "13.0", "driver": "580.159", "python": "3.12.3", "kernel": "6.8"}
    kind = kind_of(torch.device("cpu"), versions)
    assert re.fullmatch(r"CPU with [\w ]+, \d+ threads, torch 2\.11\.0, cuda 13\.0, driver 580\.159", kind)
    assert kind_of(torch.device("cpu"), {**versions, "torch": "2.12.0"}) != kind


@pytest.mark.parametrize(
    ("own", "kinds", "reason"),
    [
        (H200, [H200], ""),
        (H200, [H200] * 8, ""),
        (H200, [H200, H100, H200], ""),
        (H100, [H200, H100, H200], f"most ranks are {H200}"),
        (H200, [H200, H100, H200, H100], "of 4 ranks, no kind is that of most"),
        (H100, [H200, H100, H200, H100], "of 4 ranks, no kind is that of most"),
    ],
)
def test_a_rank_of_the_most_common_kind_is_compared_and_no_other(own, kinds, reason):
    assert odd_kind(own, kinds) == (reason and f"not compared: this is {own}; {reason}")


@pytest.mark.parametrize(
    ("ranks", "works"),
    [
        (["abc", "abc", "abc"], ""),
        (["aXY", "abc", "abc"], "mm_bf16 8191x8193x4099, sort 8192x8192"),
        (["abc", "aXY", "abc"], ""),  # the minority is another rank
        (["abc", "abX"], "sort 8192x8192"),  # of a tie both are named
        (["abX", "abc"], "sort 8192x8192"),
        (["abc"], ""),  # no peer
    ],
)
def test_the_works_of_a_minority_are_named(ranks, works):
    assert differing(*ranks) == (works and f"differs in {works}")


def test_ranks_of_another_kind_do_not_count():
    told = [(H200, fingerprint(*"abc")), *[(H100, fingerprint(*"XYZ"))] * 2, (H200, fingerprint(*"abc"))]
    assert differing_works(fingerprint(*"abc"), H200, WORKS, told) == ""
