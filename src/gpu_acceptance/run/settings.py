"""Settings of a run as its options gave them, checked before any GPU is touched."""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from gpu_acceptance.base.budget import Budget, read_budget, seconds_of
from gpu_acceptance.base.text import did_you_mean
from gpu_acceptance.control.rank import JOIN_S
from gpu_acceptance.folder.files import RUN_ID
from gpu_acceptance.run.suite import is_installed
from gpu_acceptance.thresholds.limit import DEFAULT_LEVEL, LEVELS, SOAK
from gpu_acceptance.thresholds.profile import shipped_dir
from gpu_acceptance.verdict import busy

_MOST = 9_999  # of what is counted: more is a typing error


def not_allowed(option: str, text: str, allowed: str) -> pytest.UsageError:
    """`--gpus=0: allowed: 1 to 9999 (GPUs of each node under test)`."""
    return pytest.UsageError(f"{option}={text}: allowed: {allowed}")


def overlay_of(folder: Path, name: str) -> Path:
    """A path as the user meant it, from where pytest was started; a bare name is left for the profiles' folder."""
    not_empty("--limits", name, "a file, or the name of a shipped overlay")
    path = folder / name
    try:
        is_there = path.exists()
    except OSError as error:
        raise pytest.UsageError(f"--limits={name}: cannot be read: {error.strerror}") from None
    return path if is_there or "/" in name or name.endswith(".yaml") else Path(name)


def not_empty(option: str, text: str | None, meaning: str) -> str | None:
    if text is not None and not text.strip():
        raise not_allowed(option, text, meaning)
    return text


def waiver_of(text: str) -> tuple[str, str]:
    glob, _, reason = text.partition("=")
    if not glob.strip() or not reason.strip():
        raise not_allowed("--waive", text, "METRIC-GLOB=reason, as in --waive='hbm.read.*=agreed with the vendor on 2026-11-20'")
    return glob.strip(), reason.strip()


def count_of(option: str, text: str | None, meaning: str) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(_MOST)) and int(text) >= 1):
        raise not_allowed(option, text, f"1 to {_MOST} ({meaning})")
    return int(text)


def level_of(text: str | None, soak: str | None) -> str:
    """Refused before anything is collected: a profile may have fewer, and never more."""
    if soak is not None and text not in {None, SOAK}:
        raise pytest.UsageError(f"--soak={soak} --level={text}: --soak is level {SOAK}; leave one of them out")
    if text is None:
        return DEFAULT_LEVEL if soak is None else SOAK
    if text not in LEVELS:
        raise not_allowed("--level", text, f"{', '.join(LEVELS)}{did_you_mean(text, LEVELS)}")
    return text


def seconds_of_option(option: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not (seconds := seconds_of(text)):
        raise not_allowed(option, text, "more than 0 seconds, as 90, 90s, 15m or 2h")
    return seconds


def budget_of(text: str | None) -> Budget | None:
    try:
        return read_budget(text, os.environ, time.time())
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None


def run_id_of(text: str | None) -> str | None:
    if text is not None and not RUN_ID.fullmatch(text):
        raise not_allowed("--run-id", text, "1 to 100 letters, digits, '.', '_' and '-', of which the first is a letter or digit")
    return text


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
    suite: Path  # the folder of validations
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


def read_settings(config: pytest.Config) -> Settings:
    """Raises pytest.UsageError over a value that is not allowed."""
    option, given = config.option, partial(_given, config)
    own_profiles = config.rootpath / "thresholds"
    lora_model, lora_data = _lora_files(config)
    level, soak = given("--level"), given("--soak")
    return Settings(
        limits=tuple(overlay_of(config.invocation_params.dir, name) for name in option.limits),
        hardware=not_empty("--hardware", given("--hardware"), "the name of a profile"),
        waivers={**(busy.WAIVERS if option.allow_busy else {}), **dict(waiver_of(text) for text in option.waive)},
        declared_gpus=count_of("--gpus", given("--gpus"), "GPUs of each node under test"),
        expected_nodes=count_of("--expect-nodes", given("--expect-nodes"), "nodes that take part"),
        measure_only=option.measure_only,
        allow_busy=option.allow_busy,
        plan=option.plan,
        report_dir=_report_dir(config),
        run_id=run_id_of(given("--run-id")),
        confirm=count_of("--confirm", given("--confirm"), "more measurements of a missed limit") or 0,
        budget=budget_of(given("--budget")),
        site=_path(config, "--site", "a file that says which nodes there must be"),
        contract=_path(config, "--contract", "a file with the lines of a contract"),
        checkpoint_dir=_path(config, "--checkpoint-dir", "a folder that all nodes share"),
        data_dir=_path(config, "--data-dir", "a folder with training data"),
        shared_dir=_path(config, "--shared-dir", "a folder that all nodes share"),
        lora_model=lora_model,
        lora_data=lora_data,
        level=level_of(level, soak),
        soak_s=seconds_of_option("--soak", soak),
        localise=option.localise,
        tensorboard=option.tensorboard,
        join_s=seconds_of_option("--join-timeout", given("--join-timeout")) or JOIN_S,
        profiles=own_profiles if (own_profiles / "base.yaml").is_file() else shipped_dir(),
        suite=config.rootpath / "acceptance",
    )


def _given(config: pytest.Config, option: str) -> str | None:
    """The one value of an option, or None where it was not given."""
    values: list[str] = getattr(config.option, option.removeprefix("--").replace("-", "_"))
    if len(values) > 1:
        raise pytest.UsageError(f"{option} is given {len(values)} times ({', '.join(values)}); allowed: once")
    return values[0] if values else None


def _path(config: pytest.Config, option: str, what: str) -> Path | None:
    """What this option names, from the folder in which pytest was started; `what` it is, for who gives it nothing."""
    name = not_empty(option, _given(config, option), what)
    return None if name is None else config.invocation_params.dir / name


def _lora_files(config: pytest.Config) -> tuple[Path | None, Path | None]:
    model = _path(config, "--lora-model", "a folder with a checkpoint in Hugging Face format")
    data = _path(config, "--lora-data", "a file with dialogues in JSON lines")
    if (model is None) != (data is None):
        alone, other = ("--lora-data", "--lora-model=DIR") if model is None else ("--lora-model", "--lora-data=FILE")
        raise pytest.UsageError(f"{alone}={_given(config, alone)}: a model is fine-tuned on data; name the other as well: {other}")
    return model, data


def _report_dir(config: pytest.Config) -> Path:
    default = config.invocation_params.dir if is_installed(config.rootpath) else config.rootpath
    return _path(config, "--report-dir", "a folder") or default / "reports"
