"""What the command line asked for, checked: one frozen value instead of pytest's option bag."""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from gpu_acceptance.folder.run_files import RUN_ID
from gpu_acceptance.launch.patience import JOIN_S
from gpu_acceptance.launch.refused import RefusedError
from gpu_acceptance.options.budget import Budget, read_budget, seconds_of
from gpu_acceptance.options.digests import profile_digest
from gpu_acceptance.options.own_files import NO_FILES, OwnFiles
from gpu_acceptance.text.visible import one_line
from gpu_acceptance.thresholds.levels import asked_for, at_level, lasting
from gpu_acceptance.thresholds.limit import DEFAULT_LEVEL, LEVELS, SOAK, Profile
from gpu_acceptance.thresholds.profile import LimitsError, load_profile, profile_names, select_profile, shipped_dir
from gpu_acceptance.verdict import busy


@dataclass(frozen=True)
class Settings:
    limits: tuple[Path, ...]
    hardware: str | None
    waivers: Mapping[str, str]
    declared_gpus: int | None
    expected_nodes: int | None
    measure_only: bool
    allow_busy: bool
    plan: bool
    report_dir: Path
    run_id: str | None
    confirm: int
    budget: Budget | None
    profiles: Path
    site: Path | None = None
    contract: Path | None = None
    checkpoint_dir: Path | None = None
    data_dir: Path | None = None
    shared_dir: Path | None = None
    lora_model: Path | None = None  # both or none
    lora_data: Path | None = None
    level: str = DEFAULT_LEVEL
    soak_s: float | None = None  # None: as long as the profile says, where the level is soak
    localise: bool = False
    tensorboard: bool = False
    join_s: float = JOIN_S


def add_options(parser: pytest.Parser) -> None:
    group = parser.getgroup("gpu-acceptance", "acceptance of a GPU cluster (write every option as --option=VALUE)")
    group.addoption("--limits", metavar="FILE", action="append", default=[], help="overlay of limits; may be given several times")
    group.addoption("--hardware", metavar="NAME", help="profile to judge by; refused where the machine has other GPUs")
    group.addoption("--waive", metavar="METRIC-GLOB=reason", action="append", default=[], help="accept without these limits; shown")
    levels = f"how much runs: {', '.join(LEVELS)}, as the profile says; default: {DEFAULT_LEVEL}"
    group.addoption("--level", metavar="LEVEL", help=levels)
    group.addoption("--soak", metavar="TIME", help="level soak: seconds, or 30m or 4h, under load; default: as the profile says")
    group.addoption("--localise", action="store_true", help="several nodes: say which node, rail or path is slow; at each level")
    group.addoption("--gpus", metavar="N", help="only N GPUs of each node are under test; without it a GPU without a rank is a gap")
    group.addoption("--expect-nodes", metavar="N", help="nodes that there must be: of fewer the run is INCOMPLETE, of more it is refused")
    wait = f"how long ranks that are there wait for the others: {JOIN_S:g} (the default), 15m or 1h"
    group.addoption("--join-timeout", metavar="TIME", help=wait)
    group.addoption("--allow-busy", action="store_true", help="run on GPUs that somebody else uses as well; shown in the verdict line")
    group.addoption("--site", metavar="FILE", help="which nodes there must be, their GPUs and racks; a node that differs fails by name")
    lines = "a contract in lines with the metrics that answer them: a line missed rejects, one not tested leaves the run incomplete"
    group.addoption("--contract", metavar="FILE", help=lines)
    group.addoption("--checkpoint-dir", metavar="DIR", help="folder that all nodes share, for the checkpoints of subject checkpoint")
    shared = "is this folder one and the same on all nodes, and how fast? at each level; whatever is in it stays"
    group.addoption("--shared-dir", metavar="DIR", help=shared)
    own = "train on data of your own: DIR/tokens.npy, DIR/images/CLASS/FILE, or both, on every node; without it data is synthetic"
    group.addoption("--data-dir", metavar="DIR", help=own)
    model = "fine-tune this checkpoint in Hugging Face format, with its own tokenizer, the same on every node; with --lora-data"
    group.addoption("--lora-model", metavar="DIR", help=model)
    calls = "JSON lines of dialogues with function calls, in chat format or of glaive-function-calling-v2; with --lora-model"
    group.addoption("--lora-data", metavar="FILE", help=calls)
    group.addoption("--measure-only", action="store_true", help="run and record everything, judge nothing; the run is INCOMPLETE")
    group.addoption("--plan", action="store_true", help="print what would run, its limits and its time; touches no GPU; exit code 5")
    group.addoption(
        "--confirm", metavar="N", help="measure a missed limit N times more, each time by new workers; the worst attempt counts"
    )
    group.addoption(
        "--budget", metavar="TIME", help="seconds, or 30m or 2h, for the whole run, report included; default: the Slurm job's end"
    )
    group.addoption("--report-dir", metavar="DIR", help="folder of all runs; each makes its own in it (default: reports/ of the suite)")
    curves = "write the curves of the run for TensorBoard too, into tensorboard/ of its folder; needs the extra tensorboard on rank 0"
    group.addoption("--tensorboard", action="store_true", help=curves)
    group.addoption("--run-id", metavar="ID", help="name of this run's folder; must not exist (default: time and a random part)")


