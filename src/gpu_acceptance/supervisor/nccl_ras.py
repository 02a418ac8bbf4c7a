"""What NCCL itself knows of a hang, from its RAS service: how many collectives each rank launched, and who does not answer.

Every process that uses NCCL 2.24 or later serves it, in threads that need neither the GPU nor Python; JSON since 2.28.
Source: NCCL user guide, "RAS"; the answer's form as NCCL 2.28.9 gave it on 2 GPUs (reports/evidence/nccl-ras.txt).
"""

import contextlib
import json
import re
import socket
from collections import defaultdict
from collections.abc import Iterator, Mapping

from pydantic import BaseModel, NonNegativeInt, ValidationError

from gpu_acceptance.base.text import clip, named, one_line

_DEFAULT = "localhost:28028"
_QUESTION = b"CLIENT PROTOCOL 2\nTIMEOUT 2\nSET FORMAT json\nVERBOSE STATUS\n"  # it waits so many seconds for the other processes
_CONNECT_S = 0.2  # to this host
_LOCALHOST = ("127.0.0.1", "::1")
_MOST_BYTES = 1 << 20  # some 500 bytes a rank; to read that much may take the supervisor a second, in which nothing else runs
_MOST_COMMUNICATORS = 4
# NCCL 2.28.9 leaves the comma out where a rank is missing. Nothing here is tried twice: whoever listens there may send only blanks.
_NO_COMMA = re.compile(rb'(?<=[\w"\]}])(?=[^\S\n]*\n\s*+"\w++":)')


class _Status(BaseModel):
    async_error: int = 0


class _Rank(BaseModel):
    rank: NonNegativeInt
    pid: int
    status: _Status = _Status()
    collective_counts: dict[str, int] = {}


class _Missing(BaseModel):
    rank: NonNegativeInt


class _Communicator(BaseModel):
    size: int
    ranks: list[_Rank]
    missing_ranks: list[_Missing] = []


class _Answer(BaseModel):
    communicators: list[_Communicator]


def ras_address(environment: Mapping[str, str]) -> tuple[str, int] | None:
    """Where the service of this environment's processes listens; None where a name would have to be looked up, which can take long."""
    host, _, port = environment.get("NCCL_RAS_ADDR", _DEFAULT).rpartition(":")
    host = host.strip("[]")
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536) or not _is_address(host):
        return None
    return host, int(port)


class RasQuery:
    """One question about the job of process `pid`; waits for nobody but for the connection to this host. To be polled, then closed."""

    def __init__(self, address: tuple[str, int], pid: int) -> None:
        self._pid = pid
        self._answer = b""
        self._socket = _connect(address)
        with contextlib.suppress(OSError):
            if self._socket:
                self._socket.sendall(_QUESTION)
                self._socket.setblocking(False)

    def poll(self) -> bool:
        """Whether the answer is here to its end, or none will come."""
        try:
            while self._socket and len(self._answer) <= _MOST_BYTES:
                part = self._socket.recv(1 << 16)
                if not part:
                    self.close()
                self._answer += part
        except BlockingIOError:
            return False
        except OSError:
            self.close()
        return True

    @property
    def told(self) -> str:
        """In words, of the communicators that `pid` is in: another job may be the one that listens. Empty where it told nothing of it."""
        return describe(self._answer, self._pid)

    def close(self) -> None:
        if self._socket:
            self._socket.close()
        self._socket = None


def describe(answer: bytes, pid: int) -> str:
    """`8 ranks: AllReduce 4 on ranks 0-2,4-7, 3 on rank 3`, per communicator of process `pid`; empty where nothing can be read."""
    try:
        parsed = _Answer.model_validate(json.loads(_NO_COMMA.sub(b",", answer[answer.index(b"{") :])))
    except (ValueError, ValidationError, RecursionError):
        return ""
    own = [one for one in parsed.communicators if any(rank.pid == pid for rank in one.ranks)]
    return clip("\n".join(_describe(one) for one in own[:_MOST_COMMUNICATORS]))


def _describe(communicator: _Communicator) -> str:
    facts = [*_silent(communicator), *_errors(communicator), *_counts(communicator)]
    return f"{communicator.size} ranks: {'; '.join(facts) or 'no collectives'}"


def _silent(communicator: _Communicator) -> Iterator[str]:
    if communicator.missing_ranks:
        yield f"no answer from {named('rank', (one.rank for one in communicator.missing_ranks))}"


def _errors(communicator: _Communicator) -> Iterator[str]:
    for rank in communicator.ranks:
        if rank.status.async_error:
            yield f"NCCL error {rank.status.async_error} on rank {rank.rank}"


def _counts(communicator: _Communicator) -> Iterator[str]:
    """Where ranks differ, per collective; else what all launched."""
    launched: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for rank in communicator.ranks:
        for operation, count in rank.collective_counts.items():
            launched[operation][count].append(rank.rank)
    differ = {operation: counts for operation, counts in launched.items() if len(counts) > 1}
    for operation, counts in differ.items():
        most_first = sorted(counts.items(), key=lambda item: -len(item[1]))
        said = ", ".join(f"{count} on {named('rank', ranks)}" for count, ranks in most_first)
        yield f"{one_line(operation)} {said}"
    same = [f"{one_line(operation)} {next(iter(counts))}" for operation, counts in launched.items() if any(counts)]
    if same and not differ:
        yield f"all have launched the same ({', '.join(same)})"


def _connect(address: tuple[str, int]) -> socket.socket | None:
    """By number alone: even `localhost` is a question to a name server where /etc/hosts lacks it."""
    host, port = address
    for one in _LOCALHOST if host == "localhost" else (host,):
        with contextlib.suppress(OSError):
            return socket.create_connection((one, port), timeout=_CONNECT_S)
    return None


def _is_address(host: str) -> bool:
    for family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError):
            socket.inet_pton(family, host)
            return True
    return host == "localhost"
