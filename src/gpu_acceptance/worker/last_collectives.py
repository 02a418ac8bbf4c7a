"""Where this process stands on each group, from torch's flight recorder: at the first unfinished collective, else at the last.

Asked for by the supervisor while the main thread is stuck, so a thread of its own answers: it needs the GIL, but no GPU and no peer.
The recorder must be on, as torch has it by default or as `TORCH_FR_BUFFER_SIZE` says; nothing here turns it on, since it is part of
the setting that is measured.
"""

import json
import os
import threading
from pathlib import Path
from typing import Any

from torch._C import _distributed_c10d as c10d

from gpu_acceptance.record.row import MOST_COLLECTIVES, LastCollective

_RECORDERS = ("_dump_nccl_trace_json", "_dump_fr_trace_json")  # NCCL's own; every other backend's


def answer_when_asked(bell_fd: int, file: Path) -> None:
    """Starts the thread that writes `file` once a byte arrives on `bell_fd`."""
    threading.Thread(target=_answer, args=(bell_fd, file), daemon=True, name="last-collectives").start()


def last_collectives(dump: dict[str, Any]) -> list[LastCollective]:
    """Of every group of a recorder's dump, in the order of their names."""
    place: dict[str, dict[str, Any]] = {}
    for entry in _launched(dump.get("entries", [])):
        group = _name(*entry["process_group"])
        if group not in place or _finished(place[group]):
            place[group] = entry
    return [_read(group, entry) for group, entry in sorted(place.items())]


def _launched(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Oldest first, and of those that went to the device as one, such as `batch_isend_irecv`, the last.

    They share a number, and torch sees the end of the last one alone (pytorch#137969).
    """
    return list({(*entry["process_group"], entry["is_p2p"], _number(entry)): entry for entry in entries}.values())


def _answer(bell_fd: int, file: Path) -> None:
    if not os.read(bell_fd, 1):
        return  # the supervisor is gone
    told: list[LastCollective] = []
    for name in _RECORDERS:
        if dump := getattr(c10d, name, None):
            told += last_collectives(json.loads(dump(True, False)))
    part = file.with_suffix(".part")
    part.write_text(json.dumps([one.model_dump() for one in told[:MOST_COLLECTIVES]]), encoding="utf-8")
    part.replace(file)


def _name(number: str, description: str) -> str:
    """One name for one group on all its ranks, and no other's: several groups may share a description."""
    return description if description == "default_pg" else " ".join(part for part in (description, number) if part != "undefined")


def _finished(entry: dict[str, Any]) -> bool:
    """Whether torch saw its end. Its `state` says `completed` too soon: of a collective that NCCL has not launched yet (seen, 2.11)."""
    return bool(entry["retired"])


def _read(group: str, entry: dict[str, Any]) -> LastCollective:
    operation = f"{entry['profiling_name']} {entry['input_sizes']} {' '.join(entry['input_dtypes'])}"
    return LastCollective(
        group=group[:200], number=_number(entry), is_p2p=entry["is_p2p"], operation=operation[:300], finished=_finished(entry)
    )


def _number(entry: dict[str, Any]) -> int:
    number: int = entry["p2p_seq_id"] if entry["is_p2p"] else entry["collective_seq_id"]
    return number
