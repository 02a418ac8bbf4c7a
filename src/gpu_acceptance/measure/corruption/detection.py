"""What a test without a finding has proved: the rate of corruption that it excludes.

Corruption at a constant rate r leaves t unharmed with probability exp(-r t) (Poisson). So no finding in t excludes, with
confidence c, every rate from -ln(1 - c) / t up: at 95 % that is 3.0 / t, the "rule of three" (Hanley, Lippman-Hand: If
nothing goes wrong, is everything all right?, JAMA 249:1743, 1983).
"""

import math

CONFIDENCE = 0.95


def excluded_rate_per_minute(exposure_s: float) -> float:
    """The smallest rate, in events per minute of exposure, that no finding in `exposure_s` excludes at 95 %."""
    return -math.log(1 - CONFIDENCE) / (_checked(exposure_s) / 60)


def miss_probability(rate_per_minute: float, exposure_s: float) -> float:
    """Probability that a GPU corrupting data at this rate shows nothing in `exposure_s`."""
    if not (math.isfinite(rate_per_minute) and rate_per_minute >= 0):
        raise ValueError(f"rate_per_minute={rate_per_minute}: a finite number, not negative")
    return math.exp(-rate_per_minute * _checked(exposure_s) / 60)


def statement(exposure_s: float) -> str:
    """One sentence for a report. The rate is rounded up: it may not promise more than was proved."""
    rate = excluded_rate_per_minute(exposure_s)
    digits = 1 - math.floor(math.log10(rate))
    rounded = math.ceil(rate * 10**digits) / 10**digits
    excluded = f"no corruption in {exposure_s:.3g} s excludes, at {CONFIDENCE:.0%}, {rounded:g} or more per minute"
    return f"{excluded}; rarer faults are not excluded"


def _checked(exposure_s: float) -> float:
    if not (math.isfinite(exposure_s) and exposure_s > 0):
        raise ValueError(f"exposure_s={exposure_s}: a finite number of seconds above zero, or nothing is excluded")
    return exposure_s
