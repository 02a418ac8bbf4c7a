"""Repetitions of a kernel that must agree, with planted faults; settings under which they do."""

import weakref
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch.backends import cudnn

from gpu_acceptance.measure.corruption import kernels, repeat
from gpu_acceptance.measure.corruption.hashing import Difference, Flip, as_text, hash_tensors
from gpu_acceptance.measure.corruption.repeat import deterministic

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _deterministic():
    with deterministic(CPU):
        yield


def kernel(name="mm_fp32", size="ragged"):
    return kernels.make(name, size, CPU)


def changing(change):
    """A kernel of which repetition `number` comes out as `change(number, output)` leaves it."""
    real, numbers = kernel(), iter(range(10**6))

    def run():
        (output,) = real.run()
        change(next(numbers), output)
        return (output,)

    return replace(real, run=run)


def test_a_healthy_device_agrees_with_itself():
    healthy = kernel()
    result = repeat.repeat(healthy, num_repetitions=20)
    assert (result.kernel, result.shape, result.num_repetitions) == ("mm_fp32", "127x129x67", 20)
    assert result.hash == as_text(hash_tensors(healthy.run()))
    assert result.input_hash == as_text(hash_tensors(healthy.inputs))
    assert (result.mismatches, result.inputs_changed) == ((), False)
    assert (result.differences, result.reruns_that_differ, result.planted) == (None, None, None)
    assert result.exposure_s > 0


@pytest.mark.parametrize("name", [name for name in kernels.NAMES if name != "mm_tf32"])
def test_every_kernel_agrees_with_itself(name):
    result = repeat.repeat(kernel(name), num_repetitions=4)
    assert (result.num_repetitions, result.mismatches, result.inputs_changed) == (4, (), False)


def test_one_flipped_bit_in_one_of_a_thousand_repetitions_is_found():
    flip = Flip(repetition=617, element=1234, bit=9)
    result = repeat.repeat(kernel(), num_repetitions=1000, flip=flip)
    assert (result.num_repetitions, result.mismatches, result.planted) == (1000, (617,), flip)
    assert result.differences == (Difference(0, 1, "00000200", (1234,), 0),)
    assert (result.reruns_that_differ, result.inputs_changed) == (0, False)


@pytest.mark.parametrize("repetition", [0, 1, 18, 19])
@pytest.mark.parametrize("output", [0, 1])
def test_it_is_found_wherever_it_is(repetition, output):
    result = repeat.repeat(kernel("sort"), num_repetitions=20, flip=Flip(repetition, element=3, bit=31, output=output))
    assert result.mismatches == (repetition,)
    assert result.differences == (Difference(output, 1, ["80000000", "0000000080000000"][output], (3,), 0),)


@pytest.mark.parametrize(("repetition", "every", "mismatches"), [(0, None, (0,)), (1, None, (1,)), (4, 6, (4, 10, 16))])
def test_of_two_that_differ_the_re_runs_say_which_is_right_and_a_bit_may_flip_again_and_again(repetition, every, mismatches):
    num_repetitions = 20 if every else 2
    result = repeat.repeat(kernel(), num_repetitions=num_repetitions, flip=Flip(repetition, element=3, bit=1, every=every))
    assert (result.mismatches, result.hash) == (mismatches, repeat.repeat(kernel()).hash)
    assert every or result.reruns_that_differ == 0


def test_a_gpu_that_is_always_wrong_agrees_with_itself():
    always = repeat.repeat(kernel(), num_repetitions=20, flip=Flip(repetition=None, element=0, bit=0))
    assert always.mismatches == ()
    assert always.hash != repeat.repeat(kernel()).hash


@pytest.mark.parametrize(
    ("change", "mismatches", "reruns", "num_elements", "first", "period"),
    [
        (lambda number, output: number >= 12 and output[5:9].zero_(), range(12, 20), 3, 4 * 129, range(5 * 129, 5 * 129 + 16), 1),
        (lambda number, output: number == 3 and output.view(-1)[64::128].neg_(), [3], 0, 128, range(64, 64 + 16 * 128, 128), 128),
    ],
)
def test_a_gpu_that_stays_wrong_is_wrong_when_it_runs_again_and_a_fault_has_its_period(
    change, mismatches, reruns, num_elements, first, period
):
    result = repeat.repeat(changing(change), num_repetitions=20)
    assert (result.mismatches, result.reruns_that_differ) == (tuple(mismatches), reruns)
    (found,) = result.differences
    assert (found.num_elements, found.first, found.period) == (num_elements, tuple(first), period)


def test_a_kernel_that_writes_nothing_is_not_judged_by_its_last_result():
    """The memory of an output comes back from the allocator with what the last one left in it."""
    real, buffers, calls = kernel(), [torch.empty(127, 129) for _ in range(8)], []

    def run():
        calls.append(None)
        buffer = buffers[len(calls) % 8]
        if len(calls) <= 8:
            buffer.copy_(real.run()[0])
        return (buffer,)

    assert repeat.repeat(replace(real, run=run), num_repetitions=20).mismatches != ()


def test_a_wrong_hash_of_a_right_output_is_a_mismatch_without_a_difference(monkeypatch):
    real, calls = repeat.hash_tensors, []

    def hash_tensors(tensors):
        calls.append(None)
        return real(tensors) + (len(calls) == 5)

    monkeypatch.setattr(repeat, "hash_tensors", hash_tensors)
    result = repeat.repeat(kernel(), num_repetitions=10)
    assert (len(result.mismatches), result.differences, result.reruns_that_differ) == (1, (), 0)


