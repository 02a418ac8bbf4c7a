"""A client of the control store, in time. torch's own tries for longer than it is told, and for ever where something else listens."""

import queue
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

from torch.distributed import DistError, Store, TCPStore

LONGEST_RUN = timedelta(days=30)  # a wait that times out writes two warnings to stderr; ours never should
_EVERY_S = 0.5
_ANSWER_S = 10.0  # at least, of what listens: thousands of ranks may ask a store at once
_LAST_S = 1.0  # for an answer that is on its way when the run is to end
_NOT_THERE = "?"  # no value of ours
_TORCH_S = 86400.0  # our clock decides: where a wait of torch ends first, it writes a trace and aborts the interpreter at its exit


class NoStoreError(RuntimeError):
    """No control store is there; why, in one line."""


def store_client(host: str, port: int, within_s: float, stopped: Callable[[], object] = lambda: None) -> TCPStore:
    """A client of the store that listens there. Raises NoStoreError, early where `stopped` has something to say."""
    end = time.monotonic() + within_s
    _await_listener(host, port, end, stopped)
    made: queue.SimpleQueue[TCPStore | NoStoreError] = queue.SimpleQueue()
    # A thread that gets no answer stays behind: torch waits for one without an end, and cannot be told to stop.
    threading.Thread(target=_make, args=(host, port, within_s, made), daemon=True, name="control-connect").start()
    end = max(end, time.monotonic() + _ANSWER_S)
    is_stopped = False
    while made.empty() and time.monotonic() < end:
        if not is_stopped and stopped():  # a thread that comes back while the interpreter shuts down would abort it (SIGABRT)
            is_stopped, end = True, min(end, time.monotonic() + _LAST_S)
        time.sleep(0.01)
    if is_stopped:
        raise NoStoreError("the run is to end")
    client = NoStoreError("what listens there does not answer as one does") if made.empty() else made.get()
    if isinstance(client, NoStoreError):
        raise client
    return client


def get_now(store: Store, key: str) -> bytes | None:
    """The value of a key, or None where there is none. `get` would wait for a key that a stranger deleted, and costs one answer more."""
    value = store.compare_set(key, _NOT_THERE, _NOT_THERE)
    return None if value == _NOT_THERE.encode() else value


def get_all_now(store: Store, keys: list[str]) -> list[bytes | None]:
    """The values of keys that should all be there, in two answers however many they are; None for one that is not."""
    with suppress(RuntimeError):  # raised again below where the store itself is gone
        if len(keys) > 2 and store.check(keys):  # else it would wait for the client's patience, as it does where one is deleted after this
            return list(store.multi_get(keys))
    return [get_now(store, key) for key in keys]


def _await_listener(host: str, port: int, end: float, stopped: Callable[[], object]) -> None:
    """Where nobody listens, torch would write a trace of hundreds of lines."""
    reason = ""
    while True:
        try:
            socket.create_connection((host, port), timeout=max(_EVERY_S, min(5.0, end - time.monotonic()))).close()
            return
        except OSError as error:
            reason = error.strerror or reason or str(error)  # one that only took too long says less than the one before
            if time.monotonic() + _EVERY_S > end or stopped():
                raise NoStoreError(reason) from None
        time.sleep(_EVERY_S)


def _make(host: str, port: int, within_s: float, made: "queue.SimpleQueue[TCPStore | NoStoreError]") -> None:
    try:
        client = TCPStore(host, port, None, is_master=False, timeout=timedelta(seconds=_TORCH_S))
        client.set_timeout(timedelta(seconds=within_s))  # of each later call
        made.put(client)
    except (DistError, RuntimeError, ValueError) as error:
        made.put(NoStoreError(str(error).splitlines()[0]))
