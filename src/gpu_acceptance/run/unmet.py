"""A run that cannot begin because its ranks did not meet: whoever is there leaves a journal that says who it is, and why nothing ran.

Of no other refusal is anything kept: a mistyped option must not fill the report folder.
"""

from collections.abc import Iterable
from pathlib import Path

from gpu_acceptance.base.deaf_launcher import end_launcher_later
from gpu_acceptance.base.text import clip
from gpu_acceptance.control.rank import INCOMPLETE, RefusedError, UnmetError
from gpu_acceptance.folder.disk import RecordError
from gpu_acceptance.folder.journal import Journal
from gpu_acceptance.folder.run_files import RunFiles, node_run_id, utc_now
from gpu_acceptance.record.job import RankIdentity
from gpu_acceptance.record.run_record import Refusal


def refuse_start(
    error: RefusedError, own: RefusedError | None, report_dir: Path, identity: RankIdentity, launcher: int | None
) -> RefusedError:
    """What this rank ends with, where it was refused before it had a run folder. `own`: what it would have refused the run for."""
    if isinstance(error, UnmetError):
        if error.is_cut_off and launcher and identity.local_rank == 0:
            end_launcher_later(launcher)
        if own:
            return own  # this must be put right in any case
    if error.exit_code == INCOMPLETE:
        run_id = error.run_id or node_run_id(identity.host, launcher)
        _leave_journal(error, report_dir, identity.model_copy(update={"run_id": run_id}))
    return error


def _leave_journal(error: RefusedError, report_dir: Path, identity: RankIdentity) -> None:
    files = RunFiles(report_dir / identity.run_id, identity.rank)
    try:
        with Journal(files.journal) as journal:
            journal.append(identity)
            journal.append(_line(error))
    except (OSError, RecordError) as problem:
        error.add_note(f"this rank left no journal: cannot write to {files.folder}: {problem}")


def note_refusal(error: RefusedError, journal: Journal | None, obstacles: Iterable[RefusedError]) -> None:
    """The last line of a journal that was begun before ranks were missed; where it could not be, `obstacles` say why."""
    if error.exit_code != INCOMPLETE:
        return
    for obstacle in obstacles:
        error.add_note(f"this rank left no journal: {obstacle}")
    if journal is None:
        return
    try:
        journal.append(_line(error))
    except OSError as problem:
        error.add_note(f"the journal of this rank does not say so: {journal.path}: {problem}")


def _line(error: RefusedError) -> Refusal:
    return Refusal(message=clip(str(error)), ended_at=utc_now())
