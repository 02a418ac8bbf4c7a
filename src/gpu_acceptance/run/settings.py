"""What the command line asked for, checked: one frozen value instead of pytest's option bag."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from gpu_acceptance.base.budget import Budget
from gpu_acceptance.control.rank import JOIN_S
from gpu_acceptance.run.suite import is_installed
from gpu_acceptance.run.texts import budget_of, count_of, level_of, not_empty, overlay_of, run_id_of, seconds_of_option, waiver_of
from gpu_acceptance.thresholds.limit import DEFAULT_LEVEL
from gpu_acceptance.thresholds.profile import shipped_dir
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
