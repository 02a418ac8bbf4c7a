"""Hashes known to be right, by versions: what finds GPUs that are all wrong alike.

A hash holds for one torch, CUDA, cuBLAS, driver, GPU and shape, and for one input: with any other there is no answer,
never a pass. The file is text from outside: it is read strictly, or not at all.
"""

from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from gpu_acceptance.measure.corruption.peers import Reading, Work

MOST_BYTES = 2**24
_MOST_PLACE = 100
_Text = Annotated[str, Field(pattern=r"^[!-~]([ -~]{0,98}[!-~])?$")]
_Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]


class Answer(StrEnum):
    """What the golden file says of one reading."""

    EQUAL = "equal"
    DIFFERENT = "different"
    OTHER_INPUT = "other input"  # the output was not compared
    UNKNOWN = "unknown"  # no hash for this work


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class GoldenHash(_Model):
    """The right hash of one work, and who says so."""

    torch: _Text
    cuda: _Text
    cublas: _Text
    driver: _Text
    gpu: _Text
    kernel: _Text
    shape: _Text
    input_hash: _Hash
    hash: _Hash
    source: _Text  # date, machine, how many GPUs agreed

    @property
    def work(self) -> Work:
        return Work(self.torch, self.cuda, self.cublas, self.driver, self.gpu, self.kernel, self.shape)


class GoldenFile(_Model):
    """All hashes that are known."""

    schema_version: Literal[1]
    hashes: tuple[GoldenHash, ...]

    @model_validator(mode="after")
    def _each_work_once(self) -> Self:
        seen = set[Work]()
        for known in self.hashes:
            if known.work in seen:
                raise ValueError(f"two hashes for {known.kernel} {known.shape} on {known.gpu} with torch {known.torch}")
            seen.add(known.work)
        return self

    def compare(self, reading: Reading) -> Answer:
        """This reading against the hash of its work."""
        known = next((known for known in self.hashes if known.work == reading.work), None)
        if known is None:
            return Answer.UNKNOWN
        if known.input_hash != reading.input_hash:
            return Answer.OTHER_INPUT
        return Answer.EQUAL if known.hash == reading.hash else Answer.DIFFERENT


def encode(golden: GoldenFile) -> str:
    """The file as text, one line a hash, so that two of them can be compared line by line."""
    lines = ",\n".join(known.model_dump_json() for known in golden.hashes)
    return f'{{"schema_version": {golden.schema_version}, "hashes": [\n{lines}\n]}}\n'


def parse(content: bytes, where: str) -> GoldenFile:
    """The file of this content. ValueError names `where`, the place in it, and what is wrong there."""
    if len(content) > MOST_BYTES:
        raise ValueError(f"{where}: {len(content)} bytes; at most {MOST_BYTES}")
    try:
        return GoldenFile.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ascii(".".join(map(str, first["loc"])))[1:-1][:_MOST_PLACE]  # it may hold a key of the file
        raise ValueError(f"{where}: {place and f'{place}: '}{first['msg']}{_more(error)}") from None


def _more(error: ValidationError) -> str:
    return f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
