"""The start of a run: all ranks join and get one profile, one name and one folder; or one refusal for all."""

import os
from collections.abc import Callable, Iterator

from gpu_acceptance.base.exit import StopSignals
from gpu_acceptance.base.process import become_subreaper, has_lost_torchrun, let_open, num_files_of_store
from gpu_acceptance.control.control import CONNECT_S, Control, UnreachableError, control_prefix
from gpu_acceptance.control.identity import read_identity
from gpu_acceptance.control.messages import Welcome
from gpu_acceptance.control.rank import INCOMPLETE, NOT_WRITABLE, JoinError, LaunchError, Patience, Rank, RefusedError, interrupted
from gpu_acceptance.control.secret import Secret, find_secret
from gpu_acceptance.control.session import Session, begin_session
from gpu_acceptance.control.store_host import START_S, host_store
from gpu_acceptance.folder.files import RecordError, RunFiles, claim_run_folder, new_run_id
from gpu_acceptance.folder.journal import Journal
from gpu_acceptance.record.job import Job, RankIdentity
from gpu_acceptance.run import training_files
from gpu_acceptance.run.joining import join, refuse_start
from gpu_acceptance.run.own_files import NO_FILES, OwnFiles, choose_profile, read_own_files
from gpu_acceptance.run.refusals import find_misfit, find_mismatch, find_nvlink_beside_cards
from gpu_acceptance.run.run import Run
from gpu_acceptance.run.settings import Settings
from gpu_acceptance.supervisor.supervisor import Supervisor
from gpu_acceptance.supervisor.worker_slot import WorkerSlot
from gpu_acceptance.thresholds.limit import Profile
from gpu_acceptance.verdict.busy import find_busy


def start_run(settings: Settings, place: Rank, refusal: RefusedError | None, say: Callable[[str], None]) -> Run:
    """Join all ranks; `say` shows which ones are awaited. Collective.

    Raises RefusedError, with one text on all ranks that hear rank 0, and LaunchError where the store cannot be hosted.
    """
    if place.has_agent and place.local_rank == 0:
        let_open(os.getppid(), num_files_of_store(place.world_size))  # one of them hosts the store
    stop = StopSignals(place.node_name, has_launcher=bool(place.launcher))
    if place.has_agent and has_lost_torchrun():
        stop.lose_launcher()
    begun = _begin(place, settings.join_s, stop) if place.rank == 0 else None
    become_subreaper()
    identity = read_identity(place)
    own, tuned, refusal = _own_files(settings, place, refusal)
    chosen: dict[str, Profile] = {}
    joined: list[RankIdentity] = []

    def welcome(identities: list[RankIdentity]) -> Welcome:
        joined.extend(identities)
        chosen["profile"] = profile = _profile_for(settings, identities, own, tuned)
        return Welcome(run_id=_fresh_run_id(settings), deadline_s=profile.deadline_s)

    named = settings.run_id
    unmet_id = named if named and not os.path.lexists(settings.report_dir / named) else new_run_id()  # a used name is not refused here
    try:
        supervisor = _connect(place, stop, settings.join_s, begun)
        answer = join(supervisor, identity, refusal, welcome, unmet_id, Patience(settings.join_s, say))
    except RefusedError as error:
        raise refuse_start(error, refusal, settings.report_dir, identity, stop.launcher) from None
    clocks = dict(answer.clocks)

    def known(one: RankIdentity) -> RankIdentity:
        return one.model_copy(update={"run_id": answer.run_id, "clock_ahead_s": clocks.get(one.node), "rack": own.rack_of(one.host)})

    identity = known(identity)
    files = RunFiles(settings.report_dir / answer.run_id, place.rank)
    obstacles = list(_open_files(supervisor, files, identity))
    job = Job(tuple(map(known, joined))) if joined else None
    return Run(settings, place, supervisor, identity, files, answer.deadline_s, chosen.get("profile"), obstacles, job=job, own_files=own)


def _begin(place: Rank, join_s: float, stop: StopSignals) -> tuple[Secret, Session]:
    """On rank 0: make or read the secret of the run, and host the store where no launcher does. Raises LaunchError, and RefusedError."""
    secret = find_secret(place, 0.0, lambda: None)
    session = begin_session(secret)
    if place.has_own_store:
        try:
            host_store(place, control_prefix(place), session, max(START_S, join_s), stop.poll)  # before this process adopts orphans
        except LaunchError:
            if stop.reason:
                raise interrupted(stop.reason) from None
            raise
    return secret, session


