"""Levels, options and phases: how much of the suite a run asks for, which limits that leaves out, and in which order it runs."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from gpu_acceptance.thresholds.file import LimitsError
from gpu_acceptance.thresholds.limit import DEFAULT_LEVEL, SOAK, SOAK_DURATION, Profile, matching_reason, subject_of, validation_of
from gpu_acceptance.thresholds.parameters import PARAMETERS

_SHORTEST = "soak.min_duration_s"  # a parameter
_LASTED = "soak.load.fraction"
# By the option that asks for it: a subject, and a metric of it without whose limit nothing would judge it.
ASKED_BY = {
    "--localise": ("localise", "localise.node.deficit"),
    "--lora-model": ("lora_model", "lora_model.held_out.loss"),
    "--shared-dir": ("shared_fs", "shared_fs.missing"),
}
TRANSPORT = "transport"  # the phase whose misses make rates between GPUs brief: bytes go another way than was bought
OWN_PHASE = "of the site's own"  # what no phase lists, in words
_LONGEST_S = PARAMETERS[SOAK_DURATION].most


def at_level(profile: Profile, level: str) -> Profile:
    """The profile of a run at this level: a subject that the level leaves out is not required. Raises LimitsError."""
    if level not in (profile.levels or (DEFAULT_LEVEL,)):
        known = ", ".join(profile.levels or (DEFAULT_LEVEL,))
        raise LimitsError(f"--level={level}: profile {profile.name} has no such level; levels: {known}")
    chosen = replace(profile, level=level, expected_s=profile.levels.get(level, {}))
    return replace(chosen, requires=profile.requires - left_out(chosen))


def lasting(profile: Profile, asked_s: float | None) -> Profile:
    """The profile of a soak of `asked_s`; None: as long as its own parameter says. Raises LimitsError over one that is too short."""
    if profile.level != SOAK and SOAK not in profile.expected_s:
        return profile
    if reason := matching_reason(_LASTED, profile.not_applicable):
        raise LimitsError(f"level {profile.level} runs a soak, and {_LASTED} is declared not applicable ({reason}): nothing would judge it")
    seconds, shortest = (_seconds(profile, name, f"level {SOAK}") for name in (SOAK_DURATION, _SHORTEST))
    if asked_s is not None:
        seconds = asked_s
    asked = f"parameter {SOAK_DURATION}={seconds:g}" if asked_s is None else f"--soak: {seconds:g} s"
    if seconds > _LONGEST_S:
        raise LimitsError(f"{asked}: wants at most {_LONGEST_S:.0f} s, which are 30 days")
    if seconds < shortest:
        raise LimitsError(f"{asked}: profile {profile.name} wants at least {shortest:g} s (its parameter {_SHORTEST})")
    return replace(profile, parameters={**profile.parameters, SOAK_DURATION: seconds})


def _seconds(profile: Profile, name: str, who: str) -> float:
    value = profile.parameters.get(name)
    if not isinstance(value, int | float):
        raise LimitsError(f"{who}: profile {profile.name} has no parameter {name}; it wants a number of seconds above 0")
    return value


def asked_for(profile: Profile, option: str) -> Profile:
    """The profile of a run to which this option adds a subject; base.yaml declares that not applicable otherwise. Raises LimitsError."""
    subject, judged = ASKED_BY[option]
    declared = {glob: why for glob, why in profile.not_applicable.items() if glob != f"{subject}.*"}
    if reason := matching_reason(judged, declared):
        raise LimitsError(f"{option}: {judged} is declared not applicable ({reason}): nothing would judge it")
    if judged not in profile.limits:
        raise LimitsError(f"{option}: profile {profile.name} has no limit {judged}: nothing would judge it")
    expected_s = {**profile.expected_s, subject: _seconds(profile, f"{subject}.expected_s", option)}
    asked = {**profile.parameters, f"{subject}.asked": True}
    return replace(profile, not_applicable=declared, requires=profile.requires | {subject}, parameters=asked, expected_s=expected_s)


def left_out(profile: Profile) -> frozenset[str]:
    """The subjects that other levels run and the chosen one does not."""
    return frozenset().union(*profile.levels.values()) - profile.expected_s.keys()


def num_left_out(profile: Profile, nodeids: Iterable[str]) -> dict[str, int]:
    """Each subject that the chosen level leaves out, and how many of these validations are of it."""
    numbers = Counter(map(subject_of, nodeids))
    return {subject: numbers[subject] for subject in sorted(left_out(profile))}


def phase_of(profile: Profile, nodeid: str) -> str:
    """Return the phase that lists a validation, else the one that lists its subject; empty where none does."""
    phases = {name: phase for phase, listed in profile.phases.items() for name in listed}
    return phases.get(validation_of(nodeid), phases.get(subject_of(nodeid), ""))


def place_in_run(profile: Profile, nodeid: str) -> tuple[int, float]:
    """Return by what validations are sorted: the phase, and the seconds of the subject. What no phase lists comes last."""
    order = {phase: index for index, phase in enumerate(profile.phases)}
    return order.get(phase_of(profile, nodeid), len(order)), profile.expected_s.get(subject_of(nodeid), 0.0)


def runs(profile: Profile, nodeid: str) -> bool:
    """Return whether a validation belongs to the chosen level."""
    return subject_of(nodeid) not in left_out(profile)
