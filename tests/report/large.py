"""A run of many nodes that was made, with planted faults: for what the report of a large cluster costs, and how it looks."""

import random

from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.record.run_record import RunRecord
from tests.report import sample_rows, samples

NUM_VALIDATIONS = 60
_SLOW, _HOT = 5, 17  # ranks
_FIGURES = ("rate", "latency", "clock", "power")


def large(num_nodes: int, num_validations: int = NUM_VALIDATIONS) -> RunRecord:
    """Nodes of 8 GPUs; rank 5 is slow in one of five, rank 17 hot in all."""
    num_ranks = 8 * num_nodes
    rows = tuple(_row(number, num_ranks) for number in range(num_validations))
    identities = [samples.identity(rank, nodes=num_nodes) for rank in range(num_ranks)]
    return samples.record(rows, identities, required=tuple(dict.fromkeys(row.subject for row in rows)))


def _row(number: int, num_ranks: int):
    draw = random.Random(number)
    subject = f"made{number // 6}"
    is_slow = number % 5 == 0
    values = {name: [draw.gauss(1000, 5) for _ in range(num_ranks)] for name in _FIGURES}
    values["rate"][_SLOW] *= 0.8 if is_slow else 1
    values["power"][_HOT] *= 1.15
    metric = f"{subject}.case{number}"
    margin = -0.15 if is_slow else 0.03
    judgements = [sample_rows.held(f"{metric}.rate", min(values["rate"]), "GB/s", ">= 950", margin, "rank", (_SLOW,))]
    judgements += [sample_rows.held(f"{metric}.{name}", 1000.0, "GB/s", "<= 1200", 0.1, "rank", (_HOT,)) for name in _FIGURES[1:]]
    return sample_rows.row(
        f"acceptance/test_{subject}.py::test_case[{number}]",
        lambda rank: [sample_rows.figure(f"{metric}.{name}", values[name][rank], "GB/s", 0.3) for name in _FIGURES],
        judgements,
        num_ranks,
        Outcome.FAILED if is_slow else Outcome.PASSED,
    )
