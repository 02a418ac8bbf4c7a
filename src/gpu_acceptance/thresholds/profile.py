"""A profile: its file with what it extends, overlays on it, and the choice by the GPU's name."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpu_acceptance.base.strict_yaml import shown
from gpu_acceptance.base.text import did_you_mean
from gpu_acceptance.thresholds.changes import changes_between, far_bounds
from gpu_acceptance.thresholds.fabrics import FABRIC, NO_FABRIC, fabric_paths, refuse_unknown_fabric
from gpu_acceptance.thresholds.file import MAX_PATH, LimitsError, LimitsFile, extends, file_name, match_of, parameter_of, read_file
from gpu_acceptance.thresholds.known_metrics import known_metrics
from gpu_acceptance.thresholds.limit import (
    COUNTERS,
    LEVELS,
    MODEL,
    MOST_GPUS,
    OWN_MODEL,
    ByGpus,
    FileDigest,
    Limit,
    Profile,
    Value,
    in_job,
    subject_of_metric,
)
from gpu_acceptance.thresholds.parameter_relations import contradictions
from gpu_acceptance.thresholds.schema import Match, json_schema

__all__ = ["LimitsError", "json_schema", "load_profile", "profile_names", "select_profile", "shipped_dir", "with_file", "with_site"]

CPU = "cpu"  # the profile of a machine without GPUs
BASE = "base"  # limits for any GPU; --measure-only loads it if no profile matches
_NO_GPU = (CPU, BASE)
_OVERLAY = "site-"
_MODEL = "model-"
_BETWEEN_NODES = ("nccl", "nccl_ring", "nccl_scaling", "nccl_sizes", "nic")  # subjects with rates and shares of a node's cards
_NO_SITE = "environment.site*"  # not applicable in base.yaml until a file declares the nodes


def shipped_dir() -> Path:
    """The profiles of this checkout, or those inside the installed package."""
    checkout = Path(__file__).parents[3] / "thresholds"
    return checkout if (checkout / "base.yaml").is_file() else Path(__file__).parents[1] / "profiles"


def profile_names(directory: Path) -> list[str]:
    """The profiles a machine can be judged by: those that name a GPU, and cpu. Parents and overlays are none."""
    return [name for name, match in _matches(directory).items() if match is not None or name == CPU]


def select_profile(device_name: str | None, directory: Path, nvlink_to: str = "") -> str:
    """The profile whose match.device_name is exactly this; cpu on a machine without GPUs.

    `nvlink_to`: what all NVLinks of the GPU lead to. Where a profile has it as match.nvlink, that one is chosen.
    """
    if device_name is None:
        return CPU
    matches = {name: match for name, match in _matches(directory).items() if match}
    named = {name: match.nvlink or "" for name, match in matches.items() if match.device_name == device_name}
    found = [name for name, wanted in named.items() if wanted == (nvlink_to if nvlink_to in named.values() else "")]
    if len(found) > 1:
        raise LimitsError(f"the GPU {shown(device_name)} is matched by two profiles, {' and '.join(found)}; name one with --hardware=NAME")
    if not found:
        known = ", ".join(f"{name} ({match.device_name})" for name, match in matches.items())
        raise LimitsError(
            f"no profile for the GPU {shown(device_name)}; profiles: {known or 'none'}; --measure-only records without judging"
        )
    return found[0]


def load_profile(
    name: str,
    directory: Path,
    overlays: Sequence[Path] = (),
    suite: Path | None = None,
    fabric: str = "",
    num_gpus: int = MOST_GPUS,
) -> Profile:
    """The profile `name` with all it inherits, the network between its nodes, its model, and the overlays laid on it in their order.

    `suite`: the folder of validations; overlays may limit metrics of those that are a site's own.
    `num_gpus`: of the job, which parameters may depend on; without a job that of the largest. Raises LimitsError for what is wrong in a
    job of any size.
    """
    profile, files = _load(name, directory, overlays, suite, fabric, num_gpus)
    given = [value for file in files for value in file.content.parameters.values()]
    for size in sorted({first for value in given if isinstance(value, ByGpus) for first in value.from_gpus}):
        _load(name, directory, overlays, suite, fabric, size)
    return profile


def _load(
    name: str, directory: Path, overlays: Sequence[Path], suite: Path | None, fabric: str, num_gpus: int
) -> tuple[Profile, list[LimitsFile]]:
    """Return the profile for a job of this size, and its overlays."""
    paths = _profile_paths(directory)
    if name not in paths:
        raise LimitsError(_unknown(f"no profile {shown(name)}", name, profile_names(directory)))
    profile, own = _read_chain(name, paths, _nothing(name, num_gpus))
    match = own.content.match
    profile = replace(profile, device_name=match.device_name if match else None, nvlink_to=(match and match.nvlink) or "")
    if profile.device_name is None and name not in _NO_GPU:
        raise LimitsError(f"{shown(name)} is a parent of other profiles, not a machine's; profiles: {', '.join(profile_names(directory))}")
    _refuse_incomplete(profile, own.name)
    if fabric and fabric != NO_FABRIC:
        profile = _with_fabric(profile, fabric, directory)
    over = [_overlay_path(overlay, directory) for overlay in overlays]
    bare, machine = profile, _with_model(profile, directory)
    profile = _with_model(_with_model_of(over, bare), directory)
    files = _read_overlays(over, profile, directory, suite)
    if profile.parameters.get(MODEL) != machine.parameters.get(MODEL):
        digest = next(file.digest for file in reversed(files) if MODEL in file.content.parameters)
        profile = replace(profile, changes=changes_between(machine, profile, digest))
    declared = dict(profile.not_applicable.items() - bare.not_applicable.items())  # by the file of the model
    for file in files:
        profile = _overlaid(profile, file)
    if not any(MODEL in file.content.parameters for file in files):  # a rate that was agreed for another model judges none
        profile = replace(profile, not_applicable={**profile.not_applicable, **declared})
    return replace(profile, far_bounds=far_bounds(machine, profile), digest=_digest(profile.files)), files


def _with_model_of(overlays: Sequence[Path], profile: Profile) -> Profile:
    """The profile with the model that overlays name: its file lies below all of them, so that what they say of it counts."""
    named = [value for path in overlays if (value := parameter_of(path, MODEL)) is not None]
    return replace(profile, **_parameters(profile, {MODEL: named[-1]})) if named else profile


def _with_model(profile: Profile, directory: Path) -> Profile:
    """The profile with the shape that its parameter names, and the limits that hold for this shape alone."""
    name = profile.parameters.get(MODEL, OWN_MODEL)
    if name == OWN_MODEL:
        return profile
    paths = {path.stem.removeprefix(_MODEL): path for path in sorted(directory.glob(f"{_MODEL}*.yaml"))}
    if name not in paths:
        known = [OWN_MODEL, *paths]
        problem = f"{profile.name}: parameters.{MODEL}: no model {shown(name)}; models: {', '.join(known)}"
        raise LimitsError(f"{problem}{did_you_mean(str(name), known)}")
    joined, own = _read_chain(str(name), paths, profile)
    _refuse_incomplete(joined, own.name)
    return joined


def with_site(profile: Profile, site: FileDigest) -> Profile:
    """The profile of a run whose nodes are declared: the file counts into its digest, and what it declares is judged."""
    return with_file(with_declared_nodes(profile), site)


def with_file(profile: Profile, file: FileDigest) -> Profile:
    """The profile of a run that one more file decides: it counts into the digest."""
    files = (*profile.files, file)
    return replace(profile, files=files, digest=_digest(files))


def with_declared_nodes(profile: Profile) -> Profile:
    """The profile where it is known which nodes there must be."""
    return replace(profile, not_applicable={glob: why for glob, why in profile.not_applicable.items() if glob != _NO_SITE})


def _with_fabric(profile: Profile, fabric: str, directory: Path) -> Profile:
    refuse_unknown_fabric(fabric, profile.name, directory)
    paths = fabric_paths(directory)
    joined, own = _read_chain(fabric, paths, profile)
    _refuse_incomplete(joined, own.name)
    matches = [match.fabric for one in _chain(fabric, paths) if (match := match_of(paths[one])) and match.fabric]
    gpus = next((match.gpus for match in matches if match.gpus), None)
    limits = {metric: _of_whole_nodes(limit, gpus) if gpus else limit for metric, limit in joined.limits.items()}
    return replace(joined, fabric=fabric, limits=limits)


def _of_whole_nodes(limit: Limit, gpus: int) -> Limit:
    """The limit, where a node reaches it with all its GPUs: fewer use a part of its cards, and no rate of theirs has a source."""
    is_shared = limit.nodes == "several" and limit.at_least is not None and limit.subject in _BETWEEN_NODES
    return replace(limit, world=(gpus,)) if is_shared and not limit.listed_sizes() else limit


def _profile_paths(directory: Path) -> dict[str, Path]:
    try:
        paths = sorted(path for path in directory.glob("*.yaml") if not path.name.startswith((_OVERLAY, FABRIC, _MODEL)))
    except OSError as error:
        raise LimitsError(f"the profiles in {shown(str(directory), MAX_PATH)} cannot be read: {error.strerror}") from None
    if not paths:
        raise LimitsError(f"there are no profiles in {shown(str(directory), MAX_PATH)}")
    return {path.stem: path for path in paths}


def read_profiles(directory: Path, but: Sequence[Path] = ()) -> list[LimitsFile]:
    """All profiles of a folder, parents included; no overlay, nor what serves as one though it lies here."""
    others, paths = {path.resolve() for path in but}, _profile_paths(directory)
    return list(_read_all(paths, [name for name, path in paths.items() if path.resolve() not in others]).values())


def _matches(directory: Path) -> dict[str, Match | None]:
    paths = _profile_paths(directory)
    return {name: file.content.match for name, file in _read_all(paths, paths).items()}


def _read_all(paths: Mapping[str, Path], names: Iterable[str]) -> dict[str, LimitsFile]:
    """Return the files of these names, each checked on top of its parents; a parent of several is read once."""
    laid, chosen = dict[str, tuple[Profile, LimitsFile]](), list(names)
    for name in chosen:
        profile = _nothing(name)
        for one in reversed(_chain(name, paths)):
            laid[one] = laid.get(one) or _read_onto(profile, paths[one])
            profile = laid[one][0]
    return {name: laid[name][1] for name in chosen}


def _read_chain(name: str, paths: Mapping[str, Path], profile: Profile) -> tuple[Profile, LimitsFile]:
    """Return a profile with what a file and all its parents say together laid on it, and the file itself."""
    for one in reversed(_chain(name, paths)):
        profile, file = _read_onto(profile, paths[one])
    return profile, file


def _nothing(name: str, num_gpus: int = MOST_GPUS) -> Profile:
    return Profile(name, None, frozenset(), {}, {}, deadline_s=0, num_gpus=num_gpus)


def _read_onto(profile: Profile, path: Path) -> tuple[Profile, LimitsFile]:
    file = read_file(path, profile.limits)
    if file.content.reason is not None:
        raise LimitsError(f"{file.name}: reason: belongs into an overlay; a profile says why in the source of each limit")
    if file.content.match and file.content.match.gpus_per_node:
        raise LimitsError(f"{file.name}: match.gpus_per_node: belongs into an overlay; a profile is for nodes with any number of GPUs")
    return _laid(profile, file), file


def _chain(name: str, paths: Mapping[str, Path]) -> list[str]:
    """Return the profile, its parent, its parent's parent, ..."""
    names = [name]
    while (parent := extends(paths[names[-1]])) is not None:
        file = paths[names[-1]].name
        if parent in names:
            raise LimitsError(f"{file}: extends: profiles go round in a circle: {' -> '.join([*names, parent])}")
        if parent not in paths:
            raise LimitsError(_unknown(f"{file}: extends: no profile {shown(parent)}", parent, list(paths)))
        names.append(parent)
    return names


