"""Counters that end: where they stand still, they say nothing of what came after."""

import pytest

from gpu_acceptance.inventory import port_counters
from gpu_acceptance.inventory.port_counters import BITS, is_full


@pytest.mark.parametrize(
    ("name", "highest"),
    [
        ("local_link_integrity_errors", 15),
        ("link_downed", 255),
        ("symbol_error", 65_535),
        ("port_rcv_errors", 65_535),
        ("port_xmit_wait", 4_294_967_295),
        ("local_ack_timeout_err", 4_294_967_295),
        ("port_rcv_data", 18_446_744_073_709_551_615),
        ("np_cnp_sent", 18_446_744_073_709_551_615),
    ],
)
def test_a_counter_is_full_at_all_ones(name, highest):
    assert is_full(name, highest)
    assert not is_full(name, highest - 1)
    assert not is_full(name, 0)


def test_a_counter_that_went_beyond_is_wider_than_the_table_says():
    assert not is_full("link_downed", 256)


def test_of_an_unknown_counter_nothing_is_said():
    assert not is_full("rx_prio3_pause", 2**32 - 1)


def test_no_counter_has_two_widths():
    names = [name for names in port_counters._NAMES_OF_BITS.values() for name in names.split()]
    assert sorted(names) == sorted(BITS)
