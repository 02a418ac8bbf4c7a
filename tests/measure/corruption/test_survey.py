"""All kernels of one device in a few numbers, healthy and with planted faults."""

import pytest
import torch

from gpu_acceptance.measure.corruption import kernels, survey
from gpu_acceptance.measure.corruption.hashing import Difference, Flip
from gpu_acceptance.measure.corruption.repeat import RepeatResult, repeat
from gpu_acceptance.measure.corruption.survey import SHORT, Survey, excluded_rate_per_minute

CPU = torch.device("cpu")
FEW = ("mm_fp32", "mm_tf32", "sort")


@pytest.fixture
def few_kernels(monkeypatch):
    monkeypatch.setattr(kernels, "NAMES", FEW)


def made(kernel="mm_fp32", shape="1x2x3", num_mismatches=0, differences=None, **more):
    given = {"hash": "0" * 32, "input_hash": "1" * 32, "inputs_changed": False, "exposure_s": 2.0, "hash_s": 1.0, "planted": None}
    reruns = 0 if num_mismatches else None
    mismatches = tuple(range(num_mismatches))
    given |= {"num_repetitions": 50, "mismatches": mismatches, "reruns_that_differ": reruns, "differences": differences}
    return RepeatResult(kernel=kernel, shape=shape, num_mismatches=num_mismatches, **(given | more))


def flipped_in_one_of(every, num_repetitions):
    """How often a bit was flipped in works of as many repetitions each, one after the other, and in which."""
    found, done = [], 0
    for number in num_repetitions:
        flip = survey._flip_after(done, every)
        found += [done + repetition for repetition in range(number) if flip.is_due(repetition)]
        done += number
    return found


def test_a_healthy_device(few_kernels):
    found = survey.measure(device=CPU, seconds=0.001)
    assert [(result.kernel, result.shape) for result in found.results[:2]] == [("mm_fp32", "128x128x128"), ("mm_fp32", "256x64x64")]
    assert found.works[-1] == "sort 127x129"
    assert {kernel: len(results) for kernel, results in found.by_kernel.items()} == {"mm_fp32": 3, "sort": 3}
    assert found.unsupported == {"mm_tf32": "a CPU has no TF32"}
    assert (found.num_mismatches, found.mismatches, found.num_inputs_changed, found.num_planted) == (0, "", 0, 0)
    again = survey.measure(device=CPU, seconds=0.001)
    assert (again.hash, again.fingerprint) == (found.hash, found.fingerprint)
    assert len(found.fingerprint) == SHORT * len(found.works)


def test_a_pulsing_load_rests_in_the_second_half_and_has_the_same_bits(few_kernels, monkeypatch):
    asked = []
    monkeypatch.setattr(survey, "repeat", lambda kernel, **options: asked.append(options) or repeat(kernel, **options))
    steady = survey.measure(device=CPU, seconds=0.001)
    assert {one["pulse_s"] for one in asked} == {None}
    pulsing = survey.measure(device=CPU, seconds=0.001, pulse_s=0.0001)
    assert {(one["seconds"], one["pulse_s"], one["steady_s"]) for one in asked[len(steady.results) :]} == {(0.001, 0.0001, 0.0005)}
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


def test_one_in_a_thousand_is_counted_over_all_kernels():
    assert flipped_in_one_of(1000, [600, 600, 2500, 2, 298]) == [999, 1999, 2999, 3999]
    assert flipped_in_one_of(1, [2, 3]) == [0, 1, 2, 3, 4]


def test_a_mismatch_says_kernel_place_bits_period_and_what_came_of_running_again():
    differences = (Difference(0, 3, "0010", (64, 192, 320), 128), Difference(1, 1, "80", (7,), 0))
    found = Survey((made(), made("sort", "127x129", 2, differences)), {})
    assert found.num_mismatches == 2
    assert found.mismatches == (
        "sort 127x129: 2 of 50 repetitions differ (3 elements of output 0 at 64, 192, 320, period 128, bits 0010; "
        "1 element of output 1 at 7, bits 80; 0 of 3 re-runs differ)"
    )


def test_more_addresses_than_are_kept_are_told():
    (difference,) = [Difference(0, 17, "01", tuple(range(16)), 1)]
    assert (
        "at 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, ..., period 1, bits 01;"
        in Survey((made(num_mismatches=1, differences=(difference,)),), {}).mismatches
    )


def test_a_wrong_hash_alone_and_a_planted_fault_are_told():
    found = Survey((made(num_mismatches=1, differences=(), planted=Flip(repetition=9, element=0, bit=0, every=20)),), {})
    assert found.mismatches == (
        "mm_fp32 1x2x3: 1 of 50 repetitions differ (its hash alone, and no bit of the output; 0 of 3 re-runs differ, planted)"
    )
    assert found.num_planted == 3  # 9, 29 and 49 of 50


def test_inputs_that_changed_are_named():
    found = Survey((made(), made("sort", inputs_changed=True)), {})
    assert (found.num_inputs_changed, found.inputs_changed) == (1, "sort 1x2x3")


@pytest.mark.parametrize("changed", [{"hash": "2" * 32}, {"input_hash": "2" * 32}, {"shape": "3x2x1"}, {"kernel": "sort"}])
def test_whatever_differs_is_in_hash_and_fingerprint(changed):
    one, other = Survey((made(),), {}), Survey((made(**changed),), {})
    assert one.hash != other.hash
    assert one.fingerprint != other.fingerprint


def test_the_detection_limit_is_of_all_the_time_and_of_the_kernel_that_had_least():
    found = Survey((made(exposure_s=2.0), made(exposure_s=3.0), made("sort", exposure_s=1.0)), {})
    assert found.detection_limit_per_minute == excluded_rate_per_minute(6.0)
    assert found.weakest_detection_limit_per_minute == excluded_rate_per_minute(1.0)