def test_inputs_that_change_are_told():
    spoiled = kernel()

    def run():
        spoiled.inputs[0][3, 3] += 1
        return kernels.make("mm_fp32", "ragged", CPU).run()

    result = repeat.repeat(replace(spoiled, run=run), num_repetitions=3)
    assert (len(result.mismatches), result.inputs_changed) == (0, True)


def test_outputs_are_held_for_few_repetitions():
    held, most, real = [], [], kernel()

    def run():
        outputs = real.run()
        held.append(weakref.ref(outputs[0]))
        most.append(sum(one() is not None for one in held))
        return outputs

    repeat.repeat(replace(real, run=run), num_repetitions=30)
    assert max(most) <= 5  # the first, three in flight, and one that the loop has just left


def test_seconds_of_load_give_at_least_two_repetitions():
    assert repeat.repeat(kernel(), seconds=1e-9).num_repetitions == 2 == repeat.repeat(kernel(), seconds=0.0).num_repetitions
    assert repeat.repeat(kernel(), seconds=0.2).num_repetitions > 2


@pytest.mark.parametrize(
    ("pulse_s", "steady_s", "rests"),
    [  # the time begins after the first repetition, which loads code
        (2.0, 10.0, [11, 13, 15]),
        (2.0, 100.0, []),
        (1.0, 0.0, list(range(2, 17))),
        (None, 0.0, []),
    ],
)
def test_a_pulsing_load_rests_as_long_as_it_works_but_only_after_it_was_steady(pulse_s, steady_s, rests, monkeypatch):
    now, seen, slept = [0.0], [], []
    work = kernel()

    def run():
        now[0] += 1.0
        return work.run()

    clock = SimpleNamespace(monotonic=lambda: now[0], perf_counter=repeat.time.perf_counter)
    clock.sleep = lambda seconds: seen.append(now[0]) or slept.append(seconds)
    monkeypatch.setattr(repeat, "time", clock)  # of this module alone: threads of other tests sleep, too
    result = repeat.repeat(replace(work, run=run), num_repetitions=16, pulse_s=pulse_s, steady_s=steady_s)
    assert (seen, set(slept)) == (rests, {pulse_s} if rests else set())
    assert (result.num_repetitions, result.mismatches) == (16, ())


def test_rests_and_the_first_repetition_are_no_exposure(monkeypatch):
    now = iter(range(10**6))
    monkeypatch.setattr(repeat.time, "perf_counter", lambda: float(next(now)))
    monkeypatch.setattr(repeat.time, "sleep", lambda seconds: [next(now) for _ in range(1000)])
    result = repeat.repeat(kernel(), num_repetitions=7, pulse_s=1e-9)
    assert (result.exposure_s, result.hash_s) == (6, 6)  # repetition 0 counts as none


def test_outside_deterministic_it_is_refused():
    torch.use_deterministic_algorithms(True, warn_only=True)
    with pytest.raises(RuntimeError, match=r"^repeat outside deterministic\(\): a healthy GPU may give other bits each time$"):
        repeat.repeat(kernel())


GPU = torch.device("cuda")


def flags():
    matmul = torch.backends.cuda.matmul
    return {
        "algorithms": torch.are_deterministic_algorithms_enabled(),
        "warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "fill": torch.utils.deterministic.fill_uninitialized_memory,
        "cudnn": (cudnn.enabled, cudnn.deterministic, cudnn.benchmark),
        "precision": matmul.fp32_precision,
        "reduced": (matmul.allow_bf16_reduced_precision_reduction, matmul.allow_fp16_reduced_precision_reduction),
    }


@pytest.mark.parametrize(("algorithms", "warn_only"), [(False, False), (True, True), (True, False)])
def test_flags_are_set_inside_and_put_back(algorithms, warn_only):
    torch.use_deterministic_algorithms(algorithms, warn_only=warn_only)
    cudnn.benchmark, cudnn.deterministic = True, False
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = True
    before = flags()
    with deterministic(CPU):
        assert flags() == {
            "algorithms": True,
            "warn_only": False,
            "fill": False,
            "cudnn": (True, True, False),
            "precision": "ieee",
            "reduced": (False, False),
        }
    assert flags() == before
    with pytest.raises(ZeroDivisionError), deterministic(CPU):
        raise ZeroDivisionError
    assert flags() == before


NEEDED = "needed is :4096:8 or :16:8, before the first cuBLAS call: set it where the process is started"
UNSET = "NVIDIA_TF32_OVERRIDE is '0': libraries would not use the precision that is asked for; unset it"


@pytest.mark.parametrize(
    ("workspace", "override", "text"),
    [
        (None, None, f"CUBLAS_WORKSPACE_CONFIG is not set; {NEEDED}"),
        (":8:1", None, f"CUBLAS_WORKSPACE_CONFIG is ':8:1'; {NEEDED}"),
        (":4096:8", None, ""),
        (":16:8", None, ""),
        (":4096:8", "0", UNSET),
    ],
)
def test_a_gpu_is_taken_with_the_variables_that_it_needs_alone(workspace, override, text, monkeypatch):
    for name, value in (("CUBLAS_WORKSPACE_CONFIG", workspace), ("NVIDIA_TF32_OVERRIDE", override)):
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name, raising=False)
    before = flags()
    with pytest.raises(RuntimeError, match=f"^{text}$") if text else nullcontext(), deterministic(GPU):
        assert flags()["algorithms"]
    assert flags() == before
