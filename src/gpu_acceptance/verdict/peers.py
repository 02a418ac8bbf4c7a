"""The peer rule: a unit against the median of the others, which finds the one bad GPU that every floor lets through.

For unit i and a metric where higher is better: deficit_i = 1 - x_i / median of all x_j except x_i.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import NormalDist, median

from gpu_acceptance.thresholds.limit import Peers
from gpu_acceptance.thresholds.values import show
from gpu_acceptance.verdict.bounds import Finding, Reading, relative

ALPHA = 0.01  # chance of one false alarm by this rule in a run of healthy GPUs
MIN_UNITS = 3  # of two that differ nobody can say which is the odd one


def peer_factor(num_units: int, num_metrics: int) -> float:
    """k: so many sigma behind its peers is no accident, in all of `num_units` times `num_metrics` comparisons.

    k(N, M) = Phi^-1(1 - alpha / (N M)) * sqrt(1 + 1.57 / (n - 1)): a Bonferroni share of alpha, widened by the error of a median
    of the other n - 1 (its variance is 1.57 times that of a mean).
    """
    share = ALPHA / (max(num_units, 1) * max(num_metrics, 1))
    return -NormalDist().inv_cdf(share) * math.sqrt(1 + 1.57 / max(num_units - 1, 1))


def allowed_deficit(peers: Peers, factor: float) -> Fraction:
    """How far a unit may be behind: what its limit allows, or where that is more what is no accident."""
    return max(_decimal(peers.deficit_at_most), _decimal(factor * peers.sigma))


@dataclass(frozen=True)
class _Behind:
    reading: Reading
    deficit: Fraction
    median: Fraction  # of the others


def find_behind(readings: Sequence[Reading], peers: Peers, factor: float) -> Finding:
    """A unit missed where it is too far behind in every attempt in which it was measured: one good attempt clears it.

    Higher is better. Numbers are compared as the decimals they are written as, so that 97 is exactly 3 % behind 100.
    """
    allowed = allowed_deficit(peers, factor)
    need = f"<= {_percent(allowed)} below its peers" + (f" ({factor:.3g} sigma)" if allowed > _decimal(peers.deficit_at_most) else "")
    best, unfit = _best_of_each(readings)
    fault = "has no peers in its attempt whose median is above zero" if unfit else ""
    ordered = sorted(best.values(), key=lambda behind: (-behind.deficit, behind.reading.unit))
    if not ordered:
        return Finding(need, float(allowed), fault=fault, unfit=unfit)
    worst = ordered[0]
    missed = tuple(behind.reading for behind in ordered if behind.deficit > allowed)
    margin = relative(float(allowed - worst.deficit), float(allowed))
    shown = show(worst.reading.value)
    return Finding(need, float(allowed), False, worst.reading, missed, shown, _distance(worst, allowed), margin, fault, unfit)


def _distance(behind: _Behind, allowed: Fraction) -> str:
    side = "below" if behind.deficit >= 0 else "above"
    return f", {_percent(behind.deficit, allowed)} {side} its peers' median {show(float(behind.median))}"


def _best_of_each(readings: Sequence[Reading]) -> tuple[dict[int, _Behind], tuple[Reading, ...]]:
    """By unit, its smallest deficit of all attempts; and the readings that could not be compared."""
    best: dict[int, _Behind] = {}
    unfit: list[Reading] = []
    for attempt in sorted({reading.attempt for reading in readings}):
        units = _worst_of_each(reading for reading in readings if reading.attempt == attempt)
        values = [_decimal(reading.number) for reading in units]
        if len(units) < MIN_UNITS:
            continue
        for reading, value, middle in zip(units, values, medians_of_others(values), strict=True):
            if middle <= 0:
                unfit.append(reading)
                continue
            behind = _Behind(reading, 1 - value / middle, middle)
            if reading.unit not in best or behind.deficit < best[reading.unit].deficit:
                best[reading.unit] = behind
    compared = set(best) | {reading.unit for reading in unfit}
    return best, tuple(unfit) + tuple(reading for reading in readings if reading.unit not in compared)


def _worst_of_each(readings: Iterable[Reading]) -> list[Reading]:
    worst: dict[int, Reading] = {}
    for reading in readings:
        if reading.unit not in worst or reading.number < worst[reading.unit].number:
            worst[reading.unit] = reading
    return list(worst.values())


def medians_of_others(values: Sequence[Fraction]) -> list[Fraction]:
    """For each value the median of all others, sorting only once."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranked = [values[index] for index in order]
    medians = list(values)
    for place, index in enumerate(order):
        medians[index] = _median_without(ranked, place)
    return medians


def _median_without(ranked: Sequence[Fraction], place: int) -> Fraction:
    num_others = len(ranked) - 1
    middle = {(num_others - 1) // 2, num_others // 2}
    return median(ranked[position if position < place else position + 1] for position in middle)


def _decimal(number: float) -> Fraction:
    return Fraction(repr(number))


def _percent(part: Fraction, bound: Fraction | None = None) -> str:
    """`3 %`; of a part that differs from its bound, enough digits to see it."""
    magnitude = float(abs(part) * 100)
    if bound is None or part == bound:
        return f"{show(magnitude, 3)} %"
    digits = next((digits for digits in (3, 6, 9, 12, 15) if show(magnitude, digits) != show(float(bound * 100), 3)), 17)
    return f"{show(magnitude, digits)} %"
