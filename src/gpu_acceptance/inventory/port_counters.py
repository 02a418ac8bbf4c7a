"""What the ports of this node's RDMA devices have counted, errors and bytes, as sysfs shows it: files, no port is asked for its state.

Sources: Linux Documentation/ABI/stable/sysfs-class-infiniband; InfiniBand Architecture Specification, PortCounters.
"""

from pathlib import Path

from gpu_acceptance.inventory.answer import Answer, Missing, Why, names_in, read_int
from gpu_acceptance.inventory.infiniband import PortName, is_chosen, not_found
from gpu_acceptance.inventory.port_traffic import read_bytes
from gpu_acceptance.inventory.rdma_counters import LINK_ERRORS, is_full

_TRAFFIC = {"sent_bytes": "port_xmit_data", "received_bytes": "port_rcv_data"}
NAMES = tuple(f"infiniband.{name}" for name in (*LINK_ERRORS, *_TRAFFIC))


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