def _connect(place: Rank, stop: StopSignals, join_s: float, begun: tuple[Secret, Session] | None) -> Supervisor:
    """Connect to the store. Raises RefusedError where that fails; a launcher's store is there before its ranks."""
    try:
        secret, session = begun or (find_secret(place, join_s, stop.poll), None)
        control = Control(place, secret, CONNECT_S if place.has_agent else join_s, stop.poll, join_s=join_s, session=session)
        try:
            return Supervisor(place, control, stop)
        except UnreachableError:
            control.close(timeout_s=5)
            raise
    except UnreachableError as error:
        raise interrupted(stop.reason) if stop.reason else JoinError(str(error), is_cut_off=True) from None
    except RefusedError as error:
        raise interrupted(stop.reason) if stop.reason else error from None


def _open_files(supervisor: Supervisor, files: RunFiles, identity: RankIdentity) -> Iterator[RefusedError]:
    """Open this rank's journal and its worker slot; yields why this rank cannot take part, which all ranks hear later."""
    try:
        files.make_folders()
        files.refuse_full_disk()
        supervisor.records.journal = Journal(files.journal)
        supervisor.records.journal.append(identity)
    except (OSError, RecordError) as error:
        yield RefusedError(f"cannot write to {files.folder}: {error}", NOT_WRITABLE)
    try:
        supervisor.slot = WorkerSlot(supervisor.control, supervisor.selector, files, identity)
    except OSError as error:
        todo = "see TMPDIR (in a pod, mount an emptyDir at /tmp), ulimit -u, and the limits of the container"
        yield RefusedError(f"no temporary folder could be made, or no process started: {error}; {todo}", INCOMPLETE)


def _own_files(
    settings: Settings, place: Rank, refusal: RefusedError | None
) -> tuple[OwnFiles, training_files.LoraFiles | None, RefusedError | None]:
    """Read this rank's copies. Where a file or folder that an option names cannot be used, all ranks hear on which node."""
    try:
        _, tuned = training_files.refuse_unusable_paths(settings.paths)
        return read_own_files(settings.site, settings.contract), tuned, refusal
    except RefusedError as error:
        return NO_FILES, None, refusal or RefusedError(f"{error} [{place.node_name}]", error.exit_code)


def _profile_for(settings: Settings, identities: list[RankIdentity], own: OwnFiles, tuned: training_files.LoraFiles | None) -> Profile:
    """Return the profile of rank 0's machine; a node that differs fails by name."""
    if mismatch := find_mismatch(identities, settings.declared_gpus):
        raise RefusedError(mismatch)
    job = Job(tuple(identities))
    profile = choose_profile(settings, identities[0].gpu, own, job.fabric_class, job.num_nodes, num_gpus=job.world_size)
    wrong = (
        find_misfit(identities, profile, settings.expected_nodes, named=settings.hardware is not None)
        or find_nvlink_beside_cards(settings, job)
        or training_files.find_unfit(tuned, profile.parameters)
        or (None if settings.allow_busy else find_busy(identities, profile))
    )
    if wrong:
        raise RefusedError(wrong)
    return profile


def _fresh_run_id(settings: Settings) -> str:
    """Make the run's folder on rank 0, which writes the report, and return its name, which no other run in there has."""
    folder = settings.report_dir
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        text = f"--report-dir={folder}: cannot be made: {error.strerror}; name a folder that can be written"
        raise RefusedError(text, NOT_WRITABLE) from None
    if not os.access(folder, os.W_OK):
        raise RefusedError(f"--report-dir={folder}: not writable; name a folder that is", NOT_WRITABLE)
    try:
        return claim_run_folder(folder, settings.run_id)
    except FileExistsError as error:
        raise RefusedError(f"--run-id={settings.run_id}: {error.filename} exists; a run never overwrites another") from None
    except OSError as error:
        raise RefusedError(f"--report-dir={folder}: not writable: {error.strerror}", NOT_WRITABLE) from None
