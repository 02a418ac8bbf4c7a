"""Which of many ranks a picture draws."""

from collections.abc import Mapping

MOST_RANKS = 3


def picked(means: Mapping[int, float]) -> list[tuple[int, str]]:
    """By rank, the mean of what is drawn: all of a few; else the lowest, the middle and the highest one, each with why."""
    if len(means) <= MOST_RANKS:
        return [(rank, f"rank {rank}") for rank in means]
    ranks = sorted(means, key=lambda rank: means[rank])
    chosen = {"lowest mean": ranks[0], "middle": ranks[len(ranks) // 2], "highest mean": ranks[-1]}
    return [(rank, f"rank {rank} ({why} of {len(ranks)} ranks)") for why, rank in chosen.items()]
