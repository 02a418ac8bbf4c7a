"""The secret of a run. Every control message carries a code that only a process with this secret can make or check.

Any process that reaches the control store, of another user or on another host, can read and write what is in it. The secret keeps
a stranger from speaking for a rank. On one node rank 0 makes it and hands it to the other ranks over a socket of this machine; the kernel
says whose process each end is. Over several nodes the launcher hands it to every rank, in the environment: `GPU_ACCEPTANCE_KEY`.
"""

import contextlib
import hashlib
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field

from gpu_acceptance.base.process import address, is_ours, peer_user
from gpu_acceptance.control.rank import INCOMPLETE, LaunchError, Rank, RefusedError

KEY = "GPU_ACCEPTANCE_KEY"
_LEAST_CHARACTERS = 32
_NUM_BYTES = 32
_NUM_PLACES = 8  # names of the socket; another user may have taken one
_EVERY_S, _ANSWER_S = 0.05, 2.0
_GIVEN = b"given"


@dataclass(frozen=True)
class Secret:
    """The key that the codes of one run are made with."""

    key: bytes = field(repr=False)
    is_of_run: bool  # made for this run alone: what another run wrote cannot be mistaken for a message of this one
    is_known_to_us_alone: bool = True  # False: no key was given over several nodes


NO_SECRET = Secret(b"", is_of_run=False, is_known_to_us_alone=False)
_given: list[str] = []


def hide_key(environ: MutableMapping[str, str] = os.environ) -> None:
    """Take the key out of the environment, before a conftest runs and a process is started that would inherit it."""
    if (key := environ.pop(KEY, None)) is not None:
        _given[:] = [key]


def find_secret(place: Rank, patience_s: float, stopped: Callable[[], object]) -> Secret:
    """Return the secret of this run.

    Raises LaunchError for a key that is too short, and RefusedError where rank 0 of this node hands none over within `patience_s`.
    `stopped` ends the wait early.
    """
    if _given and _given[0]:
        if len(_given[0]) < _LEAST_CHARACTERS:
            raise LaunchError(
                f"{KEY} in the environment has {len(_given[0])} characters; allowed: {_LEAST_CHARACTERS} or more, the same on all nodes "
                f"(openssl rand -hex {_NUM_BYTES} makes one)"
            )
        return Secret(hashlib.sha256(_given[0].encode("utf-8", "surrogateescape")).digest(), is_of_run=False)
    if place.num_nodes > 1:
        return NO_SECRET
    if place.rank:
        return Secret(_ask_rank_0(place, patience_s, stopped), is_of_run=True)
    key = secrets.token_bytes(_NUM_BYTES)
    if place.world_size > 1:
        _hand_over(_name_of(place), key, place.world_size)
    return Secret(key, is_of_run=True)


def _name_of(place: Rank) -> str:
    """Return a name that all ranks of one run of this user share, and no other run that goes on at the same time."""
    run = f"{os.geteuid()} {place.run_id} {place.store_host} {place.store_port} {place.world_size}"
    return f"secret/{hashlib.sha256(run.encode()).hexdigest()[:32]}"


def _hand_over(name: str, key: bytes, world_size: int) -> None:
    """Rank 0: give the key to processes of this user, once for each rank, from a thread that ends with the process."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for number in range(_NUM_PLACES):
        with contextlib.suppress(OSError):
            listener.bind(address(f"{name}/{number}"))
            break
    else:
        listener.close()
        raise RefusedError(_taken("all names of the socket are in use"), INCOMPLETE)
    listener.listen(world_size + _NUM_PLACES)
    threading.Thread(target=_serve, args=(listener, key, world_size), daemon=True, name="secret").start()


def _serve(listener: socket.socket, key: bytes, world_size: int) -> None:
    waiting = set(range(1, world_size))
    while True:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError, ValueError):
            if is_ours(connection):
                connection.settimeout(_ANSWER_S)
                rank = int(connection.recv(_NUM_BYTES))
                connection.send(key if rank in waiting else _GIVEN)
                waiting.discard(rank)


def _ask_rank_0(place: Rank, patience_s: float, stopped: Callable[[], object]) -> bytes:
    end, name, problem = time.monotonic() + patience_s, _name_of(place), "it did not come, or it ended"
    while time.monotonic() < end and not stopped():
        for number in range(_NUM_PLACES):
            answer = _ask(address(f"{name}/{number}"), place.rank)
            if isinstance(answer, bytes):
                return answer
            problem = answer or problem
        time.sleep(_EVERY_S)
    raise RefusedError(f"rank 0 did not hand over the secret of the run within {patience_s:g} s: {problem}", INCOMPLETE)


def _ask(where: str, rank: int) -> bytes | str:
    """Return the key; else the problem, or an empty text where none is known."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection, contextlib.suppress(OSError):
        connection.settimeout(_ANSWER_S)
        connection.connect(where)
        if not is_ours(connection):
            return _taken(f"a process of user id {peer_user(connection)} holds a name of the socket")
        connection.send(str(rank).encode())
        key = connection.recv(_NUM_BYTES)
        if key == _GIVEN:
            return f"it has given it to another process that is rank {rank}"
        if len(key) == _NUM_BYTES:
            return key
    return ""


def _taken(what: str) -> str:
    return f"{what}; end that process, or give all ranks the same key in {KEY}"
