"""Python's cyclic garbage collector at rest while very many objects are made, none of which is garbage."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def gc_paused() -> Iterator[None]:
    """Each of its full collections walks all objects there are: reading a record of 1,024 ranks took 2.6 times as long with them."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def gc_spared() -> Iterator[None]:
    """The same around what makes objects that all stay (imports, the records of an attempt): no later collection walks them either."""
    with gc_paused():
        yield
        gc.freeze()  # before the first one that may
