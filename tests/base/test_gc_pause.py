"""The garbage collector rests inside, and is afterwards as it was."""

import gc

import pytest

from gpu_acceptance.base.process import gc_paused, gc_spared


def test_it_rests_inside_and_goes_on_even_after_an_error():
    def fails():
        with gc_paused():
            assert not gc.isenabled()
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert gc.isenabled()


def test_where_it_was_off_it_stays_off():
    gc.disable()
    try:
        with gc_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_what_was_imported_is_never_walked_again():
    try:
        with gc_spared():
            kept = [[] for _ in range(1000)]
        assert gc.get_freeze_count() >= len(kept)
        assert not any(kept is one for one in gc.get_objects())
    finally:
        gc.unfreeze()
