"""What stands for a name that is not given away, the same everywhere and in every later run, and a proof of what it stands for.

The owner keeps the file of names. Whoever has the redacted run has a digest of salt and name: to prove one name, its salt is shown. A
serial number alone could be guessed from its digest, and one key for all would give away all names with the first.
"""

import ipaddress
import secrets
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from gpu_acceptance.base.model import Model, encode, first_problem
from gpu_acceptance.folder.disk import RecordError, read_regular, sha256_of, write_atomically

Kind = Literal["host", "gpu serial", "gpu uuid", "uuid", "product serial", "chassis serial", "guid", "wide guid", "mac", "ipv4", "ipv6"]
PathKind = Literal["user", "path", "checkout", "packages", "argument"]

_FORMATS: dict[str, str] = {
    "host": "node-{:02d}",
    "gpu serial": "16500000{:04d}",
    "gpu uuid": "GPU-00000000-0000-0000-0000-{:012d}",
    "uuid": "00000000-0000-0000-0001-{:012d}",
    "product serial": "PRODUCT-{:02d}",
    "chassis serial": "CHASSIS-{:02d}",
    "guid": "0000:0000:0000:{:04x}",
    "wide guid": "0x{:016x}",
    "user": "user-{:02d}",
    "path": "/path-{:02d}",
}
_IPV4 = ipaddress.IPv4Network("192.0.2.0/24")  # RFC 5737: addresses for documents
_MORE_IPV4 = ipaddress.IPv4Network("198.18.0.0/15")  # RFC 2544: for benchmarks, where a run has more than 254
_IPV6 = ipaddress.IPv6Network("2001:db8::/32")  # RFC 3849: for documents
EXAMPLES = (_IPV4, _MORE_IPV4, _IPV6)


class Name(Model):
    """One name, what stands for it, and the salt of its digest."""

    kind: Kind | PathKind
    name: Annotated[str, Field(min_length=1)]
    stand_in: Annotated[str, Field(min_length=1)]
    salt: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]

    @property
    def sha256(self) -> str:
        """Of the salt's digits, then the name in UTF-8: `printf %s SALT NAME | sha256sum`."""
        return sha256_of((self.salt + self.name).encode("utf-8", "backslashreplace"))


class NamesFile(Model):
    """What the owner keeps."""

    schema_version: Literal[1] = 1
    names: tuple[Name, ...]


class StandIns:
    """All names known so far; a new one gets the next number of its kind."""

    def __init__(self, names: tuple[Name, ...] = ()) -> None:
        self.names = {one.name: one for one in names}
        self.used: set[str] = set()  # of names, by this run
        self._taken: dict[str, set[str]] = {}  # stand-ins by kind
        for one in names:
            self._taken.setdefault(one.kind, set()).add(one.stand_in)

    def add(self, kind: Kind | PathKind, name: str, stand_in: str = "") -> str:
        """What stands for this name from now on; `stand_in` where that is not a number of its kind."""
        if name not in self.names:
            taken = self._taken.setdefault(kind, set())
            stand_in = stand_in or _numbered(kind, len(taken))
            taken.add(stand_in)
            self.names[name] = Name(kind=kind, name=name, stand_in=stand_in, salt=secrets.token_hex(16))
        self.used.add(name)
        return self.names[name].stand_in


def read_stand_ins(path: Path) -> StandIns:
    """From the owner's file; none where there is no such file yet. Raises RecordError."""
    if not path.exists():
        return StandIns()
    try:
        return StandIns(NamesFile.model_validate_json(read_regular(path)).names)
    except ValidationError as error:
        raise RecordError(f"{path}: {first_problem(error)}") from None


def write_stand_ins(path: Path, stand_ins: StandIns) -> None:
    """For the owner alone: nobody else may read it."""
    names = sorted(stand_ins.names.values(), key=lambda one: (one.kind, one.stand_in, one.name))
    write_atomically(path, encode(NamesFile(names=tuple(names))) + "\n", mode=0o600)


def _numbered(kind: str, number: int) -> str:
    if kind == "mac":
        return ":".join(f"{byte:02x}" for byte in (0x02_00_00_00_00_00 + number).to_bytes(6))  # the bit of locally administered ones
    if kind == "ipv4":
        return str(_IPV4[number + 1] if number < 254 else _MORE_IPV4[number])
    return str(_IPV6[number + 1]) if kind == "ipv6" else _FORMATS[kind].format(number)
