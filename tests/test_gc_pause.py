"""The garbage collector rests inside, and is afterwards as it was."""

import gc

import pytest

from gpu_acceptance.gc_pause import gc_paused


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
