"""What the command line asked for, checked: one frozen value instead of pytest's option bag."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpu_acceptance.launch.patience import JOIN_S
from gpu_acceptance.options.budget import Budget
from gpu_acceptance.options.suite import is_installed
from gpu_acceptance.options.texts import budget_of, count_of, level_of, not_empty, overlay_of, run_id_of, seconds_of_option, waiver_of
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
    """Raises pytest.UsageError over an option that cannot be right."""
    option = config.option
    own_profiles = config.rootpath / "thresholds"
    lora_model, lora_data = _lora_files(config)
    return Settings(
        limits=tuple(overlay_of(config.invocation_params.dir, name) for name in option.limits),
        hardware=not_empty("--hardware", option.hardware, "the name of a profile"),
        waivers={**(busy.WAIVERS if option.allow_busy else {}), **dict(waiver_of(text) for text in option.waive)},
        declared_gpus=count_of("--gpus", option.gpus, "the number of GPUs of each node that are under test"),
        expected_nodes=count_of("--expect-nodes", option.expect_nodes, "the number of nodes that there must be"),
        measure_only=option.measure_only,
        allow_busy=option.allow_busy,
        plan=option.plan,
        report_dir=_report_dir(config),
        run_id=run_id_of(option.run_id),
        confirm=count_of("--confirm", option.confirm, "how often a missed limit is measured again") or 0,
        budget=budget_of(option.budget),
        site=_path(config, "--site", option.site, "the file that says which nodes there must be"),
        contract=_path(config, "--contract", option.contract, "the file that says which metrics answer which line of a contract"),
        checkpoint_dir=_path(config, "--checkpoint-dir", option.checkpoint_dir, "a folder that all nodes share"),
        data_dir=_path(config, "--data-dir", option.data_dir, "a folder with training data"),
        shared_dir=_path(config, "--shared-dir", option.shared_dir, "a folder that all nodes share"),
        lora_model=lora_model,
        lora_data=lora_data,
        level=level_of(option.level, option.soak),
        soak_s=seconds_of_option("--soak", option.soak),
        localise=option.localise,
        tensorboard=option.tensorboard,
        join_s=seconds_of_option("--join-timeout", option.join_timeout) or JOIN_S,
        profiles=own_profiles if (own_profiles / "base.yaml").is_file() else shipped_dir(),
    )


def _path(config: pytest.Config, option: str, text: str | None, what: str) -> Path | None:
    """What this option names, from the folder in which pytest was started; `what` it is, for who gives it nothing."""
    name = not_empty(option, text, what)
    return None if name is None else config.invocation_params.dir / name


def _lora_files(config: pytest.Config) -> tuple[Path | None, Path | None]:
    model = not_empty("--lora-model", config.option.lora_model, "a folder with a checkpoint in Hugging Face format")
    data = not_empty("--lora-data", config.option.lora_data, "a file with dialogues in JSON lines")
    if model is None and data is None:
        return None, None
    if model is None or data is None:
        alone, other = (f"--lora-data={data}", "--lora-model=DIR") if model is None else (f"--lora-model={model}", "--lora-data=FILE")
        raise pytest.UsageError(f"{alone}: a model is fine-tuned on data; name the other as well: {other}")
    return config.invocation_params.dir / model, config.invocation_params.dir / data


def _report_dir(config: pytest.Config) -> Path:
    name = not_empty("--report-dir", config.option.report_dir, "a folder")
    if name is None:
        return (config.invocation_params.dir if is_installed(config.rootpath) else config.rootpath) / "reports"
    return config.invocation_params.dir / name
