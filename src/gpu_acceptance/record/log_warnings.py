"""Reads what a worker wrote since it was read last: warnings of NCCL and libibverbs, as figures of subject `counters`."""

import os
from collections import Counter
from pathlib import Path

from gpu_acceptance.base.text import clip
from gpu_acceptance.inventory import nccl_warnings
from gpu_acceptance.record.figure import Figure, make_figure
from gpu_acceptance.thresholds.limit import COUNTERS

_MOST_BYTES = 16 << 20  # of one validation; NCCL_DEBUG=INFO leaves 130 kB on a rank of 4 H200
_MOST_NAMED = 4  # kinds of warnings
_MOST_WARNING = 200  # characters


class LogWarnings:
    """The log of one rank, whose workers come and go. One reading at a time."""

    def __init__(self) -> None:
        self._read_bytes = 0

    def figures(self, log: Path, limited: frozenset[str]) -> tuple[Figure, ...]:
        """One for each kind that has a limit (`limited`: their metrics), and for each other one of which there is a warning.

        A line that has not ended yet is read the next time. More than can be looked at is no value.
        """
        if not log.exists():
            return ()
        text = self._new_text(log)
        found = nccl_warnings.unexpected((text or "").split("\n"))
        figures = [_figure(f"{COUNTERS}.warnings.{name}", warnings, limited, is_whole=text is not None) for name, warnings in found.items()]
        return tuple(figure for figure in figures if figure.judged or figure.value)

    def _new_text(self, log: Path) -> str | None:
        """None where it is too long."""
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            begin, self._read_bytes = self._read_bytes, size
            if size - begin > _MOST_BYTES:
                return None
            file.seek(begin)
            data = file.read(size - begin)
        whole = data[: data.rfind(b"\n") + 1]
        self._read_bytes = begin + len(whole)
        return whole.decode("utf-8", "backslashreplace")


def _figure(metric: str, warnings: list[str], limited: frozenset[str], *, is_whole: bool) -> Figure:
    judged = metric in limited
    if not is_whole:
        return make_figure(metric, None, "count", judged=judged, anomaly=f"the worker wrote more than {_MOST_BYTES} bytes meanwhile")
    return make_figure(metric, len(warnings), "count", judged=judged, detail=_named(warnings))


def _named(warnings: list[str]) -> str:
    """Each once, with how often it was there."""
    kinds = Counter(clip(warning, _MOST_WARNING) for warning in warnings).most_common()
    named = [text if number == 1 else f"{text} ({number} times)" for text, number in kinds[:_MOST_NAMED]]
    return "; ".join([*named, *([f"{len(kinds) - _MOST_NAMED} more"] if len(kinds) > _MOST_NAMED else [])])