def _unknown(problem: str, name: str, known: list[str]) -> str:
    return f"{problem}; profiles: {', '.join(known)}{did_you_mean(name, known)}"


def _laid(profile: Profile, file: LimitsFile) -> Profile:
    """The profile with all that `file` says laid over it; a limit replaces the limit of the same metric, of which it has inherited.

    A file that requires a subject cancels a parent's `not_applicable` for the whole subject (`subject.*`) and its counters.
    A file that limits a metric cancels a parent's `not_applicable` for exactly this metric.
    """
    content = file.content
    if content.phases and profile.files:
        raise LimitsError(f"{file.name}: phases: not allowed here; {profile.files[0].file} decides the order of every run")
    taken_back = {glob for subject in content.requires for glob in (f"{subject}.*", f"{COUNTERS}.{subject}.*")} | set(content.limits)
    inherited = {glob: reason for glob, reason in profile.not_applicable.items() if glob not in taken_back}
    return replace(
        profile,
        requires=profile.requires | frozenset(content.requires),
        limits={**profile.limits, **{metric: entry.limit(metric, file.name) for metric, entry in content.limits.items()}},
        **_parameters(profile, content.parameters),
        deadline_s=content.deadline_s or profile.deadline_s,
        levels=_merged(profile.levels, {level: in_job(subjects, profile.num_gpus) for level, subjects in content.levels.items()}),
        phases={phase: tuple(listed) for phase, listed in content.phases.items()} or profile.phases,
        not_applicable={**inherited, **content.not_applicable},
        files=(*profile.files, file.digest),
    )


