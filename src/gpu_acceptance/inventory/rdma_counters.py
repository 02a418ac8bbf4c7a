"""How far the counters of an RDMA port count. Pure.

A counter of the InfiniBand specification's PortCounters stays at its highest value, all ones, until somebody resets it: there it hides what
happens. The widths are those of PORT_PMA_ATTR in Linux drivers/infiniband/core/sysfs.c; the traffic counters have 64 bits where the device
has PortCountersExtended, else 32. Of those in hw_counters only mlx5's are known here (drivers/infiniband/hw/mlx5/counters.c): it reads Q
counters as 32 bits, those of congestion and rx_icrc_encapsulated as 64. No source says whether a Q counter stops or starts again at 0.
"""

from collections.abc import Mapping

_NAMES_OF_BITS = {
    4: "local_link_integrity_errors excessive_buffer_overrun_errors",
    8: "link_error_recovery link_downed port_xmit_constraint_errors port_rcv_constraint_errors",
    16: "symbol_error port_rcv_errors port_rcv_remote_physical_errors port_rcv_switch_relay_errors port_xmit_discards VL15_dropped",
    32: """
        port_xmit_wait
        rx_write_requests rx_read_requests rx_atomic_requests rx_dct_connect out_of_buffer
        out_of_sequence duplicate_request rnr_nak_retry_err packet_seq_err implied_nak_seq_err local_ack_timeout_err
        resp_local_length_error resp_cqe_error req_cqe_error resp_cqe_flush_error req_cqe_flush_error
        req_remote_invalid_request req_remote_access_errors resp_remote_access_errors
        req_transport_retries_exceeded req_rnr_retries_exceeded
        roce_adp_retrans roce_adp_retrans_to roce_slow_restart roce_slow_restart_cnps roce_slow_restart_trans
    """,
    64: """
        port_xmit_data port_rcv_data port_xmit_packets port_rcv_packets
        unicast_xmit_packets unicast_rcv_packets multicast_xmit_packets multicast_rcv_packets
        rp_cnp_ignored rp_cnp_handled np_ecn_marked_roce_packets np_cnp_sent rx_icrc_encapsulated
    """,
}
BITS: Mapping[str, int] = {name: bits for bits, names in _NAMES_OF_BITS.items() for name in names.split()}


# InfiniBand specification, PortCounters: what a good link does not count. Traffic and waiting for credits are no errors.
LINK_ERRORS = ("link_downed", "link_error_recovery", "symbol_error", "port_rcv_errors", "port_xmit_discards")


def is_full(name: str, value: int) -> bool:
    """The counter stands at its highest value: it may have stopped there, and says nothing of what came after."""
    return name in BITS and value == 2 ** BITS[name] - 1
