"""Series of samples: bins, windows, and the same statistics after bins were merged."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inventory.replay import PERIOD_S, POWER_CAP, SW_THERMAL, loaded, sample, series_of

from gpu_acceptance.inventory.answer import Missing, Why
from gpu_acceptance.inventory.telemetry import GAP_PERIODS, Series, Span, merge_spans

UNREADABLE = Missing(Why.UNREADABLE, "nvmlDeviceGetClockInfo: Unknown Error")
CLOCKS = st.one_of(st.integers(210, 1980), st.just(UNREADABLE))
PAUSES = st.one_of(st.floats(0.01, 0.24), st.floats(0.26, 3.0))
SAMPLES = st.lists(st.tuples(PAUSES, CLOCKS, st.sampled_from([0, POWER_CAP, POWER_CAP | SW_THERMAL])), min_size=1, max_size=60)


def time_of(window, bit):
    """Return the time of a reason; None: never set while reasons were known."""
    return None if isinstance(window.reasons, Missing) else window.reasons.by_bit.get(bit)


def samples_of(drawn):
    at_s = 0.0
    for pause_s, clock, reasons in drawn:
        at_s += pause_s
        yield sample(at_s, sm_clock_mhz=clock, event_reasons=reasons)


def holds(samples, begin_s, end_s):
    """Naively: each sample, and for how long of the window it stands."""
    for one, after in zip(samples, [*samples[1:], None], strict=True):
        until_s = after.at_s if after and after.at_s - one.at_s <= GAP_PERIODS * PERIOD_S else one.at_s + PERIOD_S
        held_s = min(until_s, end_s) - max(one.at_s, begin_s)
        if held_s > 0:
            yield one, held_s


def close(expected):
    return pytest.approx(expected, rel=1e-9, abs=1e-6)


@given(SAMPLES, st.floats(-1, 30), st.floats(0.01, 30))
def test_a_window_equals_a_naive_computation(drawn, begin_s, length_s):
    samples, end_s = list(samples_of(drawn)), begin_s + length_s
    window = series_of(samples).window(begin_s, end_s)
    held = list(holds(samples, begin_s, end_s))
    clocks = [(one.sm_clock_mhz, held_s) for one, held_s in held if not isinstance(one.sm_clock_mhz, Missing)]
    assert window.num_samples == sum(begin_s <= one.at_s < end_s for one, _ in held)
    assert window.held_s == close(sum(held_s for _, held_s in held))
    span = window.spans["sm_clock_mhz"]
    assert isinstance(span, Missing) == (not clocks)
    if clocks:
        known_s = sum(held_s for _, held_s in clocks)
        mean = sum(clock * held_s for clock, held_s in clocks) / known_s
        variance = sum((clock - mean) ** 2 * held_s for clock, held_s in clocks) / known_s
        assert (span.mean, span.held_s) == (close(mean), close(known_s))
        assert (span.low, span.high) == (min(clock for clock, _ in clocks), max(clock for clock, _ in clocks))
        assert span.cv_percent == pytest.approx(100 * math.sqrt(variance) / mean, rel=1e-6, abs=1e-5)
    if held:
        set_s = sum(held_s for one, held_s in held if one.event_reasons & SW_THERMAL)
        assert window.reasons.held_s == close(window.held_s)
        hot = [(max(one.at_s, begin_s), held_s) for one, held_s in held if one.event_reasons & SW_THERMAL]
        time = time_of(window, SW_THERMAL)
        assert (time is None) == (not hot)
        assert (time.set_s if time else 0.0) == close(set_s)
        assert not hot or (time.first_s, time.last_s) == (close(hot[0][0]), close(sum(hot[-1])))
    moments = [begin_s, *(one.at_s for one in samples if begin_s < one.at_s < end_s), end_s]
    assert window.longest_pause.length_s == close(max(late - early for early, late in itertools.pairwise(moments)))


@given(SAMPLES, st.sampled_from([2, 4, 8]))
def test_a_merged_series_has_the_same_statistics_over_all_its_time(drawn, most_bins):
    samples = list(samples_of(drawn))
    begin_s, end_s = samples[0].at_s - 1, samples[-1].at_s + 1
    whole, merged = series_of(samples).window(begin_s, end_s), series_of(samples, most_bins=most_bins).window(begin_s, end_s)
    assert merged.num_samples == whole.num_samples == len(samples)
    assert merged.held_s == close(whole.held_s)
    assert merged.longest_pause == whole.longest_pause
    for name, span in whole.spans.items():
        other = merged.spans[name]
        if isinstance(span, Missing):
            assert isinstance(other, Missing)
        else:
            assert (other.low, other.high) == (span.low, span.high)
            assert (other.mean, other.held_s, other.scatter) == (close(span.mean), close(span.held_s), close(span.scatter))
    one, other = time_of(whole, SW_THERMAL), time_of(merged, SW_THERMAL)
    assert (one and (one.first_s, one.last_s)) == (other and (other.first_s, other.last_s))
    assert (one.set_s if one else 0.0) == close(other.set_s if other else 0.0)


@given(SAMPLES, st.sampled_from([2, 4, 8]))
def test_bins_follow_each_other_and_are_never_more_than_asked_for(drawn, most_bins):
    series = series_of(samples_of(drawn), most_bins=most_bins)
    bins = series.bins()
    assert 1 <= len(bins) <= most_bins + 2  # one that is not full yet, and the last sample
    assert sum(one.num_samples for one in bins) == series.num_samples == len(drawn)
    for one, after in itertools.pairwise(bins):
        assert one.end_s == after.begin_s


@pytest.mark.parametrize("num_samples", [40, 500, 1000, 1023, 1500, 5000])
def test_resolution_is_alike_over_all_the_time(num_samples):
    """Within a factor of 2, while pairs are being merged: an old hour is as fine as the last one."""
    *full, _open, _last = series_of((sample(n * PERIOD_S) for n in range(num_samples)), most_bins=32).bins()
    sizes = {one.num_samples for one in full}
    assert max(sizes) <= 2 * min(sizes)
    assert len(full) >= 32 // 2 - 1


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(0, 100)), min_size=2, max_size=20), st.integers(1, 19))
def test_spans_may_be_merged_in_any_groups(drawn, cut):
    spans = [Span(value, value, value, held_s) for value, held_s in drawn]

    def merged(parts):
        whole = parts[0]
        for part in parts[1:]:
            whole = merge_spans((whole, part))
        return whole

    one = merged(spans)
    left, right = spans[:cut], spans[cut:]
    other = merge_spans((merged(left), merged(right))) if right else one
    assert (one.low, one.high, one.held_s) == (other.low, other.high, close(other.held_s))
    at_once = merge_spans(spans)
    assert (at_once.low, at_once.high, at_once.held_s) == (one.low, one.high, close(one.held_s))
    for whole in (one, at_once):
        assert whole.low <= whole.mean <= whole.high
    if one.held_s:
        assert at_once.mean == pytest.approx(one.mean, rel=1e-6, abs=1e-3)
        assert one.mean == pytest.approx(other.mean, rel=1e-6, abs=1e-3)


def test_a_steady_value_does_not_vary_at_all():
    series = series_of((sample(n * 0.1, sm_clock_mhz=1455) for n in range(1000)), most_bins=8)
    assert series.window(0.0, 100.0).spans["sm_clock_mhz"].cv_percent == 0


def test_a_value_that_is_0_all_over_has_no_variation():
    span = series_of([sample(0.0, sm_clock_mhz=0), sample(0.05)]).window(0.0, 0.05).spans["sm_clock_mhz"]
    assert span.cv_percent == Missing(Why.UNREADABLE, "no variation of a mean of 0 over 0.05 s")


@pytest.mark.slow
def test_a_soak_of_an_hour_stays_bounded_and_keeps_its_one_hot_second():
    hot = {50_000 + number for number in range(20)}
    series = series_of(
        (
            sample(n * PERIOD_S, event_reasons=SW_THERMAL if n in hot else POWER_CAP, gpu_temperature_c=88 if n in hot else 61)
            for n in range(72_000)
        ),
        most_bins=256,
    )
    assert len(series.bins()) <= 258
    window = series.window(0.0, 3600.0)
    assert time_of(window, SW_THERMAL).set_s == pytest.approx(1.0)
    assert window.spans["gpu_temperature_c"].high == 88
    assert window.reasons.held_s == pytest.approx(3600)
    minute = series.window(2490.0, 2550.0)
    assert time_of(minute, SW_THERMAL).first_s == pytest.approx(2500.0)


def test_before_the_first_sample_and_after_the_last_one_is_a_gap_too():
    series = series_of(loaded(10))
    late = series.window(-3.0, 5.0)
    assert (late.longest_pause.begin_s, late.longest_pause.end_s) == (-3.0, 0.0)
    dead = series.window(5.0, 65.0)
    assert dead.longest_pause.length_s == pytest.approx(55.05)
    assert dead.held_s == pytest.approx(5.0)


def test_without_a_sample_there_is_no_value():
    none = Missing(Why.NOT_THERE, "no sample in this window")
    for series, begin_s in ((Series(PERIOD_S), 0.0), (series_of(loaded(1)), 30.0), (series_of(loaded(1)), -30.0)):
        window = series.window(begin_s, begin_s + 10)
        assert (window.num_samples, window.held_s, window.longest_pause.length_s) == (0, 0.0, 10.0)
        assert {*window.spans.values(), window.reasons} == {none}


@pytest.mark.parametrize("most_bins", [0, 1, 3, -2])
def test_a_number_of_bins_that_cannot_be_halved(most_bins):
    with pytest.raises(ValueError, match=f"most_bins={most_bins}: an even number, at least 2"):
        Series(PERIOD_S, most_bins=most_bins)


def test_a_window_that_cannot_be():
    with pytest.raises(ValueError, match=r"a window from 2.0 s to 2.0 s: it must end after it begins"):
        Series(PERIOD_S).window(2.0, 2.0)


@pytest.mark.slow
def test_a_stretch_of_the_last_minute_has_nothing_of_what_was_before_and_after_it():
    """After hours, when what is older has been merged: 15 s of a product at its power cap, between two loads at another clock."""
    series = Series(PERIOD_S, most_bins=64)
    for number in range(20_000):  # 1,000 s
        series.add(sample(number * PERIOD_S, sm_clock_mhz=1980 if 15 <= (number * PERIOD_S) % 35 < 35 else 1455))
    begin_s = 35 * 27 + 35.0
    window = series.window(begin_s, begin_s + 15)
    assert (window.spans["sm_clock_mhz"].low, window.spans["sm_clock_mhz"].high) == (1455, 1455)
    assert window.num_samples == 300
    old = series.window(35.0, 50.0)
    assert old.spans["sm_clock_mhz"].high == 1980  # as coarse as all that is old