def _parameters(profile: Profile, given: Mapping[str, Value | ByGpus]) -> dict[str, Any]:
    """Return the fields of a profile with these parameters over its own, each with its value in a job of this size."""
    by_gpus = {name: value for name, value in profile.by_gpus.items() if name not in given}
    by_gpus |= {name: value for name, value in given.items() if isinstance(value, ByGpus)}
    return {"parameters": {**profile.parameters, **in_job(given, profile.num_gpus)}, "by_gpus": by_gpus}


def _merged(before: Mapping[str, Mapping[str, float]], after: Mapping[Any, Mapping[str, float]]) -> dict[str, Mapping[str, float]]:
    """Return what each level runs: all that the ones before it run, and what a file adds or changes from this level on."""
    merged, lower, added = dict[str, Mapping[str, float]](), dict[str, float](), dict[str, float]()
    for level in LEVELS:
        if level in before or level in after:
            added |= after.get(level, {})
            merged[level] = lower = {**lower, **before.get(level, {}), **added}
    return merged


def _read_overlays(paths: Sequence[Path], machine: Profile, directory: Path, suite: Path | None) -> list[LimitsFile]:
    """The overlays. Raises LimitsError with all that is wrong with them."""
    files, problems, limits = list[LimitsFile](), list[str](), dict(machine.limits)
    for path in paths:
        try:
            match = match_of(path)
            if match and match.device_name not in (None, machine.device_name):
                own = "no GPU" if machine.device_name is None else shown(machine.device_name)
                problem = f"this overlay is for {shown(match.device_name)}, and profile {machine.name} is for {own}"
                raise LimitsError(f"{file_name(path)}: match.device_name: {problem}")
            if match and match.fabric:
                raise LimitsError(f"{file_name(path)}: match.fabric: not allowed in an overlay; it lies on whatever network was chosen")
            file = read_file(path, limits)
            limits |= {metric: entry.limit(metric, file.name) for metric, entry in file.content.limits.items()}
            files.append(file)
        except LimitsError as error:
            problems += error.problems
            files += [error.rest] if error.rest else []
    known = known_metrics(read_profiles(directory, but=paths) if files else (), files, suite)
    of_machine = {metric: limit.unit for metric, limit in machine.limits.items()}  # of its network and of its model, too
    known = replace(known, limited={**of_machine, **known.limited})
    for read in files:
        for metric, entry in read.content.limits.items():
            if problem := known.problem_of(metric, getattr(entry, "unit", None)):  # missing in the rest of a file if it is wrong
                problems.append(f"{read.name}: limits.{metric}: {problem}")
    if problems:
        raise LimitsError(problems)
    return files


