"""The profile that a run is judged by, as the command line asked for it."""

from fnmatch import fnmatchcase

from gpu_acceptance.base.text import did_you_mean, one_line
from gpu_acceptance.control.rank import RefusedError
from gpu_acceptance.run.own_files import NO_FILES, OwnFiles
from gpu_acceptance.run.settings import Settings
from gpu_acceptance.run.suite import profile_digest
from gpu_acceptance.thresholds.known_metrics import nearest_metric
from gpu_acceptance.thresholds.levels import asked_for, at_level, lasting
from gpu_acceptance.thresholds.limit import Profile
from gpu_acceptance.thresholds.profile import LimitsError, load_profile, profile_names, select_profile
from gpu_acceptance.verdict import busy

_ALL = "gpu-acceptance explain '*'"


def choose_profile(settings: Settings, device_name: str | None, own: OwnFiles = NO_FILES) -> Profile:
    """The profile for this machine with the overlays on it, and `own` in its digest. Raises RefusedError."""
    try:
        name = settings.hardware or _by_device(settings, device_name)
        if name not in (*profile_names(settings.profiles), "base") or settings.hardware == "base":
            known = profile_names(settings.profiles)
            raise RefusedError(f"--hardware={name}: unknown profile; profiles: {', '.join(known)}{did_you_mean(name, known)}")
        profile = lasting(at_level(_load(settings, name, own), settings.level), settings.soak_s)
        given = {"--localise": settings.localise, "--lora-model": settings.lora_model, "--shared-dir": settings.shared_dir}
        for option in (option for option, value in given.items() if value):
            profile = asked_for(profile, option)
    except LimitsError as error:
        raise RefusedError(str(error)) from None
    own.refuse_unanswerable(profile)
    for glob in settings.waivers.keys() - busy.WAIVERS.keys():
        if not any(fnmatchcase(metric, glob) for metric in profile.limits):
            hint = nearest_metric(glob, profile.limits.keys()) or f"; `{_ALL}` lists all metrics"
            raise RefusedError(f"--waive={glob}=...: matches no limit of profile {profile.name}{hint}")
    return profile


def _load(settings: Settings, name: str, own: OwnFiles) -> Profile:
    return own.laid_on(load_profile(name, settings.profiles, settings.limits, settings.suite))


def own_digest(settings: Settings, name: str, own: OwnFiles) -> str:
    """Of the profile of this name as this rank reads it; where it cannot, why."""
    try:
        return profile_digest(_load(settings, name, own))
    except LimitsError as error:
        return f"cannot be read: {one_line(str(error))}"


def _by_device(settings: Settings, device_name: str | None) -> str:
    try:
        return select_profile(device_name, settings.profiles)
    except LimitsError:
        if settings.measure_only:
            return "base"
        raise
