"""Faults that are planted on purpose, on one rank: does a validation find them? A run with one is a drill, and accepts nothing."""


def on_this_rank(name: str, number: object, on_rank: object, *, rank: int, world_size: int) -> int:
    """What parameter `name` asks for, on the rank that gets the fault; 0 on all others, and where it asks for none.

    ValueError for what is no whole number, and for a rank that is not there: a drill of which nobody has the fault proves nothing.
    """
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise ValueError(f"{name}={number!r}: a whole number from 0 up; 0 plants no fault")
    if not number:
        return 0
    if isinstance(on_rank, bool) or not isinstance(on_rank, int) or not 0 <= on_rank < world_size:
        raise ValueError(f"{name}={number} on rank {on_rank!r}: a whole number from 0 to {world_size - 1}")
    return number if rank == on_rank else 0