def _overlaid(profile: Profile, file: LimitsFile) -> Profile:
    if file.content.extends is not None:
        raise LimitsError(f"{file.name}: extends: not allowed in an overlay; it lies on the profile of the machine")
    for subject in file.content.requires:
        if f"{subject}.*" in file.content.not_applicable:
            raise LimitsError(f"{file.name}: requires {subject}, and declares {subject}.* not applicable: it can ask for one of both")
    after, match = _laid(profile, file), file.content.match
    _refuse_incomplete(after, file.name)
    if match and match.gpus_per_node:
        after = replace(after, gpus_per_node={**after.gpus_per_node, file.name: match.gpus_per_node})
    return replace(after, changes=profile.changes + changes_between(profile, after, file.digest))


def _refuse_incomplete(profile: Profile, file: str) -> None:
    """Raise LimitsError over the problems that show only after merging."""
    subjects = {limit.subject for limit in profile.limits.values()}
    problems = list(contradictions(profile.parameters, profile.deadline_s)) if profile.deadline_s else []
    if not profile.deadline_s:
        problems.append("deadline_s is missing, here and in all parents")
    unknown = {f"requires {shown(one)}, but there is no limit of it": one for one in sorted(profile.requires - subjects)}
    unknown |= {f"not_applicable.{glob}: matches nothing": subject_of_metric(glob) for glob in profile.not_applicable}
    for problem, subject in unknown.items():
        if subject not in subjects:
            known = f"{', '.join(sorted(subjects)) or 'none'}{did_you_mean(subject, subjects)}"
            problems.append(f"{problem}; subjects with limits: {known}")
    if problems:
        raise LimitsError(f"{file}: {problem}" for problem in problems)


def _overlay_path(overlay: Path, directory: Path) -> Path:
    """The file itself, or the shipped overlay of that name: `site-nvls-off`."""
    shipped = {path.stem: path for path in sorted(directory.glob(f"{_OVERLAY}*.yaml"))}
    if overlay.name in shipped and overlay == Path(overlay.name) and not overlay.exists():
        return shipped[overlay.name]
    if overlay.suffix or overlay.parent != Path() or overlay.exists():
        return overlay
    raise LimitsError(
        f"no overlay {file_name(overlay)}: neither a file nor one of {', '.join(shipped) or 'none'}{did_you_mean(overlay.name, shipped)}"
    )


def _digest(files: tuple[FileDigest, ...]) -> str:
    """Return the digest that `sha256sum FILE... | sha256sum` prints in the folder of the files."""
    listing = "".join(f"{file.sha256}  {file.file}\n" for file in files)
    return hashlib.sha256(listing.encode("utf-8", "backslashreplace")).hexdigest()
