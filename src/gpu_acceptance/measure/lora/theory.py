"""What the loss of a frozen random decoder must be before its adapters are trained, and where they can take it: no machine is asked.

A head of width d draws its weights from N(0, s^2), and RMSNorm hands it a state h of length sqrt(d). V: the vocabulary, K: how many
successors each symbol has, all equally likely.
"""

import math

from gpu_acceptance.measure.train.data import NUM_SUCCESSORS
from gpu_acceptance.measure.train.shapes import Decoder

FLOOR = math.log(NUM_SUCCESSORS)  # the entropy of the chain, in nats: no model predicts better without having seen what comes


def first_loss(shape: Decoder) -> float:
    """Logits are then V draws from N(0, s^2 d): E[ln sum exp] = ln V + s^2 d / 2, and the target's own logit is 0 in the mean."""
    return math.log(shape.vocabulary) + _variance(shape) / 2


def plateau(shape: Decoder) -> float:
    """The least loss that a frozen head allows: h along the mean of the K successors' weights gives each a logit of z = s d / sqrt(K).

    The others stay as they were, exp(s^2 d / 2) each in the mean, so that the loss is ln K - ln(K e^z / (K e^z + V e^(s^2 d / 2))).
    Nothing is left of the second term at real widths.
    """
    reach = shape.initial_std * shape.width / math.sqrt(NUM_SUCCESSORS)
    rest = math.log(shape.vocabulary / NUM_SUCCESSORS) + _variance(shape) / 2 - reach
    return FLOOR + math.log1p(math.exp(rest))


def _variance(shape: Decoder) -> float:
    """Of a logit."""
    return shape.initial_std**2 * shape.width