def read_settings(config: pytest.Config) -> Settings:
    """Raises pytest.UsageError over an option that cannot be right."""
    option = config.option
    own_profiles = config.rootpath / "thresholds"
    lora_model, lora_data = _lora_files(config)
    return Settings(
        limits=tuple(_overlay(config.invocation_params.dir, name) for name in option.limits),
        hardware=_not_empty("--hardware", option.hardware, "the name of a profile"),
        waivers={**(busy.WAIVERS if option.allow_busy else {}), **dict(_waiver(text) for text in option.waive)},
        declared_gpus=_count("--gpus", option.gpus, "the number of GPUs of each node that are under test"),
        expected_nodes=_count("--expect-nodes", option.expect_nodes, "the number of nodes that there must be"),
        measure_only=option.measure_only,
        allow_busy=option.allow_busy,
        plan=option.plan,
        report_dir=_report_dir(config),
        run_id=_run_id(option.run_id),
        confirm=_count("--confirm", option.confirm, "how often a missed limit is measured again") or 0,
        budget=_budget(option.budget),
        site=_site(config),
        contract=_contract(config),
        checkpoint_dir=_checkpoint_dir(config),
        data_dir=_data_dir(config),
        shared_dir=_shared_dir(config),
        lora_model=lora_model,
        lora_data=lora_data,
        level=_level(option.level, option.soak),
        soak_s=_seconds("--soak", option.soak),
        localise=option.localise,
        tensorboard=option.tensorboard,
        join_s=_seconds("--join-timeout", option.join_timeout) or JOIN_S,
        profiles=own_profiles if (own_profiles / "base.yaml").is_file() else shipped_dir(),
    )


def choose_profile(settings: Settings, device_name: str | None, own: OwnFiles = NO_FILES) -> Profile:
    """The profile for this machine with the overlays on it, and `own` in its digest. Raises RefusedError."""
    try:
        name = settings.hardware or _by_device(settings, device_name)
        if name not in (*profile_names(settings.profiles), "base") or settings.hardware == "base":
            known = ", ".join(profile_names(settings.profiles))
            raise RefusedError(f"--hardware={name}: no such profile; profiles: {known}")
        profile = lasting(at_level(_load(settings, name, own), settings.level), settings.soak_s)
        given = {"--localise": settings.localise, "--lora-model": settings.lora_model, "--shared-dir": settings.shared_dir}
        for option in (option for option, value in given.items() if value):
            profile = asked_for(profile, option)
    except LimitsError as error:
        raise RefusedError(str(error)) from None
    own.refuse_unanswerable(profile)
    for glob in settings.waivers.keys() - busy.WAIVERS.keys():
        if not any(fnmatchcase(metric, glob) for metric in profile.limits):
            raise RefusedError(f"--waive={glob}=...: matches no limit of profile {profile.name}; see --plan for their names")
    return profile


def _load(settings: Settings, name: str, own: OwnFiles) -> Profile:
    return own.laid_on(load_profile(name, settings.profiles, settings.limits))


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


