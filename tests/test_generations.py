"""What is kept of the ends of generations."""

import pytest
from judging import make_record

from gpu_acceptance.generations import Generations
from gpu_acceptance.record import Attempt, Outcome


def ended(number, generation):
    records = (make_record(rank, Outcome.PASSED).model_copy(update={"generation": generation}) for rank in range(2))
    return Attempt(number=number, ranks=tuple(records))


@pytest.mark.parametrize(("generations_that_ended", "ranks"), [([], []), ([1], []), ([1, 2], [0, 1])])
def test_the_last_ending_is_that_of_the_last_generation_or_none(generations_that_ended, ranks):
    """One that died leaves no ending, and that of an older one says nothing of the whole run."""
    generations = Generations(supervisor=None, deadline_s=60.0, learn=print)
    generations._number = 2
    generations.endings = [ended(number, generation) for number, generation in enumerate(generations_that_ended, 1)]
    assert [record.rank for record in generations.last_ending] == ranks
