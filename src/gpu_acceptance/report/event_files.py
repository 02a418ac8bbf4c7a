"""The curves of a run as event files of TensorBoard: a run of TensorBoard for each rank, in it a tag for each curve.

The record alone is enough. The package tensorboardX writes the files: it needs numpy, packaging and protobuf 3.20 or later, while
TensorBoard itself (2.21) would replace gRPC and protobuf of a cluster's image by its own.
A record has the begin of its run and no time of a step: all points have that time. TensorBoard keeps scalars in single precision.
"""

import importlib.util
import math
import os
import re
import secrets
import shlex
import shutil
import sys
from collections import Counter, defaultdict
from pathlib import Path

from gpu_acceptance.base.text import plural, visible
from gpu_acceptance.folder.files import RecordError
from gpu_acceptance.record.figure import Curve
from gpu_acceptance.record.run_record import RunRecord
from gpu_acceptance.report.words import parse_moment

FOLDER = "tensorboard"
_PACKAGE = "tensorboardX"
_VERSION = "brain.Event:2"  # the format, in the first event of each file
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9._-]")
_LONGEST_NAME = 100  # characters of a host in the name of a folder

Tagged = list[tuple[str, Curve]]


def find_missing() -> str | None:
    """Return why no event file can be written, or None. Imports nothing: tensorboardX sets a variable that workers would inherit."""
    if importlib.util.find_spec(_PACKAGE):
        return None
    return f"--tensorboard writes with {_PACKAGE}, which is not installed: {sys.executable} -m pip install {_PACKAGE}, or leave it out"


def write_event_files(run_dir: Path, record: RunRecord) -> str:
    """Make `tensorboard/` in this run folder, whole or not at all, and return a line for people. A run without curves leaves none.

    Raises RecordError where the folder exists already or the record has no begin, OSError, and ImportError.
    """
    told = _by_folder(record)
    if not told:
        return f"{FOLDER}: nothing to write, no validation of this run kept a curve"
    folder, making = run_dir / FOLDER, run_dir / f".{FOLDER}.{secrets.token_hex(4)}"
    if os.path.lexists(folder):
        raise RecordError(f"{folder} is there already; move it away to write it anew")
    began = parse_moment(record.plan.started_at)
    if began is None:
        raise RecordError(f"started_at is {record.plan.started_at!r:.100}, not an ISO 8601 time with a zone")
    try:
        for name, tagged in told.items():
            _write(making / name, tagged, began.timestamp())
        making.rename(folder)
    except BaseException:
        shutil.rmtree(making, ignore_errors=True)
        raise
    num_curves = sum(map(len, told.values()))
    return f"{FOLDER}: {plural(num_curves, 'curve')}; to look at them: tensorboard --logdir={shlex.quote(str(folder))}"


def _by_folder(record: RunRecord) -> dict[Path, Tagged]:
    """Return the curves by folder: `node-03/rank-00005`, for a repeat with `/attempt-2`. No text from a machine leads out of it.

    The tag of a curve is `ddp.gpt2/loss`, in the group `ddp.gpt2`; one that several have names the validation.
    """
    told = [
        (row.nodeid, attempt.number, rank, curve)
        for row in record.rows
        for attempt in row.attempts
        for rank in attempt.ranks
        for curve in rank.curves
    ]
    owners = Counter(_grouped(name) for _, name in {(nodeid, curve.name) for nodeid, _, _, curve in told})
    hosts = {identity.rank: identity.host for identity in record.ranks}
    found = defaultdict[Path, Tagged](list)
    for nodeid, number, rank, curve in told:
        host = _NOT_IN_A_NAME.sub("_", hosts.get(rank.rank, ""))[:_LONGEST_NAME].lstrip(".") or "unknown"
        folder = Path(host, f"rank-{rank.rank:05d}", f"attempt-{number}" if number > 1 else "")
        tag = _grouped(curve.name)
        found[folder].append((visible(tag if owners[tag] == 1 else f"{curve.name} ({nodeid})"), curve))
    return found


def _grouped(name: str) -> str:
    return "/".join(filter(None, name.rpartition(".")[::2]))


def _write(folder: Path, tagged: Tagged, began_s: float) -> None:
    """Write one file with an event for each step. Where there was no finite number TensorBoard shows a NaN."""
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.record_writer import RecordWriter

    events = defaultdict[int, Event](Event)
    for tag, curve in tagged:
        for step, value in zip(curve.steps, curve.points, strict=True):
            events[step].summary.value.add(tag=tag, simple_value=math.nan if value is None else value)
    folder.mkdir(parents=True, exist_ok=True)  # a repeat lies in the folder of the first attempt
    writer = RecordWriter(str(folder.absolute() / f"events.out.tfevents.{began_s:.0f}"))
    try:
        writer.write(Event(wall_time=began_s, file_version=_VERSION).SerializeToString())
        for step in sorted(events):
            events[step].wall_time, events[step].step = began_s, step
            writer.write(events[step].SerializeToString())
        writer.flush()
    finally:
        writer.close()
