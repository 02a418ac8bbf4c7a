"""Counters of RDMA ports: errors of links, and the bytes that went through."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpu_acceptance.inventory.answer import Answer, Missing, Why, names_in, read_int
from gpu_acceptance.inventory.infiniband import PortName, is_chosen, not_found

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
_OCTETS = 4  # that one count stands for
_HIGHEST = (2**32 - 1, 2**64 - 1)  # where a counter stops; of 32 bits where the device has no PortCountersExtended
_TRAFFIC = {"sent_bytes": "port_xmit_data", "received_bytes": "port_rcv_data"}
NAMES = tuple(f"infiniband.{name}" for name in (*LINK_ERRORS, *_TRAFFIC))


def is_full(name: str, value: int) -> bool:
    """The counter stands at its highest value: it may have stopped there, and says nothing of what came after."""
    return name in BITS and value == 2 ** BITS[name] - 1


@dataclass(frozen=True)
class PortTraffic:
    """Bytes since the counters were reset."""

    at_s: float  # time.monotonic()
    tx_bytes: Answer[int]
    rx_bytes: Answer[int]


def read_traffic(root: Path = Path("/")) -> Mapping[str, PortTraffic]:
    """By port, `mlx5_3 port 1`; empty where there is no RDMA device, or none that shows its ports."""
    folder = root / "sys/class/infiniband"
    traffic: dict[str, PortTraffic] = {}
    for device in _names(folder):
        for port in _names(folder / device / "ports"):
            files = folder / device / "ports" / port / "counters"
            at_s = time.monotonic()
            traffic[PortName(device, port)] = PortTraffic(at_s, read_bytes(files / "port_xmit_data"), read_bytes(files / "port_rcv_data"))
    return traffic


def _names(folder: Path) -> tuple[str, ...]:
    names = names_in(folder)
    return () if isinstance(names, Missing) else names


def read_bytes(path: Path) -> Answer[int]:
    """A counter of octets divided by 4, as `port_xmit_data` is."""
    count = read_int(path)
    if not isinstance(count, Missing) and count in _HIGHEST:
        return Missing(Why.UNREADABLE, f"it stands at its highest value, {count}, until somebody resets it")
    return count if isinstance(count, Missing) else count * _OCTETS


def read(devices: str, root: Path = Path("/")) -> dict[tuple[str, str], Answer[int]]:
    """By name and port (`mlx5_3 port 1`), of the devices that match one of these globs; without any port each is missing."""
    folder = root / "sys/class/infiniband"
    names = names_in(folder)
    if isinstance(names, Missing):
        return _none(names)
    if lacking := not_found(names, devices):
        return _none(lacking)
    values: dict[tuple[str, str], Answer[int]] = {}
    for device in (name for name in names if is_chosen(name, devices)):
        ports = names_in(folder / device / "ports")
        if isinstance(ports, Missing):
            return _none(ports)
        for port in ports:
            values |= _of_port(folder / device / "ports" / port / "counters", PortName(device, port))
    return values or _none(Missing(Why.NOT_THERE, f"no port of an RDMA device that is one of {devices}"[:200]))


def _of_port(folder: Path, port: PortName) -> dict[tuple[str, str], Answer[int]]:
    errors: dict[tuple[str, str], Answer[int]] = {(f"infiniband.{name}", port): _count(folder / name, name) for name in LINK_ERRORS}
    return errors | {(f"infiniband.{name}", port): read_bytes(folder / file) for name, file in _TRAFFIC.items()}


def _count(path: Path, name: str) -> Answer[int]:
    count = read_int(path)
    if not isinstance(count, Missing) and is_full(name, count):
        return Missing(Why.UNREADABLE, f"it stands at its highest value, {count}, until somebody resets it")
    return count


def _none(why: Missing) -> dict[tuple[str, str], Answer[int]]:
    return {(name, ""): why for name in NAMES}
