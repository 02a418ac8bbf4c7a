"""What a file of safetensors says of itself at its beginning, and whether all of it is there. No tensor is read; needs no torch.

The format is 8 bytes with the length of the header, little-endian; the header, in JSON; the tensors, without a gap
(https://github.com/huggingface/safetensors, "Format").
"""

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from gpu_acceptance.base.strict_json import StrictJsonError, parse, text_of

MOST_HEADER_BYTES = 100_000_000  # as the library has it
_LENGTH_BYTES = 8
_MOST_DIMENSIONS = 16
_METADATA = "__metadata__"
_ITEM_BYTES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3"), 1),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 2),
    **dict.fromkeys(("I32", "U32", "F32"), 4),
    **dict.fromkeys(("I64", "U64", "F64"), 8),
}
_LFS = re.compile(rb"version https://git-lfs\.github\.com/spec/v1\s(?:.*\s)?size (\d{1,18})\s", re.DOTALL)


class TornFileError(ValueError):
    """A file that is not all there, or not what it is named for: which, what was found, what it promises."""


@dataclass(frozen=True)
class Tensor:
    dtype: str
    shape: tuple[int, ...]
    begin: int  # bytes behind the header
    end: int

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)


def read_header(path: Path) -> tuple[dict[str, Tensor], bytes]:
    """The tensors by name, and the header itself. Raises TornFileError, OSError."""
    with path.open("rb") as file:
        size = path.stat().st_size
        header = _header(path, file, size)
    try:
        tensors = _tensors(parse(text_of(header)))
    except StrictJsonError as error:
        raise TornFileError(f"{path}: no header of safetensors: {error}") from None
    except (AttributeError, KeyError, TypeError, ValueError):
        raise TornFileError(f"{path}: no header of safetensors: a tensor in it has no type, shape and place that fit") from None
    promised = _LENGTH_BYTES + len(header) + max((tensor.end for tensor in tensors.values()), default=0)
    if size != promised:
        raise TornFileError(f"{path}: {size:,} bytes, and its header promises {promised:,}: it was not copied whole")
    return tensors, header


def _header(path: Path, file: BinaryIO, size: int) -> bytes:
    start = file.read(200)
    if pointer := _LFS.match(start):
        raise TornFileError(f"{path}: {size:,} bytes, a pointer of git-lfs to {int(pointer[1]):,}: `git lfs pull` brings the file itself")
    length = int.from_bytes(start[:_LENGTH_BYTES], "little")
    if size < _LENGTH_BYTES or length > MOST_HEADER_BYTES:
        raise TornFileError(f"{path}: {size:,} bytes, and no length of a header of safetensors at its beginning")
    file.seek(_LENGTH_BYTES)
    header = file.read(length)
    if len(header) < length:
        raise TornFileError(f"{path}: {size:,} bytes, and its header alone has {length:,}: it was not copied whole")
    return header


def _tensors(told: dict[str, Any]) -> dict[str, Tensor]:
    """Raises all that a wrong entry can raise."""
    tensors = {name: _tensor(entry) for name, entry in told.items() if name != _METADATA}
    end = 0
    for tensor in sorted(tensors.values(), key=lambda one: (one.begin, one.end)):
        if tensor.begin != end:
            raise ValueError(tensor)
        end = tensor.end
    return tensors


def _tensor(told: dict[str, Any]) -> Tensor:
    (begin, end), shape = told["data_offsets"], told["shape"]
    if len(shape) > _MOST_DIMENSIONS or not all(type(number) is int and 0 <= number < 2**63 for number in (begin, end, *shape)):
        raise ValueError(told)
    tensor = Tensor(told["dtype"], tuple(shape), begin, end)
    if end - begin != tensor.num_elements * _ITEM_BYTES[tensor.dtype]:
        raise ValueError(told)
    return tensor
