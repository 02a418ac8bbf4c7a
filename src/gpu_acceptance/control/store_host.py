"""The control store where no launcher hosts one: a small process of its own, which outlives every rank.

Rank 0 starts it before anything else. It is a daemon: no rank's descendant, so that none takes it along, and in a session of its own. Under
Slurm it ends with its step at the latest. By itself it ends once all ranks have closed their end, or no heartbeat has come for a while.
"""

import contextlib
import errno
import os
import secrets
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable

from torch.distributed import PrefixStore, Store, TCPStore

from gpu_acceptance.base.process import finding_package, let_open, num_files_of_store
from gpu_acceptance.control.rank import LaunchError, Rank
from gpu_acceptance.control.session import Session, get_now, store_client

CLOSED = "closed/{}"  # of each rank that will not ask the store again
BEAT = "beat/{}"  # heartbeats.py writes them
_MARK = "store"  # whose store this is
START_S = 60.0  # for an import of torch on a busy machine
_ROUND_S = 1.0
_EVERY_S = 0.2
_SILENT_ROUNDS = 30  # rounds, not seconds: a suspended job takes the store along. Longer than any rank waits for another's heartbeat
_REACH_S = 30.0  # it listens already; a new name may take a while to be known
_WAITING = 16_384  # ranks that connect at once; the kernel takes no more than net.core.somaxconn


def host_store(place: Rank, prefix: str, session: Session, within_s: float = START_S, stopped: Callable[[], object] = lambda: None) -> None:
    """Rank 0: start the store within this time, and check that the address of the ranks leads to it.

    Raises LaunchError, early where `stopped` returns something.
    """
    mark = secrets.token_hex(8)
    answer = _start(place, prefix, mark, session, within_s, stopped)
    if answer != "ready":
        raise LaunchError(
            f"rank 0 cannot host the control store on port {place.store_port} of {place.host}: {answer}; "
            "MASTER_PORT names another one, the same for all ranks"
        )
    # Otherwise ranks could meet in the store of another run, or in that of another rank 0.
    wrong = f"rank 0 is on {place.host}, and MASTER_ADDR={place.store_host} "
    try:
        store = PrefixStore(prefix, store_client(place.store_host, place.store_port, _REACH_S, stopped))
        found = store.get(_MARK).decode() if store.check([_MARK]) else ""
    except RuntimeError as error:
        first_line = str(error).splitlines()[0]
        raise LaunchError(f"{wrong}does not lead there, to port {place.store_port}: {first_line}; name the host of rank 0") from None
    if found != mark:
        raise LaunchError(f"{wrong}leads to the store of another run: name the host of rank 0")


def _start(place: Rank, prefix: str, mark: str, session: Session, within_s: float, stopped: Callable[[], object]) -> str:
    """Return `ready`, or the reason why there is no store."""
    read_fd, write_fd = os.pipe()
    host = place.store_host if place.num_nodes == 1 else ""
    numbers = map(str, (write_fd, place.store_port, place.world_size))
    command = [sys.executable, "-m", "gpu_acceptance.control.store_host", *numbers, prefix, mark, host]
    null, env, end = subprocess.DEVNULL, finding_package(os.environ), time.monotonic() + within_s
    with os.fdopen(read_fd, "rb", buffering=0) as answer:
        try:
            started = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=null, stderr=null, pass_fds=[write_fd])
        finally:
            os.close(write_fd)
        with started:
            with contextlib.suppress(BrokenPipeError), started.stdin as key:  # type: ignore[union-attr]  # a pipe was asked for
                key.write(session.key)
            while not select.select([answer], [], [], min(_EVERY_S, max(0.0, end - time.monotonic())))[0]:
                if stopped() or time.monotonic() >= end:
                    started.kill()
                    return f"it did not start within {within_s:g} s"
        return answer.read(4096).decode("utf-8", "replace") or "it ended"


def listen_here(port: int, host: str = "127.0.0.1") -> TCPStore:
    """Return a store that listens at one address of this machine. torch itself would listen on all interfaces. Raises OSError."""
    family, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(where)
    listener.listen(_WAITING)
    port, fd = listener.getsockname()[1], listener.detach()  # which belongs to the store from here on
    return TCPStore(host, port, None, is_master=True, wait_for_workers=False, master_listen_fd=fd)


def _listen(port: int, host: str) -> TCPStore:
    """`host`: the address by which all ranks reach it, where they are on one node. An address of another machine is found out later."""
    if host:
        try:
            return listen_here(port, host)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise
    return TCPStore("127.0.0.1", port, None, is_master=True, wait_for_workers=False)


def main(answer_fd: int, port: int, world_size: int, prefix: str, mark: str, host: str) -> None:
    """Host the store until all ranks have closed their end, or no heartbeat has come for so many rounds."""
    session = Session(sys.stdin.buffer.read())
    if os.fork():
        os._exit(0)  # the process that started us is not our parent any more
    os.setsid()
    os.chdir("/")
    let_open(0, num_files_of_store(world_size))
    os.set_inheritable(answer_fd, False)
    with os.fdopen(answer_fd, "wb", buffering=0) as answer:
        try:
            base = PrefixStore(prefix, _listen(port, host))
            base.set(_MARK, mark)
        except (OSError, RuntimeError, ValueError) as error:
            answer.write(str(error).splitlines()[0].encode()[:4000])
            return
        answer.write(b"ready")
    store, silent, before = PrefixStore(session.name, base), 0, None
    while silent < _SILENT_ROUNDS and any(_read(store, session, CLOSED, rank) is None for rank in range(world_size)):
        time.sleep(_ROUND_S)
        beats = [_read(store, session, BEAT, rank) for rank in range(world_size)]
        silent, before = (silent + 1 if beats == before else 0), beats


def _read(store: Store, session: Session, key: str, rank: int) -> bytes | None:
    """Return what a rank wrote there, if it is authentic."""
    text = get_now(store, key.format(rank))
    said = session.check(key.format(rank), text) if text is not None else None
    return text if said and said.sender == rank else None


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