def _overlay(folder: Path, name: str) -> Path:
    """A path as the user meant it, from where pytest was started; a bare name is left for the profiles' folder."""
    _not_empty("--limits", name, "a file, or the name of an overlay of ours")
    path = folder / name
    try:
        is_there = path.exists()
    except OSError as error:
        raise pytest.UsageError(f"--limits={name}: cannot be read: {error.strerror}") from None
    return path if is_there or "/" in name or name.endswith(".yaml") else Path(name)


def _site(config: pytest.Config) -> Path | None:
    name = _not_empty("--site", config.option.site, "the file that says which nodes there must be")
    return None if name is None else config.invocation_params.dir / name


def _contract(config: pytest.Config) -> Path | None:
    name = _not_empty("--contract", config.option.contract, "the file that says which metrics answer which line of a contract")
    return None if name is None else config.invocation_params.dir / name


def _checkpoint_dir(config: pytest.Config) -> Path | None:
    name = _not_empty("--checkpoint-dir", config.option.checkpoint_dir, "a folder that all nodes share")
    return None if name is None else config.invocation_params.dir / name


def _data_dir(config: pytest.Config) -> Path | None:
    name = _not_empty("--data-dir", config.option.data_dir, "a folder with training data")
    return None if name is None else config.invocation_params.dir / name


def _shared_dir(config: pytest.Config) -> Path | None:
    name = _not_empty("--shared-dir", config.option.shared_dir, "a folder that all nodes share")
    return None if name is None else config.invocation_params.dir / name


def _lora_files(config: pytest.Config) -> tuple[Path | None, Path | None]:
    model = _not_empty("--lora-model", config.option.lora_model, "a folder with a checkpoint in Hugging Face format")
    data = _not_empty("--lora-data", config.option.lora_data, "a file with dialogues in JSON lines")
    if model is None and data is None:
        return None, None
    if model is None or data is None:
        alone, other = (f"--lora-data={data}", "--lora-model=DIR") if model is None else (f"--lora-model={model}", "--lora-data=FILE")
        raise pytest.UsageError(f"{alone}: a model is fine-tuned on data; name the other as well: {other}")
    return config.invocation_params.dir / model, config.invocation_params.dir / data


def _report_dir(config: pytest.Config) -> Path:
    name = _not_empty("--report-dir", config.option.report_dir, "a folder")
    return config.rootpath / "reports" if name is None else config.invocation_params.dir / name


def _not_empty(option: str, text: str | None, meaning: str) -> str | None:
    if text is not None and not text.strip():
        raise pytest.UsageError(f"{option}={text}: wants {meaning}")
    return text


def _waiver(text: str) -> tuple[str, str]:
    glob, _, reason = text.partition("=")
    if not glob.strip() or not reason.strip():
        raise pytest.UsageError(
            f"--waive={text}: wants METRIC-GLOB=reason, for example --waive='hbm.read.*=agreed with the vendor on 2026-11-20'"
        )
    return glob.strip(), reason.strip()


def _count(name: str, text: str | None, meaning: str) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal()) or int(text) < 1:
        raise pytest.UsageError(f"{name}={text}: wants {meaning}, from 1 up")
    return int(text)


def _level(text: str | None, soak: str | None) -> str:
    """Refused before anything is collected: a profile may have fewer, and never more."""
    if soak is not None and text not in {None, SOAK}:
        raise pytest.UsageError(f"--soak={soak} --level={text}: --soak is level {SOAK}; leave one of them out")
    if text is None:
        return DEFAULT_LEVEL if soak is None else SOAK
    if text not in LEVELS:
        raise pytest.UsageError(f"--level={text}: wants one of {', '.join(LEVELS)}")
    return text


def _seconds(option: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not (seconds := seconds_of(text)):
        raise pytest.UsageError(f"{option}={text}: wants seconds, or a number with s, m or h, above 0")
    return seconds


def _budget(text: str | None) -> Budget | None:
    try:
        return read_budget(text, os.environ, time.time())
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None


def _run_id(text: str | None) -> str | None:
    if text is not None and not RUN_ID.fullmatch(text):
        raise pytest.UsageError(
            f"--run-id={text!r}: wants letters, digits, '.', '_' and '-' alone, at most 100, the first a letter or digit"
        )
    return text
